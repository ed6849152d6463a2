//! The servers, each in a process of its own on the first processor. One runs at a time.

use crate::course::BoxError;
use crate::{cache, grpc, iceoryx, json, store};
use clap::ValueEnum;
use portcullis_memory::pin;
use portcullis_rpc::channel::{Copied, ServerOptions, serve};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// The servers' processor.
pub const SERVER: usize = 0;
/// Bytes that a cache may take: more than it is loaded with.
const CACHE_BYTES: u64 = 4 << 30;
/// The only method of [`Kind::Calls`].
pub const WORD: u32 = 1;

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The store of the example.
    Documents,
    /// The cache of the example.
    Cache,
    /// Calls through shared memory that answer with their word.
    Calls,
    /// Both over gRPC.
    Grpc,
    /// Both over JSON on a Unix socket.
    Json,
    /// Calls over iceoryx2.
    Iceoryx2,
}

fn ready() {
    println!("serving");
    // Whoever started this process waits for the line.
    let _ = std::io::stdout().flush();
}

fn until_input_ends() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Serves until the standard input ends.
pub fn run(kind: Kind, path: &Path) -> Result<(), BoxError> {
    pin(SERVER);
    match kind {
        Kind::Documents => {
            let _server = store::start(path, ServerOptions::default())?;
            ready();
            until_input_ends();
            Ok(())
        }
        Kind::Cache => {
            let _server = cache::start(path, CACHE_BYTES, ServerOptions::default())?;
            ready();
            until_input_ends();
            Ok(())
        }
        Kind::Calls => {
            let _server = serve(path)
                .copied(WORD, |word: Copied<'_, u64>, reply| {
                    reply.set_word(word.word());
                    Ok(())
                })
                .start()?;
            ready();
            until_input_ends();
            Ok(())
        }
        Kind::Grpc => {
            std::thread::spawn(|| {
                until_input_ends();
                std::process::exit(0)
            });
            grpc::serve(path, ready)
        }
        Kind::Json => json::serve(path, ready),
        Kind::Iceoryx2 => {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    until_input_ends();
                    stop.store(true, Ordering::Relaxed);
                });
                iceoryx::serve(path, ready, &stop)
            })
        }
    }
}

/// A server's process. Dropping it ends the process.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Process {
    pub fn start(kind: Kind) -> Result<Self, BoxError> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("rival.sock");
        let mut command = Command::new(std::env::current_exe()?);
        let kind = kind.to_possible_value().ok_or("no such kind")?;
        command.args(["--serve", kind.get_name()]).arg("--at").arg(&path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let server = Self { child, input, path, _folder: folder };
        let mut line = String::new();
        BufReader::new(output.ok_or("no output")?).read_line(&mut line)?;
        if line.is_empty() { Err("the server ended before it served".into()) } else { Ok(server) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

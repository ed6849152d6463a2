//! The server of the calls, in a separate process.

use super::super::{BenchError, processors};
use super::failed;
use super::rows::{COPIED, ONE_SHOT, PAGE_STEP, SANDBOXED, TRUSTED};
use crate::output::say;
use portcullis_rpc::channel::{
    Channel, Copied, Failure, OneShot, Reply, Sandboxed, ServerOptions, Trusted, serve,
};
use portcullis_rpc::{Source, View};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Result of a method that may have arguments: the word, plus the value at the beginning of the first page if there is
/// one.
fn sum(word: u64, view: &View<'_>, first: impl FnOnce() -> Result<u64, Failure>) -> Result<u64, Failure> {
    if view.bytes().is_empty() { Ok(word) } else { Ok(word.wrapping_add(first()?)) }
}

/// Returns the sum of the call's word and of the words at the beginning of the pages.
fn sum_of_pages(page: &Trusted<'_, u64>, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let mut sum = page.word();
    let from = page.root().address();
    for at in (0..page.scope().length).step_by(PAGE_STEP) {
        sum = sum.wrapping_add(page.heap().value::<u64>(from.saturating_add(at))?);
    }
    reply.set_word(sum);
    Ok(())
}

/// A channel with all methods.
pub fn channel(path: &Path) -> Channel {
    serve(path)
        .with(ServerOptions { arguments_max: 16 << 20, ..ServerOptions::default() })
        .copied(COPIED, |page: Copied<'_, u64>, reply| {
            reply.set_word(sum(page.word(), page.view(), || Ok(*page.get()?))?);
            Ok(())
        })
        .sandboxed(SANDBOXED, |page: Sandboxed<'_, u64>, reply| {
            reply.set_word(sum(page.word(), page.view(), || Ok(*page.get()?))?);
            Ok(())
        })
        .one_shot(ONE_SHOT, |page: OneShot<'_, u64>, reply| {
            reply.set_word(sum(page.word(), page.view(), || Ok(*page.get()?))?);
            Ok(())
        })
        .trusted(TRUSTED, |page: Trusted<'_, u64>, reply| sum_of_pages(&page, reply))
}

/// Serves until its standard input ends.
pub fn be_server(path: &Path) -> Result<(), BenchError> {
    let serving = channel(path).on_processors(processors::pair().map(|(server, _)| server)).start();
    let _server = serving.map_err(failed)?;
    say("serving");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The server's process. Dropping it ends the process.
pub struct ServerProcess {
    child: Child,
    input: Option<ChildStdin>,
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl ServerProcess {
    pub fn start() -> Result<Self, BenchError> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("calls.sock");
        processors::unpin();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "call", "--serve"]).arg(&path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line)?;
        }
        let server = Self { child, input, path, _folder: folder };
        if line.is_empty() {
            return Err(std::io::Error::other("the server ended before it served").into());
        }
        processors::pin_client();
        Ok(server)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

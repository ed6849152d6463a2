//! memcached over a Unix socket, by its text protocol, with one thread.

use crate::servers::SERVER;
use crate::ycsb::{BoxError, Cache};
use portcullis_memory::pin;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long memcached may take to be there.
const START_MAX: Duration = Duration::from_secs(10);

/// A process of memcached and a connection to it. Dropping it ends the process.
pub struct Memcached {
    child: Child,
    input: BufReader<UnixStream>,
    output: UnixStream,
    said: Vec<u8>,
    line: String,
    _folder: tempfile::TempDir,
}

impl Memcached {
    /// `None`: it is not installed.
    pub fn start(client: usize) -> Result<Option<Self>, BoxError> {
        let folder = tempfile::tempdir()?;
        let path: PathBuf = folder.path().join("memcached.sock");
        let mut command = Command::new("memcached");
        command.args(["-t", "1", "-m", "4096", "-u", "root", "-s"]).arg(&path);
        // A process begins on the processors of its maker.
        pin(SERVER);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        pin(client);
        let mut child = match started {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let began = Instant::now();
        let output = loop {
            match UnixStream::connect(&path) {
                Ok(socket) => break socket,
                Err(_) if began.elapsed() < START_MAX => std::thread::yield_now(),
                Err(error) => {
                    child.kill()?;
                    child.wait()?;
                    return Err(error.into());
                }
            }
        };
        let input = BufReader::with_capacity(1 << 16, output.try_clone()?);
        Ok(Some(Self { child, input, output, said: Vec::new(), line: String::new(), _folder: folder }))
    }

    fn hear(&mut self) -> Result<&str, BoxError> {
        self.line.clear();
        self.input.read_line(&mut self.line)?;
        Ok(self.line.trim_end())
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cache for Memcached {
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
        self.said.clear();
        self.said.extend_from_slice(b"get ");
        self.said.extend_from_slice(key);
        self.said.extend_from_slice(b"\r\n");
        self.output.write_all(&self.said)?;
        let head = self.hear()?;
        if head == "END" {
            return Ok(None);
        }
        let length: usize = head.rsplit(' ').next().unwrap_or_default().parse()?;
        let mut value = vec![0; length + 2];
        self.input.read_exact(&mut value)?;
        value.truncate(length);
        if self.hear()? == "END" {
            Ok(Some(value))
        } else {
            Err(format!("memcached said {}", self.line).into())
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), BoxError> {
        self.said.clear();
        self.said.extend_from_slice(b"set ");
        self.said.extend_from_slice(key);
        self.said.extend_from_slice(format!(" 0 0 {}\r\n", value.len()).as_bytes());
        self.said.extend_from_slice(value);
        self.said.extend_from_slice(b"\r\n");
        self.output.write_all(&self.said)?;
        if self.hear()? == "STORED" { Ok(()) } else { Err(format!("memcached said {}", self.line).into()) }
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, BoxError> {
        self.said.clear();
        self.said.extend_from_slice(b"delete ");
        self.said.extend_from_slice(key);
        self.said.extend_from_slice(b"\r\n");
        self.output.write_all(&self.said)?;
        Ok(self.hear()? == "DELETED")
    }
}

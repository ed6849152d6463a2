//! The program: started with the library that replaces its allocator, watched, and ended.

use crate::{FarError, Sizes};
use portcullis_memory::userfault::Handover;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};

/// What the program's library reads: a socket, this process, bytes of the range, bytes that come first, the smallest far
/// block.
const VARIABLE: &str = "PORTCULLIS_FAR";
const PRELOAD: &str = "LD_PRELOAD";
/// The program's end of the socket has a number from here on: programs use small ones themselves.
const SOCKET_FROM: i32 = 500;

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

/// A running program with far memory.
#[derive(Debug)]
pub struct Program {
    child: Child,
    process: OwnedFd,
    pub(crate) handover: Handover,
}

impl Program {
    /// Starts a program that loads `library`.
    ///
    /// The kernel ends the program when the *thread* that called this ends.
    ///
    /// # Errors
    /// There is no such program, or the machine refuses.
    pub fn start(mut command: Command, library: &Path, sizes: Sizes) -> Result<Self, FarError> {
        let socket = FarError::machine("make a socket for the program");
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(&socket)?;
        // The program inherits its end, and so does what it executes in its own place.
        let theirs = rustix::io::fcntl_dupfd_cloexec(&theirs, SOCKET_FROM).unwrap_or(theirs);
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(&socket)?;
        let Sizes { range, first, least, .. } = sizes;
        let settings = format!("{},{},{range},{first},{least}", theirs.as_raw_fd(), std::process::id());
        let mut preload = OsString::from(library);
        if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env(VARIABLE, settings).env(PRELOAD, preload);
        let child = command.spawn().map_err(FarError::machine("start the program"))?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(FarError::machine("watch the program"))?;
        Ok(Self { child, process, handover: Handover::new(ours) })
    }

    /// The program's process.
    #[must_use]
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Its standard input and output, where the command asked for pipes.
    pub fn take_streams(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.child.stdin.take(), self.child.stdout.take())
    }

    /// Readable when the program has ended.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// How the program ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<Ended>, FarError> {
        let status = self.child.try_wait().map_err(FarError::machine("wait for the program"))?;
        Ok(status.map(Ended::from))
    }

    /// Ends the program, whatever it does, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signalled(status.signal().unwrap_or(0)), Self::Exited)
    }
}

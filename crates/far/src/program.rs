//! The program: it is started with the library that replaces its allocator, watched, and ended.

use crate::{FarError, Sizes};
use portcullis_memory::userfault::Handover;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::Arc;
use tempfile::TempDir;

/// Variable that the program's library reads: a socket, this process, bytes of the range, bytes that are never far, the
/// smallest far block.
const VARIABLE: &str = "PORTCULLIS_FAR";
const PRELOAD: &str = "LD_PRELOAD";
/// Lowest number of the program's end of the socket: programs use small numbers themselves.
const SOCKET_FROM: i32 = 500;

/// End of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The program exited with this code.
    Exited(i32),
    /// This signal ended the program.
    Signalled(i32),
}

/// A running program with far memory.
#[derive(Debug)]
pub struct Program {
    child: Child,
    process: OwnedFd,
    /// Folder with a link to the library, which must exist as long as the program may load the library.
    _folder: Option<TempDir>,
    pub(crate) handover: Arc<Handover>,
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
        // The program inherits its end, and so does a program that it executes in its own place.
        let theirs = rustix::io::fcntl_dupfd_cloexec(&theirs, SOCKET_FROM).unwrap_or(theirs);
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(&socket)?;
        let Sizes { range, first, least, .. } = sizes;
        let settings = format!("{},{},{range},{first},{least}", theirs.as_raw_fd(), std::process::id());
        let (library, folder) = loadable(library)?;
        let mut preload = OsString::from(library);
        if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env(VARIABLE, settings).env(PRELOAD, preload);
        let child = command.spawn().map_err(FarError::machine("start the program"))?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(FarError::machine("watch the program"))?;
        Ok(Self { child, process, _folder: folder, handover: Arc::new(Handover::new(ours)) })
    }

    /// The program's process.
    #[must_use]
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the program's standard input and output, if the command requested pipes.
    pub fn take_streams(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.child.stdin.take(), self.child.stdout.take())
    }

    /// The descriptor is readable when the program has ended.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// A descriptor that is readable when the program has ended.
    pub(crate) fn watch(&self) -> Result<OwnedFd, FarError> {
        self.process.try_clone().map_err(FarError::machine("watch the program"))
    }

    /// Returns how the program ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<Ended>, FarError> {
        let status = self.child.try_wait().map_err(FarError::machine("wait for the program"))?;
        Ok(status.map(Ended::from))
    }

    /// Kills the program, whatever it does, and waits for its end.
    pub(crate) fn kill(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the library under a path that the dynamic linker takes for one path: the linker splits its list at spaces
/// and colons, and replaces the text after a dollar sign. Any other path gets a link in a folder of its own.
fn loadable(library: &Path) -> Result<(PathBuf, Option<TempDir>), FarError> {
    if is_one_path(library) {
        return Ok((library.to_owned(), None));
    }
    let cannot = FarError::machine(
        "make a link to the library, whose path has a space, a colon or a dollar sign in it",
    );
    let places = [std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/run")];
    let place = places.iter().find(|place| place.is_absolute() && is_one_path(place));
    let place = place.ok_or_else(|| cannot(std::io::Error::from(std::io::ErrorKind::NotFound)))?;
    let folder = tempfile::Builder::new().prefix("portcullis-far-").tempdir_in(place).map_err(&cannot)?;
    let link = folder.path().join("libportcullis_preload.so");
    std::os::unix::fs::symlink(library, &link).map_err(&cannot)?;
    Ok((link, Some(folder)))
}

fn is_one_path(path: &Path) -> bool {
    path.is_absolute() && !path.as_os_str().as_bytes().iter().any(|byte| b": \t\n$".contains(byte))
}

/// Returns the bytes of anonymous memory that a process and its descendants have. A process whose memory cannot be read
/// counts as zero.
pub(crate) fn anonymous_bytes(process: Pid) -> u64 {
    let mut all = 0;
    let mut rest = vec![process.as_raw_nonzero().get()];
    while let Some(process) = rest.pop() {
        let folder = Path::new("/proc").join(process.to_string());
        let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        let kibibytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = kibibytes.and_then(|text| text.trim().strip_suffix("kB")).map(str::trim);
        all += number.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) << 10;
        let threads = std::fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            rest.extend(children.split_whitespace().filter_map(|number| number.parse::<i32>().ok()));
        }
    }
    all
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signalled(status.signal().unwrap_or(0)), Self::Exited)
    }
}

//! A socket in the file system. Binding it does no harm to an existing file, and removing it does no harm to a file
//! that replaced it.
//!
//! Only a socket on which no process listens is replaced. Between that check and the removal another node could bind
//! there and lose its live socket. So nodes hold a lock on the directory while they bind.

use nix::libc;
use nix::sys::socket::SetSockOpt;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// SO_PASSRIGHTS of Linux 6.16. It has this number on all architectures of Linux but Alpha, PA-RISC and SPARC.
const SO_PASSRIGHTS: i32 = 83;
/// The socket option that determines whether peers may pass descriptors.
#[derive(Clone, Copy)]
struct PassRights;
nix::setsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, nix::sys::socket::sockopt::SetBool);

/// Connections that the kernel queues for the acceptor.
const BACKLOG: i32 = 1024;
/// Time to wait for the directory's lock: a node holds it for the time of some system calls.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
const LOCK_AGAIN: Duration = Duration::from_millis(5);

/// The users that may open a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// The permission bits of the socket's file, whatever the umask is. A client needs the right to write.
    pub mode: u32,
    /// The number of the group that the socket's file belongs to. `None` leaves the choice to the kernel.
    pub group: Option<u32>,
}

/// A socket that clients connect to. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    file: FileId,
    /// Whether peers can pass descriptors, which may be slow to close.
    takes_descriptors: Cell<bool>,
}

impl Listener {
    /// Listens at `path` for clients that send messages. Replaces an existing socket on which no process listens, and
    /// no other file.
    ///
    /// # Errors
    /// Another file is at the path, another process listens there, or the file system refuses.
    pub fn bind(path: &Path, access: SocketAccess) -> std::io::Result<Self> {
        Self::bind_as(path, access, SocketType::SEQPACKET)
    }

    /// Listens at `path` for clients that send streams of bytes. Replaces a file in the same way as
    /// [`bind`](Self::bind).
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind).
    pub fn bind_stream(path: &Path, access: SocketAccess) -> std::io::Result<Self> {
        Self::bind_as(path, access, SocketType::STREAM)
    }

    fn bind_as(path: &Path, access: SocketAccess, kind: SocketType) -> std::io::Result<Self> {
        let address = SocketAddrUnix::new(path).map_err(|error| match error {
            Errno::NAMETOOLONG => {
                Error::new(ErrorKind::InvalidFilename, "a socket's path has 107 bytes at most")
            }
            error => error.into(),
        })?;
        let _lock = lock_directory(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_orphan(path, &address, kind)?;
                rustix::net::bind(&socket, &address)?;
            }
            bound => bound?,
        }
        let file = FileId::of(&rustix::fs::lstat(path)?);
        let takes_descriptors = Cell::new(!refuse_descriptors(&socket));
        let listener = Self { socket, path: path.to_owned(), file, takes_descriptors };
        // No client can connect before `listen`, so the umask's mode admits none.
        listener.open_to(access)?;
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// Whether descriptors may arrive with peers' messages.
    #[must_use]
    pub fn takes_descriptors(&self) -> bool {
        self.takes_descriptors.get()
    }

    /// Returns the path at which it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket's file, and returns the descriptor that remains to be closed. `None`: there was no free
    /// descriptor, and the socket is closed already.
    #[must_use]
    pub fn retire(self) -> Option<OwnedFd> {
        self.socket.try_clone().ok()
    }

    /// Lets peers pass descriptors, as they can on kernels before 6.16. For tests of the handling of such descriptors.
    #[doc(hidden)]
    pub fn dangerous_take_descriptors(&self) {
        // Without such an option descriptors arrive anyway.
        let _ = PassRights.set(&self.socket.as_fd(), &true);
        self.takes_descriptors.set(true);
    }

    fn open_to(&self, access: SocketAccess) -> std::io::Result<()> {
        if let Some(group) = access.group {
            let group = Some(Gid::from_raw(group));
            rustix::fs::chownat(CWD, &self.path, None, group, AtFlags::SYMLINK_NOFOLLOW).map_err(
                |error| {
                    let told = format!("the socket cannot be given to that group: {error}");
                    Error::new(Error::from(error).kind(), told)
                },
            )?;
        }
        Ok(rustix::fs::chmod(&self.path, Mode::from_raw_mode(access.mode))?)
    }
}

/// The descriptor on which connections are accepted.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // No lock is needed: other nodes do not replace the socket while it is open, and it still is.
        let there = rustix::fs::lstat(&self.path);
        if there.is_ok_and(|there| FileId::of(&there) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the kernel refuse descriptors that peers pass; connections inherit that. A kernel before Linux 6.16 cannot do
/// so. Then descriptors arrive, and are closed by a thread on which they delay only their own user. Returns whether the
/// kernel refuses them.
fn refuse_descriptors(socket: &OwnedFd) -> bool {
    let refused = PassRights.set(&socket.as_fd(), &false).is_ok();
    if !refused {
        tracing::debug!("this kernel has no SO_PASSRIGHTS: descriptors that clients pass are closed");
    }
    refused
}

/// The identity of a file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Lets only one node at a time bind in a directory. The lock ends when the returned value is dropped.
fn lock_directory(path: &Path) -> std::io::Result<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let told = |error: Errno| {
        let parent = parent.display();
        let text = match error {
            Errno::NOENT => format!("there is no directory {parent}"),
            Errno::NOTDIR => format!("{parent} is not a directory"),
            error => format!("the directory {parent} cannot be locked: {error}"),
        };
        Error::new(Error::from(error).kind(), text)
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty()).map_err(told)?;
    let until = Instant::now() + LOCK_WITHIN;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::park_timeout(LOCK_AGAIN),
            Err(Errno::WOULDBLOCK) => {
                let text = format!("another process keeps the directory {} locked", parent.display());
                return Err(Error::new(ErrorKind::WouldBlock, text));
            }
            Err(error) => return Err(told(error)),
        }
    }
}

/// Removes a socket on which no process listens.
fn remove_orphan(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> std::io::Result<()> {
    let there = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        there => there?,
    };
    let file = FileType::from_raw_mode(there.st_mode);
    if file != FileType::Socket {
        let text = format!("{} exists at the path and is not replaced", name_of(file));
        return Err(Error::new(ErrorKind::AlreadyExists, text));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let taken = |text: &str| Err(Error::new(ErrorKind::AddrInUse, text.to_owned()));
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {}
        // A full backlog means a listening process too.
        Ok(()) | Err(Errno::AGAIN) if kind == SocketType::SEQPACKET => {
            return taken("a node listens there already");
        }
        Ok(()) | Err(Errno::AGAIN) => return taken("another program listens there already"),
        Err(Errno::PROTOTYPE) => return taken("another program has its socket there"),
        Err(error) => {
            let text =
                format!("a socket is there, and the node cannot determine whether it is in use: {error}");
            return Err(Error::new(Error::from(error).kind(), text));
        }
    }
    if FileId::of(&rustix::fs::lstat(path)?) != FileId::of(&there) {
        return taken("another process is creating a socket there");
    }
    std::fs::remove_file(path)
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "a file",
    }
}

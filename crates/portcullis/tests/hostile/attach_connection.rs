//! The attach socket without the library: a test can send any bytes and any descriptors at any time.

use portcullis_attach::unix::{AttachReply, AttachRequest};
use portcullis_memory::Mapping;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::path::Path;

/// Time that the node may take to answer or hang up, in seconds.
const PATIENCE_S: i64 = 20;

/// The hello of an honest client.
pub fn hello(arena_bytes: u64) -> [u8; 64] {
    AttachRequest::Hello { arena_bytes }.encode()
}

/// The message that an honest client sends when it has mapped the offered port.
pub fn mapped() -> [u8; 64] {
    AttachRequest::Mapped.encode()
}

/// A connection to a node.
pub struct AttachConnection {
    pub socket: OwnedFd,
}

/// A message from the node.
pub struct Heard {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Heard {
    /// Returns the descriptors of the offered port: its file, the engine's page, an event and an alarm. `None`: the
    /// node refused or hung up.
    pub fn offer(self) -> Option<[OwnedFd; 4]> {
        self.descriptors.try_into().ok()
    }

    /// Returns whether the offered port works now.
    pub fn is_welcome(&self) -> bool {
        matches!(AttachReply::parse(&self.bytes), Some(AttachReply::Welcome { .. }))
    }

    /// Returns whether the node hung up.
    pub fn is_end(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether the node reports that the attach took too long.
    pub fn is_too_late(&self) -> bool {
        matches!(AttachReply::parse(&self.bytes), Some(AttachReply::TooLate))
    }

    /// Returns whether the node refused a port.
    pub fn is_refusal(&self) -> bool {
        matches!(AttachReply::parse(&self.bytes), Some(AttachReply::Refused(_)))
    }
}

impl AttachConnection {
    /// Connects. `None`: the kernel's queue of waiting connections is full.
    pub fn try_connect(path: &Path) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("a path")).ok()?;
        Some(Self { socket })
    }

    pub fn connect(path: &Path) -> Self {
        let mut connection = None;
        crate::rig::wait_for("a connection", || {
            connection = Self::try_connect(path);
            connection.is_some()
        });
        connection.expect("it was waited for")
    }

    /// Sends bytes. Returns `false` if the node is gone.
    pub fn say(&self, bytes: &[u8]) -> bool {
        rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
    }

    /// Sends bytes together with descriptors.
    pub fn say_with(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "64 fit");
        let parts = [std::io::IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &parts, &mut control, flags).is_ok()
    }

    /// Returns whether a message has arrived or the node has hung up.
    pub fn has_heard(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Waits until a message arrives or the node hangs up.
    pub fn hear(&self) -> Heard {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&patience)).expect("a poll");
        assert!(ready > 0, "the node neither answers nor hangs up");
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let length =
            rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags).map_or(0, |it| it.bytes);
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Heard { bytes: bytes[..length].to_vec(), descriptors }
    }

    /// Connects and waits for the offer of a port.
    pub fn be_offered(path: &Path, arena_bytes: u64) -> (Self, [OwnedFd; 4]) {
        let connection = Self::connect(path);
        assert!(connection.say(&hello(arena_bytes)));
        let port = connection.hear().offer().expect("a port");
        (connection, port)
    }

    /// Connects, attaches, and maps the port's file.
    pub fn attach(path: &Path) -> (Self, [OwnedFd; 4], Mapping) {
        let (connection, port) = Self::be_offered(path, 4096);
        let length = u64::try_from(rustix::fs::fstat(&port[0]).expect("a file").st_size).expect("a size");
        let file = port[0].try_clone().expect("a descriptor");
        let memory = Mapping::of_peer(file, length, true).expect("a file to map");
        assert!(connection.say(&mapped()));
        assert!(connection.hear().is_welcome());
        (connection, port, memory)
    }
}

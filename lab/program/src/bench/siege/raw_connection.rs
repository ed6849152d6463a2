//! A connection to a node's socket that need not become a client.

use portcullis_attach::unix::AttachRequest;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::path::Path;

/// A connection. None of its calls blocks.
pub struct RawConnection {
    socket: OwnedFd,
}

impl RawConnection {
    /// Connects. `None`: a connection is not possible now.
    pub fn connect(path: &Path) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
        Some(Self { socket })
    }

    pub fn say(&self, request: AttachRequest) {
        // The node may have hung up as a result of the attack.
        let _ = rustix::net::send(&self.socket, &request.encode(), SendFlags::NOSIGNAL);
    }

    /// Passes a descriptor with a meaningless message.
    pub fn pass(&self, descriptor: BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let gift = [descriptor];
        control.push(SendAncillaryMessage::ScmRights(&gift));
        // The kernel may refuse this, which defeats the attack.
        let _ = rustix::net::sendmsg(
            &self.socket,
            &[std::io::IoSlice::new(&[0])],
            &mut control,
            SendFlags::NOSIGNAL,
        );
    }

    /// Returns the next message's descriptors, none if no message has arrived yet, or `Err` at the end.
    pub fn hear(&self) -> Result<Vec<OwnedFd>, End> {
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Ok(message) if message.bytes == 0 => Err(End),
            Ok(_) => Ok(control
                .drain()
                .flat_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
                    _ => Vec::new(),
                })
                .collect()),
            Err(rustix::io::Errno::AGAIN) => Ok(Vec::new()),
            Err(_) => Err(End),
        }
    }
}

/// The node has closed the connection.
pub struct End;

//! A thread for each holder, which performs the operations that a peer can make slow.
//!
//! The thread that receives a passed descriptor also closes it. Closing can take as long as the peer likes, for example
//! for a TCP socket that lingers. Filling and freeing memory takes milliseconds. All of that happens on this thread, so
//! that a holder blocks only its own thread. This thread makes no decisions.

use crate::handshake::{Errand, Reason};
use rustix::fd::OwnedFd;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The most descriptors that the kernel allows in a message.
const DESCRIPTORS_MAX: usize = 253;

/// A task for a connection, which is named by its token.
pub(super) enum Task<H> {
    /// Receive at most `most` bytes.
    Hear { token: u64, socket: Arc<OwnedFd>, most: usize },
    /// Run an errand that must be complete before the handshake goes on.
    Run { token: u64, errand: Errand },
    /// Close a connection and drop its handshake.
    Close { token: u64, socket: Arc<OwnedFd>, handshake: H },
}

/// The outcome of a task.
pub(super) enum Done {
    /// Bytes were received. If there are none, the peer has hung up.
    Heard { token: u64, bytes: Vec<u8> },
    /// No bytes were available.
    Nothing { token: u64 },
    /// The errand is complete, or has failed.
    Ran { token: u64, outcome: Result<(), Reason> },
    /// The connection is closed entirely.
    Closed { token: u64 },
}

/// A holder's thread. It ends when this is dropped and all tasks are complete.
#[derive(Debug)]
pub(super) struct PeerThread<H> {
    tasks: Sender<Task<H>>,
}

impl<H: Send + 'static> PeerThread<H> {
    /// Starts a thread that reports its outcomes to `done`.
    pub fn start(done: impl Fn(Done) + Send + 'static) -> std::io::Result<Self> {
        let (tasks, receiver) = channel();
        // Not joined: a peer can delay it.
        std::thread::Builder::new()
            .name("portcullis-peer".to_owned())
            .spawn(move || carry_out(&receiver, done))?;
        Ok(Self { tasks })
    }

    /// Hands a task over. Does not wait.
    pub fn give(&self, task: Task<H>) {
        let given = self.tasks.send(task);
        assert!(given.is_ok(), "a thread takes tasks until its holder's last connection is closed");
    }
}

fn carry_out<H>(tasks: &Receiver<Task<H>>, done: impl Fn(Done)) {
    for task in tasks {
        done(match task {
            Task::Hear { token, socket, most } => match hear(&socket, most) {
                Some(bytes) => Done::Heard { token, bytes },
                None => Done::Nothing { token },
            },
            Task::Run { token, errand } => Done::Ran { token, outcome: errand() },
            Task::Close { token, socket, handshake } => {
                drop((socket, handshake));
                Done::Closed { token }
            }
        });
    }
}

/// Returns the bytes that have arrived, and closes descriptors that arrived with them. An empty vector means that the
/// peer has hung up. `None` means that no bytes have arrived.
pub(super) fn hear(socket: &OwnedFd, most: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; most];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    match rustix::net::recvmsg(socket, &mut parts, &mut control, flags) {
        Ok(received) => {
            bytes.truncate(received.bytes);
            Some(bytes)
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(Vec::new()),
    }
}

//! A thread for each holder: it does what a peer can make slow.
//!
//! A descriptor that a peer passes is closed by the thread that receives it. Closing can take as long as the peer
//! likes, for example for a TCP socket that lingers. Filling and freeing memory takes milliseconds. All of that happens
//! here, so that a holder blocks only its own thread. Nothing is decided here.

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
    /// Receive at most so many bytes.
    Hear { token: u64, socket: Arc<OwnedFd>, most: usize },
    /// Do what has to be done before the handshake goes on.
    Run { token: u64, errand: Errand },
    /// Close a connection and drop its handshake.
    Close { token: u64, socket: Arc<OwnedFd>, handshake: H },
}

/// The outcome of a task.
pub(super) enum Done {
    /// Bytes came. None of them: the peer has hung up.
    Heard { token: u64, bytes: Vec<u8> },
    /// Nothing came.
    Nothing { token: u64 },
    /// The errand is done, or has failed.
    Ran { token: u64, outcome: Result<(), Reason> },
    /// Nothing of the connection is left.
    Closed { token: u64 },
}

/// A holder's thread. It ends when this is dropped and all tasks are done.
#[derive(Debug)]
pub(super) struct PeerThread<H> {
    tasks: Sender<Task<H>>,
}

impl<H: Send + 'static> PeerThread<H> {
    /// Starts a thread that reports its outcomes to `done`.
    pub fn start(done: impl Fn(Done) + Send + 'static) -> std::io::Result<Self> {
        let (tasks, receiver) = channel();
        // Not joined: a peer can hold it up.
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

/// The bytes that have come; descriptors with them are closed. No bytes: the peer has hung up. `None`: nothing has
/// come.
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

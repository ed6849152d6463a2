//! A thread for each user that attaches: it does what a peer can make slow.
//!
//! A descriptor that a peer passes is closed by the thread that receives it, and closing can wait for as long as the
//! peer likes: a TCP socket that lingers does. Filling and freeing a port's memory takes milliseconds. All of that
//! happens here, so that one user's thread may be lost for a while and the others' attaches go on. Nothing is decided
//! here.

use portcullis_memory::{Mapping, MappingError};
use rustix::fd::OwnedFd;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The most descriptors that the kernel lets a message carry.
const DESCRIPTORS_MAX: usize = 253;
/// Bytes that are heard of a message. Longer ones are none of ours, and cut.
const HEARD_BYTES: usize = super::messages::REQUEST_BYTES + 1;

/// Something to do for a connection, which its token names.
#[derive(Debug)]
pub(super) enum Task {
    /// Receive a message.
    Hear { token: u64, socket: Arc<OwnedFd> },
    /// Make a port's memory such that nobody can take its pages away any more.
    Prepare { token: u64, memory: Mapping },
    /// Let go of a connection and its port's memory.
    Close { token: u64, socket: Arc<OwnedFd>, memory: Option<Mapping> },
}

/// What became of a task.
#[derive(Debug)]
pub(super) enum Done {
    /// A message came: none of its bytes, if it was the end.
    Heard { token: u64, bytes: Vec<u8> },
    /// Nothing came.
    Nothing { token: u64 },
    /// The memory is sealed, filled and locked, or not.
    Prepared { token: u64, prepared: Result<(), MappingError> },
    /// Nothing of the connection is left.
    Closed { token: u64 },
}

/// A user's thread. It ends when this is dropped and all its tasks are done.
#[derive(Debug)]
pub(super) struct UserThread {
    tasks: Sender<Task>,
}

impl UserThread {
    /// Starts a thread that hands what it has done to `done`.
    ///
    /// # Errors
    /// The machine refuses a thread.
    pub fn start(done: impl Fn(Done) + Send + 'static) -> std::io::Result<Self> {
        let (tasks, receiver) = channel();
        // Not joined: nobody waits for a thread that a peer holds up.
        std::thread::Builder::new()
            .name("portcullis-peer".to_owned())
            .spawn(move || carry_out(&receiver, done))?;
        Ok(Self { tasks })
    }

    /// Hands a task over. Does not wait.
    pub fn give(&self, task: Task) {
        self.tasks.send(task).expect("a thread takes tasks until its user's last connection is closed");
    }
}

fn carry_out(tasks: &Receiver<Task>, done: impl Fn(Done)) {
    for task in tasks {
        done(match task {
            Task::Hear { token, socket } => match hear(&socket) {
                Some(bytes) => Done::Heard { token, bytes },
                None => Done::Nothing { token },
            },
            Task::Prepare { token, memory } => {
                let prepared = memory.seal_future_writes().and_then(|()| memory.make_resident());
                Done::Prepared { token, prepared }
            }
            Task::Close { token, socket, memory } => {
                drop((socket, memory));
                Done::Closed { token }
            }
        });
    }
}

/// The next message, and no descriptors: those that came with it are closed. None: there is no message.
fn hear(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = [0; HEARD_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    match rustix::net::recvmsg(socket, &mut parts, &mut control, flags) {
        Ok(received) => Some(bytes[..received.bytes].to_vec()),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(Vec::new()),
    }
}

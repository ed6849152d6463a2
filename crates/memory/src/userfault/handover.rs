//! How a program hands a range of its memory to the process that fills its pages: one message each way over a socket that
//! keeps messages apart, and later one for each part of the range that the program does not need any more.
//!
//! The program's side makes no use of the heap, which may be what the range is for.

use super::Userfault;
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;

/// Bytes of a message: what it is, and two numbers.
const MESSAGE_BYTES: usize = 24;
const HAND_OVER: u64 = 0x4641_5200_0000_0001;
const DENIED: u64 = 0x4641_5200_0000_0002;
const RELEASE: u64 = 0x4641_5200_0000_0003;
const DONE: u64 = 0x4641_5200_0000_0004;

/// A range that a program has handed over.
#[derive(Debug)]
pub struct Handed {
    /// The faults of the program's memory.
    pub userfault: Userfault,
    /// The file that the range is a mapping of, from its first byte on.
    pub file: OwnedFd,
    /// The first address, in the program.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// What a program asks for.
#[derive(Debug)]
pub enum Request {
    /// To have the pages of a range filled. The program waits for [`Handover::done`].
    HandOver(Handed),
    /// To forget the pages of a part of the range: they are zeros from here on. The program waits for
    /// [`Handover::done`].
    Release {
        /// The first address.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// The program's kernel refused the range, with this error number.
    Denied(i32),
}

/// Why a program and the process that fills its pages cannot talk.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The other side made no sense.
    #[error("the program sent what is no request for memory")]
    Malformed,
    /// The socket is gone.
    #[error("the socket to the program fails: {0}")]
    Socket(#[from] Errno),
}

impl Coded for HandoverError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed => ErrorCode::MalformedMessage,
            Self::Socket(_) => ErrorCode::Machine,
        }
    }
}

/// The end of the process that fills pages.
#[derive(Debug)]
pub struct Handover {
    socket: OwnedFd,
}

impl Handover {
    /// Over the socket whose other end the program has.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Takes the next request, without waiting. `None`: there is none.
    ///
    /// # Errors
    /// The socket is gone, or what came makes no sense.
    pub fn take(&self) -> Result<Option<Request>, HandoverError> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)
        {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut descriptors = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten();
        if received.bytes == 0 {
            // The program has ended, or closed its end: nothing more will come.
            return Err(Errno::PIPE.into());
        }
        let (first, second) = (descriptors.next(), descriptors.next());
        if received.bytes != MESSAGE_BYTES || received.flags.contains(ReturnFlags::TRUNC) {
            return Err(HandoverError::Malformed);
        }
        let [what, address, length] = words(&bytes);
        match (what, first, second) {
            (HAND_OVER, Some(userfault), Some(file)) => {
                let userfault = Userfault::of_peer(userfault);
                Ok(Some(Request::HandOver(Handed { userfault, file, address, length })))
            }
            (RELEASE, None, None) => Ok(Some(Request::Release { address, length })),
            (DENIED, None, None) => Ok(Some(Request::Denied(i32::try_from(address).unwrap_or(0)))),
            _ => Err(HandoverError::Malformed),
        }
    }

    /// Tells the program that its request is carried out.
    ///
    /// # Errors
    /// The program has gone.
    pub fn done(&self) -> Result<(), HandoverError> {
        send(self.socket.as_fd(), [DONE, 0, 0], &[]).map_err(HandoverError::Socket)
    }
}

impl AsFd for Handover {
    /// Readable when a request waits to be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The program's side: hands a mapping of `file` over and waits until its pages can be touched.
///
/// # Errors
/// The other side has gone, or makes no sense.
pub fn hand_over(
    socket: BorrowedFd<'_>,
    userfault: &Userfault,
    file: BorrowedFd<'_>,
    (address, length): (u64, u64),
) -> Result<(), HandoverError> {
    send(socket, [HAND_OVER, address, length], &[userfault.as_fd(), file])?;
    await_done(socket)
}

/// The program's side: gives the pages of a part of the range back, and waits until they are forgotten.
///
/// # Errors
/// As [`hand_over`].
pub fn release(socket: BorrowedFd<'_>, address: u64, length: u64) -> Result<(), HandoverError> {
    send(socket, [RELEASE, address, length], &[])?;
    await_done(socket)
}

/// The program's side: says that the kernel refused the range, with its error number.
///
/// # Errors
/// As [`hand_over`].
pub fn deny(socket: BorrowedFd<'_>, errno: i32) -> Result<(), HandoverError> {
    send(socket, [DENIED, u64::try_from(errno).unwrap_or(0), 0], &[]).map_err(HandoverError::Socket)
}

fn await_done(socket: BorrowedFd<'_>) -> Result<(), HandoverError> {
    let mut bytes = [0; MESSAGE_BYTES];
    loop {
        match rustix::net::recv(socket, &mut bytes, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok((_, MESSAGE_BYTES)) if words(&bytes)[0] == DONE => return Ok(()),
            Ok((_, 0)) => return Err(Errno::PIPE.into()),
            Ok(_) => return Err(HandoverError::Malformed),
        }
    }
}

fn send(socket: BorrowedFd<'_>, words: [u64; 3], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut bytes = [0; MESSAGE_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let has_room = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(has_room, "the space is for two descriptors");
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

fn words(bytes: &[u8; MESSAGE_BYTES]) -> [u64; 3] {
    std::array::from_fn(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        u64::from_ne_bytes(word)
    })
}

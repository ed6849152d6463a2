//! Handover of a range of a program's memory to the process that fills its pages, and moving pages out of it, by
//! messages over a socket that preserves message boundaries.
//!
//! The program's side does not use the heap, which may be in the range itself, nor any state that belongs to one
//! thread, such as `errno`.

use super::{Powers, Userfault};
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;

/// Words of a message: its kind, and up to five numbers.
const WORDS: usize = 6;
const MESSAGE_BYTES: usize = WORDS * 8;
/// Maximum number of descriptors that a message carries.
const DESCRIPTORS_MAX: usize = 3;

/// Bytes behind a range that are watched with it and never accessed. A forked child identifies itself by them (see
/// [`mark_of`]).
pub const MARKS_BYTES: usize = 4096 * super::PAGE;
/// Number of bits of a child's number that are coded in the place of its mark. The other bits are coded in the mark's
/// length.
const PLACE_BITS: u32 = 11;

const HAND_OVER: u64 = 0x4641_5200_0000_0011;
const DENIED: u64 = 0x4641_5200_0000_0012;
const TERMS: u64 = 0x4641_5200_0000_0013;
const TAKE: u64 = 0x4641_5200_0000_0014;
const TAKEN: u64 = 0x4641_5200_0000_0015;
const CHILD: u64 = 0x4641_5200_0000_0016;
const JOINED: u64 = 0x4641_5200_0000_0017;

/// A range that a program has handed over.
#[derive(Debug)]
pub struct Handed {
    /// The faults of the program's memory.
    pub userfault: Userfault,
    /// A file in memory into which the program copies the bytes of pages that were moved out.
    pub outbox: OwnedFd,
    /// The program's `/proc/self/pagemap`, which shows which pages exist. `None`: there is no `/proc`.
    pub pagemap: Option<OwnedFd>,
    /// The first address, in the program.
    pub address: u64,
    /// Length of the range in bytes.
    pub length: u64,
}

/// Message of a program.
#[derive(Debug)]
pub enum Request {
    /// The program hands a range over, so that its pages are filled. It waits for [`Handover::accept`].
    HandOver(Handed),
    /// Pages were moved out, as a [`Command`] requested.
    Taken(Taken),
    /// A forked child requests a descriptor of its own faults, which [`Handover::adopt`] sends over the child's socket.
    Child {
        /// The number by which the child identifies itself (see [`join`]).
        number: u64,
        /// The child's socket.
        socket: OwnedFd,
    },
    /// The program's kernel refused the range, with this error number.
    Denied(i32),
}

/// Request to move pages out of the range. The bytes of each page go to its place in the outbox, the first page's
/// first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// Number that the answer repeats.
    pub tag: u64,
    /// The first page's address.
    pub address: u64,
    /// Number of pages, 64 at most.
    pub count: u32,
}

/// Outcome of a [`Command`]: a bit for each page, the first page's lowest. A page with no bit in `moved` or `missing`
/// stays where it is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The tag of the command.
    pub tag: u64,
    /// The page's bytes are in the outbox.
    pub moved: u64,
    /// The page did not exist: its bytes are zeros.
    pub missing: u64,
    /// The protection of the page was lifted, and the program may have written to it since.
    pub unprotected: u64,
    /// The program changes its mappings: pages that stay may be tried again once its events are taken.
    pub is_changing: bool,
}

/// Terms on which the pages of a range are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The kernel's abilities for the range.
    pub powers: Powers,
}

/// Reason for which a program and the process that fills its pages cannot communicate.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The other side sent a message that makes no sense.
    #[error("the program sent a malformed request for memory")]
    Malformed,
    /// The socket is closed or fails.
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

/// The end of the handover in the process that fills pages.
#[derive(Debug)]
pub struct Handover {
    socket: OwnedFd,
}

impl Handover {
    /// Uses the socket whose other end the program has.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Takes the next request, without waiting. Returns `None` if no request waits.
    ///
    /// # Errors
    /// The socket is closed, or the message makes no sense.
    pub fn take(&self) -> Result<Option<Request>, HandoverError> {
        let (words, mut descriptors) = match receive(self.socket.as_fd(), RecvFlags::DONTWAIT) {
            Ok(message) => message,
            Err(HandoverError::Socket(Errno::AGAIN | Errno::INTR)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let [what, first, second, third, fourth, fifth] = words;
        let request = match (what, descriptors.each_mut().map(Option::take)) {
            (HAND_OVER, [Some(userfault), Some(outbox), pagemap]) => {
                let userfault = Userfault::of_peer(userfault);
                Request::HandOver(Handed { userfault, outbox, pagemap, address: first, length: second })
            }
            (TAKEN, [None, None, None]) => Request::Taken(Taken {
                tag: first,
                moved: second,
                missing: third,
                unprotected: fourth,
                is_changing: fifth != 0,
            }),
            (CHILD, [Some(socket), None, None]) => Request::Child { number: first, socket },
            (DENIED, [None, None, None]) => Request::Denied(i32::try_from(first).unwrap_or(0)),
            _ => return Err(HandoverError::Malformed),
        };
        Ok(Some(request))
    }

    /// Notifies the program that its range is watched, and on which terms.
    ///
    /// # Errors
    /// The program has ended.
    pub fn accept(&self, terms: Terms) -> Result<(), HandoverError> {
        let Powers { moves, forks } = terms.powers;
        Ok(send(self.socket.as_fd(), [TERMS, moves.into(), forks.into(), 0, 0, 0], &[])?)
    }

    /// Requests that the program move pages out. The answer is a [`Request::Taken`].
    ///
    /// # Errors
    /// As [`Handover::accept`].
    pub fn command(&self, command: Command) -> Result<(), HandoverError> {
        let Command { tag, address, count } = command;
        Ok(send(self.socket.as_fd(), [TAKE, tag, address, count.into(), 0, 0], &[])?)
    }

    /// Sends a descriptor of its own faults to a forked child, over the child's socket.
    ///
    /// # Errors
    /// The child has ended.
    pub fn adopt(socket: BorrowedFd<'_>, faults: &Userfault) -> Result<(), HandoverError> {
        Ok(send(socket, [JOINED, 0, 0, 0, 0, 0], &[faults.as_fd()])?)
    }
}

impl AsFd for Handover {
    /// The descriptor is readable when a request waits to be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Hands a range over and waits until its pages can be touched. The program calls this.
///
/// # Errors
/// The other side has ended, or sent a message that makes no sense.
pub fn hand_over(
    socket: BorrowedFd<'_>,
    userfault: &Userfault,
    outbox: BorrowedFd<'_>,
    pagemap: Option<BorrowedFd<'_>>,
    (address, length): (u64, u64),
) -> Result<Terms, HandoverError> {
    let both = [userfault.as_fd(), outbox];
    let all = [userfault.as_fd(), outbox, pagemap.unwrap_or(outbox)];
    let descriptors = if pagemap.is_some() { &all[..] } else { &both[..] };
    send(socket, [HAND_OVER, address, length, 0, 0, 0], descriptors)?;
    loop {
        // A program that was executed in another's place may receive commands for its predecessor.
        let (words, _) = receive_waiting(socket)?;
        if words[0] == TERMS {
            return Ok(Terms { powers: Powers { moves: words[1] != 0, forks: words[2] != 0 } });
        }
    }
}

/// Waits for the next command. The program calls this.
///
/// # Errors
/// As [`hand_over`].
pub fn next_command(socket: BorrowedFd<'_>) -> Result<Command, HandoverError> {
    match receive_waiting(socket)?.0 {
        [TAKE, tag, address, count, _, _] => {
            let count = u32::try_from(count).map_err(|_| HandoverError::Malformed)?;
            Ok(Command { tag, address, count })
        }
        _ => Err(HandoverError::Malformed),
    }
}

/// Sends the outcome of a command. The program calls this.
///
/// # Errors
/// As [`hand_over`].
pub fn answer(socket: BorrowedFd<'_>, taken: Taken) -> Result<(), HandoverError> {
    let Taken { tag, moved, missing, unprotected, is_changing } = taken;
    Ok(send(socket, [TAKEN, tag, moved, missing, unprotected, is_changing.into()], &[])?)
}

/// Requests a descriptor of its own faults over the program's socket, and waits for it on a socket of its own. A forked
/// child calls this. `theirs` is the other end of `ours`. `identify` makes the kernel report something of this process
/// that carries `number`, by which the receiver knows whose memory it is.
///
/// # Errors
/// As [`hand_over`].
pub fn join(
    socket: BorrowedFd<'_>,
    number: u64,
    (ours, theirs): (BorrowedFd<'_>, OwnedFd),
    identify: impl FnOnce(),
) -> Result<OwnedFd, HandoverError> {
    send(socket, [CHILD, number, 0, 0, 0, 0], &[theirs.as_fd()])?;
    // Only the other side has that end now. If it is closed, this process notices.
    drop(theirs);
    identify();
    match receive_waiting(ours)? {
        ([JOINED, ..], [Some(faults), None, None]) => Ok(faults),
        _ => Err(HandoverError::Malformed),
    }
}

/// Returns the mark of a child's number, which is below 2²²: its start among the marks, and its length, in bytes.
#[must_use]
pub fn mark_of(number: u64) -> (u64, u64) {
    let place = number & ((1 << PLACE_BITS) - 1);
    let count = ((number >> PLACE_BITS) & ((1 << PLACE_BITS) - 1)) + 1;
    (place * super::PAGE as u64, count * super::PAGE as u64)
}

/// Returns the number that a mark stands for.
#[must_use]
pub fn number_of(offset: u64, length: u64) -> u64 {
    let pages = |bytes: u64| bytes / super::PAGE as u64;
    pages(length).saturating_sub(1) << PLACE_BITS | pages(offset)
}

/// Reports that the kernel refused the range, with its error number. The program calls this.
///
/// # Errors
/// As [`hand_over`].
pub fn deny(socket: BorrowedFd<'_>, errno: i32) -> Result<(), HandoverError> {
    Ok(send(socket, [DENIED, u64::try_from(errno).unwrap_or(0), 0, 0, 0, 0], &[])?)
}

type Message = ([u64; WORDS], [Option<OwnedFd>; DESCRIPTORS_MAX]);

fn receive_waiting(socket: BorrowedFd<'_>) -> Result<Message, HandoverError> {
    loop {
        match receive(socket, RecvFlags::empty()) {
            Err(HandoverError::Socket(Errno::INTR)) => {}
            received => return received,
        }
    }
}

fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<Message, HandoverError> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut descriptors = [const { None }; DESCRIPTORS_MAX];
    let passed = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    for (place, descriptor) in descriptors.iter_mut().zip(passed.flatten()) {
        *place = Some(descriptor);
    }
    if received.bytes == 0 {
        // The other side has ended, or closed its end: no more messages will arrive.
        return Err(Errno::PIPE.into());
    }
    if received.bytes != MESSAGE_BYTES || received.flags.contains(ReturnFlags::TRUNC) {
        return Err(HandoverError::Malformed);
    }
    Ok((words(&bytes), descriptors))
}

fn send(socket: BorrowedFd<'_>, words: [u64; WORDS], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut bytes = [0; MESSAGE_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let has_room = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(has_room, "the space is for {DESCRIPTORS_MAX} descriptors");
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

fn words(bytes: &[u8; MESSAGE_BYTES]) -> [u64; WORDS] {
    std::array::from_fn(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        u64::from_ne_bytes(word)
    })
}

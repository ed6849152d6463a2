//! The kernel's reports about watched memory.

use super::{PAGE, Userfault};
use rustix::fd::OwnedFd;
use std::ops::Range;
use std::os::fd::FromRawFd;

/// Bytes of one message of the kernel.
pub(super) const MESSAGE_BYTES: usize = 32;

const PAGEFAULT: u8 = 0x12;
const FORK: u8 = 0x13;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;
const FLAG_WRITE: u64 = 1;
const FLAG_PROTECTED: u64 = 2;

/// A touch of a page by a thread, which sleeps until the page is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// The page's first address, in the process that owns the memory.
    pub address: u64,
    /// The thread wants to write.
    pub is_write: bool,
    /// The page exists and is protected.
    pub is_protected: bool,
}

/// An event of watched memory. All events but faults wait until they are taken: until then the kernel fills and moves
/// no pages of the memory.
#[derive(Debug)]
pub enum Event {
    /// A thread has touched a page.
    Fault(PageFault),
    /// `madvise` was called to drop pages. It drops them after this event is taken.
    Removed(Range<u64>),
    /// A part of the range is not mapped any more.
    Unmapped(Range<u64>),
    /// A part of the range has moved to other addresses.
    Remapped {
        /// The part's former addresses.
        from: Range<u64>,
        /// The present address of the part's first byte.
        to: u64,
    },
    /// The process has forked. The value gives the faults of the child's memory, which has the parent's contents.
    Forked(Userfault),
}

/// Parses a message of the kernel. `None`: the message is of no known kind.
pub(super) fn parse(message: &[u8]) -> Option<Event> {
    let word = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let (first, second, third) = (word(8)?, word(16)?, word(24)?);
    match *message.first()? {
        PAGEFAULT => Some(Event::Fault(PageFault {
            address: second & !(PAGE as u64 - 1),
            is_write: first & (FLAG_WRITE | FLAG_PROTECTED) != 0,
            is_protected: first & FLAG_PROTECTED != 0,
        })),
        REMOVE => Some(Event::Removed(first..second)),
        UNMAP => Some(Event::Unmapped(first..second)),
        REMAP => Some(Event::Remapped { from: first..first + third, to: second }),
        FORK => {
            let number = i32::try_from(first & u64::from(u32::MAX)).ok()?;
            // SAFETY: the kernel has opened this descriptor for the reader of the message, and nothing else owns it.
            Some(Event::Forked(Userfault::of_peer(unsafe { OwnedFd::from_raw_fd(number) })))
        }
        _ => None,
    }
}

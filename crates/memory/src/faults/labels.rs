//! Explanation of a fault to the program's user: the address is looked up among labels, and the label's text is
//! printed.
//!
//! A signal handler may do very little: it interrupts a program anywhere, even in the middle of an allocation. So
//! labels are texts that were made before, in memory of a fixed size, and the handler only copies bytes and writes them
//! to the standard error.

use super::listen;
use crate::Mapping;
use portcullis_errors::{Coded, ErrorCode};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// Maximum number of labels that a process can have at once. Further memory is not explained.
const LABELS_MAX: usize = 1024;
/// Maximum length of a text in bytes. The rest of a longer text is not printed.
const TEXT_MAX: usize = 120;

/// Explains faults in some memory until it is dropped: see [`Mapping::label`].
#[derive(Debug)]
pub struct FaultLabel(Option<&'static Slot>);

#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    length: AtomicUsize,
    text: [AtomicU8; TEXT_MAX],
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const LIVE: u32 = 2;

static SLOTS: [Slot; LABELS_MAX] = [const { Slot::new() }; LABELS_MAX];
/// Slots from here on are free. Most of the time there are few labels.
static USED: AtomicUsize = AtomicUsize::new(0);

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            text: [const { AtomicU8::new(0) }; TEXT_MAX],
        }
    }

    fn take(&self) -> bool {
        self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn set(&self, start: usize, end: usize, text: &str) {
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        let length = text.floor_char_boundary(TEXT_MAX);
        self.length.store(length, Ordering::Relaxed);
        for (place, byte) in self.text.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.state.store(LIVE, Ordering::Release);
    }

    fn is_about(&self, address: usize) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
            && (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)).contains(&address)
    }
}

impl Mapping {
    /// Labels the bytes with a text. From here on, a fault at these bytes prints the text, if [`explain_faults`] was
    /// called.
    ///
    /// # Panics
    /// The bytes are not entirely in this mapping.
    #[must_use]
    pub fn label(&self, offset: u64, length: u64, text: &str) -> FaultLabel {
        let start = self.pointer(offset, length, 1).addr();
        let free = SLOTS.iter().enumerate().find(|(_, slot)| slot.take());
        if let Some((number, slot)) = free {
            USED.fetch_max(number + 1, Ordering::Release);
            slot.set(start, start + usize::try_from(length).unwrap_or(0), text);
        }
        FaultLabel(free.map(|(_, slot)| slot))
    }
}

impl Drop for FaultLabel {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.state.store(FREE, Ordering::Release);
        }
    }
}

/// Error: the machine refuses a handler of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this machine refuses a handler of faults: {0}")]
pub struct FaultsUnexplained(Errno);

impl Coded for FaultsUnexplained {
    fn code(&self) -> ErrorCode {
        ErrorCode::Machine
    }
}

static EXPLAINS: AtomicBool = AtomicBool::new(false);

/// Makes this process print on its standard error which label lies at an address where it faults. Then the handler that
/// was installed before runs, or the signal ends the program. Calling it again does nothing.
///
/// A fault that ends the code of a sandbox's trap does not end the program, and is not printed. A handler that is
/// installed later has to pass on the faults that it does not know, as this one does.
///
/// # Errors
/// The machine refuses.
pub fn explain_faults() -> Result<(), FaultsUnexplained> {
    listen().map_err(FaultsUnexplained)?;
    EXPLAINS.store(true, Ordering::Release);
    Ok(())
}

/// Prints the label at an address. It runs in a signal handler.
pub(super) fn tell(address: usize) {
    if !EXPLAINS.load(Ordering::Acquire) {
        return;
    }
    let used = USED.load(Ordering::Acquire).min(LABELS_MAX);
    let Some(slot) = SLOTS[..used].iter().find(|slot| slot.is_about(address)) else { return };
    let mut line = Line::default();
    line.push(b"portcullis: a write to 0x");
    line.push_hexadecimal(address);
    line.push(b", where writes are not allowed: ");
    let length = slot.length.load(Ordering::Relaxed).min(TEXT_MAX);
    for byte in &slot.text[..length] {
        line.push(&[byte.load(Ordering::Relaxed)]);
    }
    line.push(b"\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), &line.bytes[..line.length]);
}

/// A line that is composed without an allocation.
struct Line {
    bytes: [u8; 256],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 256], length: 0 }
    }
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        for (place, byte) in self.bytes[self.length..].iter_mut().zip(bytes) {
            *place = *byte;
            self.length += 1;
        }
    }

    fn push_hexadecimal(&mut self, number: usize) {
        let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            self.push(&[b"0123456789abcdef"[number >> (4 * digit) & 15]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn pages_can_be_written_again_and_labels_are_used_again() {
        let memory = Mapping::shareable("test", 3 * 4096).expect("memory");
        memory.allow_writes(4096, 4096, false).expect("pages");
        let label = memory.label(4096, 4096, "the middle page");
        memory.allow_writes(4096, 4096, true).expect("pages");
        memory.store(4096, 5);
        assert_eq!(memory.load(4096), 5);
        drop(label);
        let at = memory.start().addr().get() + 4096;
        for round in 0..3 * LABELS_MAX {
            let _label = memory.label(4096, 4096, &"ü".repeat(round % TEXT_MAX));
            assert!(SLOTS.iter().any(|slot| slot.is_about(at)) && !SLOTS[0].is_about(at + 4096));
        }
        let all: Vec<FaultLabel> = (0..=LABELS_MAX).map(|_| memory.label(0, 4096, "many")).collect();
        assert!(all.iter().any(|label| label.0.is_none()), "one too many is not explained");
    }

    #[test]
    fn memory_on_the_heap_is_not_protected() {
        let memory = Mapping::private(4096).expect("memory");
        assert!(memory.allow_writes(0, 4096, false).is_err());
    }

    #[test]
    fn numbers_are_told_in_hexadecimal() {
        for number in [0, 1, 15, 16, 0x1000_0000_1040, usize::MAX] {
            let mut line = Line::default();
            line.push_hexadecimal(number);
            assert_eq!(line.bytes[..line.length], *format!("{number:x}").as_bytes());
        }
    }
}

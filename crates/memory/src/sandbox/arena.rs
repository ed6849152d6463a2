//! A sandbox's temporary heap.

use super::stack::Stack;
use portcullis_errors::{Coded, ErrorCode};
use std::alloc::Layout;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Bytes at the start of the memory that hold the number of used bytes. They are inside the memory, so that trapped
/// code can allocate: it reaches no other memory.
const HEADER_BYTES: usize = 16;

/// The memory of a temporary heap: one piece, which never grows. It lies beside the sandbox's stack and has the same
/// key, so trapped code reaches it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    start: NonNull<u8>,
    length: usize,
}

impl Room {
    /// The memory of a sandbox's temporary heap. It is valid while the sandbox's stack exists.
    pub fn of(stack: &Stack) -> Self {
        let (start, length) = stack.heap();
        Self { start, length }
    }

    fn used(&self) -> &Cell<usize> {
        // SAFETY: the memory is longer than a word and aligned to pages. Only the thread that runs in the sandbox has a
        // room of it.
        unsafe { self.start.cast::<Cell<usize>>().as_ref() }
    }

    /// Empties the heap. No reference to its former contents may be left.
    #[inline]
    pub fn reset(self) {
        self.used().set(0);
    }

    /// Allocates unused room. Returns `None` if the heap has not enough room.
    pub fn allocate(self, layout: Layout) -> Option<NonNull<u8>> {
        let start = self.start.addr().get();
        let used = start.checked_add(HEADER_BYTES)?.checked_add(self.used().get())?;
        let offset = used.checked_next_multiple_of(layout.align())? - start;
        let end = offset.checked_add(layout.size()).filter(|&end| end <= self.length)?;
        self.used().set(end - HEADER_BYTES);
        // SAFETY: the offset is within the memory.
        Some(unsafe { self.start.add(offset) })
    }

    /// Whether an address lies in the heap.
    pub fn holds(self, address: usize) -> bool {
        address.wrapping_sub(self.start.addr().get()) < self.length
    }

    /// The first address behind the heap, where a guard lies.
    pub fn end(self) -> NonNull<u8> {
        // SAFETY: the guard behind the memory belongs to the same mapping.
        unsafe { self.start.add(self.length) }
    }
}

/// A temporary heap: values are put into it one behind another, and all of them are dropped without a destructor when
/// the sandbox's run ends. Only values without destructors can be put in, so nothing is leaked.
///
/// Trapped code reaches this heap, whatever else is withheld from that code. The data of the process that the code
/// needs is put here before.
#[derive(Clone, Copy, Debug)]
pub struct Arena<'a> {
    room: Room,
    of: PhantomData<&'a Cell<usize>>,
}

impl<'a> Arena<'a> {
    /// The temporary heap of a sandbox. The thread is in that sandbox for the whole lifetime.
    pub(super) fn new(room: Room) -> Self {
        Self { room, of: PhantomData }
    }

    pub(super) fn memory(self) -> Room {
        self.room
    }

    /// Puts a value in.
    ///
    /// # Errors
    /// There is no room.
    pub fn put<T: Copy>(&self, value: T) -> Result<&'a mut T, ArenaFull> {
        let place = self.reserve::<T>(1)?;
        // SAFETY: the room is this value's alone, and aligned for it.
        unsafe { place.write(value) };
        // SAFETY: as above. A value is there now, and nothing else uses the room until the run has ended.
        Ok(unsafe { &mut *place.as_ptr() })
    }

    /// Puts values in, one behind another.
    ///
    /// # Errors
    /// There is no room.
    pub fn put_slice<T: Copy>(&self, values: &[T]) -> Result<&'a mut [T], ArenaFull> {
        self.put_each(values.len(), |index| values[index])
    }

    /// Puts in the same value `count` times.
    ///
    /// # Errors
    /// There is no room.
    pub fn fill<T: Copy>(&self, count: usize, value: T) -> Result<&'a mut [T], ArenaFull> {
        self.put_each(count, |_| value)
    }

    /// Puts text in.
    ///
    /// # Errors
    /// There is no room.
    pub fn put_text(&self, text: &str) -> Result<&'a str, ArenaFull> {
        let bytes = self.put_slice(text.as_bytes())?;
        Ok(std::str::from_utf8(bytes).expect("a copy of a text is one"))
    }
    fn put_each<T: Copy>(&self, count: usize, value: impl Fn(usize) -> T) -> Result<&'a mut [T], ArenaFull> {
        let place = self.reserve::<T>(count)?;
        for index in 0..count {
            // SAFETY: the room has this many values.
            let one = unsafe { place.add(index) };
            // SAFETY: the room is these values' alone, and aligned for them.
            unsafe { one.write(value(index)) };
        }
        // SAFETY: as above. All values are there now, and nothing else uses the room until the run has ended.
        Ok(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), count) })
    }

    fn reserve<T>(&self, count: usize) -> Result<NonNull<T>, ArenaFull> {
        let full = ArenaFull {
            wanted: count.saturating_mul(size_of::<T>()) as u64,
            length: self.room.length as u64,
        };
        let layout = Layout::array::<T>(count).map_err(|_| full)?;
        self.room.allocate(layout).map(NonNull::cast).ok_or(full)
    }
}

/// Error: a sandbox's temporary heap has no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no room for {wanted} bytes in a sandbox's temporary heap of {length} bytes")]
pub struct ArenaFull {
    /// The bytes that were requested.
    pub wanted: u64,
    /// The heap's length in bytes.
    pub length: u64,
}

impl Coded for ArenaFull {
    fn code(&self) -> ErrorCode {
        ErrorCode::HeapFull
    }
}

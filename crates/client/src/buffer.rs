//! Buffers in the endpoint's arena, which the NIC reads and writes.

use crate::Error;
use portcullis_nic::{Lkey, LocalSpan, Memory};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The smallest block, in bytes: a cache line.
const BLOCK_MIN: u64 = 64;

/// Blocks are powers of two times [`BLOCK_MIN`]; this many sizes reach beyond any `u32` length.
const CLASSES: usize = 28;

/// The part of the arena that buffers come from. A buddy allocator that merges only when it must: giving back and
/// taking the same size again costs a push and a pop.
pub(crate) struct Blocks<M> {
    memory: M,
    key: Lkey,
    base: u64,
    free: Mutex<[Vec<u64>; CLASSES]>,
}

impl<M: Memory> Blocks<M> {
    /// Blocks from `base` to the end of the memory.
    pub(crate) fn new(memory: M, key: Lkey, base: u64) -> Self {
        let base = base.next_multiple_of(BLOCK_MIN);
        let mut free: [Vec<u64>; CLASSES] = std::array::from_fn(|_| Vec::new());
        let mut at = 0;
        let mut left = memory.length().saturating_sub(base) / BLOCK_MIN * BLOCK_MIN;
        // Largest first keeps every block aligned to its size, counted from the base.
        for (class, blocks) in free.iter_mut().enumerate().rev() {
            while left >= block_bytes(class) {
                blocks.push(at);
                at += block_bytes(class);
                left -= block_bytes(class);
            }
        }
        Self { memory, key, base, free: Mutex::new(free) }
    }

    pub(crate) fn buffer(self: &Arc<Self>, length: u32) -> Result<Buffer<M>, Error> {
        let class = class_of(u64::from(length));
        let full = Error::ArenaFull { asked: u64::from(length) };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let block = match take(&mut free, class) {
            Some(block) => block,
            None => {
                merge(&mut free);
                take(&mut free, class).ok_or(full)?
            }
        };
        drop(free);
        Ok(Buffer { blocks: Arc::clone(self), at: self.base + block, length, class: u8_class(class) })
    }

    fn give_back(&self, at: u64, class: u8) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free[usize::from(class)].push(at - self.base);
    }
}

fn block_bytes(class: usize) -> u64 {
    BLOCK_MIN << class
}

fn class_of(length: u64) -> usize {
    let blocks = length.div_ceil(BLOCK_MIN).max(1).next_power_of_two();
    usize::try_from(blocks.trailing_zeros()).unwrap_or(CLASSES)
}

fn u8_class(class: usize) -> u8 {
    u8::try_from(class).unwrap_or(u8::MAX)
}

/// A block of `class`, split off a larger one if need be.
fn take(free: &mut [Vec<u64>; CLASSES], class: usize) -> Option<u64> {
    let from = (class..CLASSES).find(|&from| !free[from].is_empty())?;
    let block = free[from].pop()?;
    for smaller in (class..from).rev() {
        free[smaller].push(block + block_bytes(smaller));
    }
    Some(block)
}

/// Makes one block of every two free neighbours that once were one.
fn merge(free: &mut [Vec<u64>; CLASSES]) {
    for class in 0..CLASSES - 1 {
        let size = block_bytes(class);
        let mut blocks = std::mem::take(&mut free[class]);
        blocks.sort_unstable();
        let mut blocks = blocks.into_iter().peekable();
        while let Some(block) = blocks.next() {
            let first_of_two = block.is_multiple_of(2 * size);
            if first_of_two && blocks.next_if_eq(&(block + size)).is_some() {
                free[class + 1].push(block);
            } else {
                free[class].push(block);
            }
        }
    }
}

/// Bytes of the arena, one holder at a time: the caller's, or an operation's from its beginning until its outcome
/// is taken. Dropping it gives them back. Fresh buffers hold whatever was there before.
pub struct Buffer<M: Memory> {
    blocks: Arc<Blocks<M>>,
    at: u64,
    length: u32,
    class: u8,
}

impl<M: Memory> Buffer<M> {
    /// Bytes that an operation on this buffer moves.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Whether an operation on this buffer moves nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The longest it can be made with [`Buffer::resize`], in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        block_bytes(usize::from(self.class))
    }

    /// Changes the length within the capacity; bytes that come into view hold whatever was there before.
    ///
    /// # Errors
    /// [`Error::ArenaFull`] beyond the capacity; the length stays.
    pub fn resize(&mut self, length: u32) -> Result<(), Error> {
        if u64::from(length) > self.capacity() {
            return Err(Error::ArenaFull { asked: u64::from(length) });
        }
        self.length = length;
        Ok(())
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Panics
    /// Like a slice, when the span lies outside the buffer.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        self.check(offset, into.len());
        self.blocks.memory.read(self.at + u64::from(offset), into);
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Panics
    /// Like a slice, when the span lies outside the buffer.
    pub fn write(&mut self, offset: u32, from: &[u8]) {
        self.check(offset, from.len());
        self.blocks.memory.write(self.at + u64::from(offset), from);
    }

    fn check(&self, offset: u32, length: usize) {
        let room = self.length.checked_sub(offset).and_then(|room| usize::try_from(room).ok());
        assert!(
            room.is_some_and(|room| length <= room),
            "{length} bytes at {offset} reach outside a buffer of {}",
            self.length
        );
    }

    pub(crate) fn span(&self) -> LocalSpan {
        LocalSpan { address: self.at, length: self.length, lkey: self.blocks.key }
    }

    /// Where in the arena it starts.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }
}

impl<M: Memory> Drop for Buffer<M> {
    fn drop(&mut self) {
        self.blocks.give_back(self.at, self.class);
    }
}

impl<M: Memory> fmt::Debug for Buffer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("at", &self.at).field("length", &self.length).finish_non_exhaustive()
    }
}

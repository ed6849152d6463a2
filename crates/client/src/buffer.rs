//! Buffers in the endpoint's arena, which the NIC reads and writes.

use crate::Error;
use portcullis_nic::{Lend, Lkey, LocalSpan, Memory};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The smallest block, in bytes: a cache line.
const BLOCK_MIN: u64 = 64;

/// Bytes of a buffer that are prefetched at most.
const PREFETCHED_BYTES: u64 = 512;

/// Number of block sizes: powers of two times [`BLOCK_MIN`], beyond any `u32` length.
const CLASSES: usize = 28;

/// The class of blocks that are given to no later buffer: see [`Buffer::withhold`].
const WITHHELD: u32 = 28;

/// Bits of [`Place`] that hold the length, and bits that hold the class.
const LENGTH_BITS: u32 = 32;
const CLASS_BITS: u32 = 5;

/// The most bytes of an arena that buffers can use; the rest is not used.
pub const BUFFERS_BYTES_MAX: u64 = BLOCK_MIN << (u64::BITS - LENGTH_BITS - CLASS_BITS);

const _: () = assert!(CLASSES == WITHHELD as usize && CLASSES < 1 << CLASS_BITS);

/// Offset of a buffer's block, the size class of the block, and the buffer's length, in one word. So a buffer is two
/// words, which travel in registers. With three words, moving it in and out of slots was half of an operation's cost.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    fn new(block: u64, class: u32, length: u32) -> Self {
        let high = (block / BLOCK_MIN) << CLASS_BITS | u64::from(class);
        Self(high << LENGTH_BITS | u64::from(length))
    }

    fn length(self) -> u32 {
        (self.0 & 0xFFFF_FFFF) as u32
    }

    fn class(self) -> usize {
        ((self.0 >> LENGTH_BITS) & ((1 << CLASS_BITS) - 1)) as usize
    }

    /// Offset from the first block.
    fn block(self) -> u64 {
        (self.0 >> (LENGTH_BITS + CLASS_BITS)) * BLOCK_MIN
    }

    fn with_class(self, class: u32) -> Self {
        Self::new(self.block(), class, self.length())
    }

    fn with_length(self, length: u32) -> Self {
        Self(self.0 >> LENGTH_BITS << LENGTH_BITS | u64::from(length))
    }
}

/// The part of the arena that holds buffers: a buddy allocator that merges only when it must. Giving a block back and
/// taking the same size again costs a push and a pop.
pub(crate) struct Blocks<M> {
    memory: M,
    key: Lkey,
    base: u64,
    /// Bytes at the beginning of the memory that an attach adds to the requested arena.
    added: u64,
    free: Mutex<[Vec<u64>; CLASSES]>,
}

impl<M: Memory> Blocks<M> {
    /// Makes blocks of the memory from `base` to its end. The first `added` bytes of the memory do not count as the
    /// arena.
    pub(crate) fn new(memory: M, key: Lkey, base: u64, added: u64) -> Self {
        let base = base.next_multiple_of(BLOCK_MIN);
        let mut free: [Vec<u64>; CLASSES] = std::array::from_fn(|_| Vec::new());
        let mut at = 0;
        let rest = memory.length().saturating_sub(base).min(BUFFERS_BYTES_MAX);
        let mut left = rest / BLOCK_MIN * BLOCK_MIN;
        // Cutting the largest blocks first keeps every block aligned to its size, counted from the base.
        for (class, blocks) in free.iter_mut().enumerate().rev() {
            while left >= block_bytes(class) {
                blocks.push(at);
                at += block_bytes(class);
                left -= block_bytes(class);
            }
        }
        Self { memory, key, base, added, free: Mutex::new(free) }
    }

    pub(crate) fn buffer(self: &Arc<Self>, length: u32) -> Result<Buffer<M>, Error> {
        let class = class_of(length);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let block = match take(&mut free, class as usize) {
            Some(block) => block,
            None => {
                merge(&mut free);
                take(&mut free, class as usize).ok_or_else(|| self.full(length))?
            }
        };
        drop(free);
        Ok(Buffer { blocks: Arc::clone(self), place: Place::new(block, class, length) })
    }

    /// The error if no free block has `length` bytes.
    fn full(&self, length: u32) -> Error {
        Error::ArenaFull {
            asked: length.into(),
            needed: self.base - self.added + block_bytes(class_of(length) as usize),
            arena: self.memory.length() - self.added,
        }
    }

    fn give_back(&self, place: Place) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // A withheld block has no class here, and stays taken.
        if let Some(blocks) = free.get_mut(place.class()) {
            blocks.push(place.block());
        }
    }
}

/// The class of the smallest block that has `length` bytes.
fn class_of(length: u32) -> u32 {
    u64::from(length).div_ceil(BLOCK_MIN).max(1).next_power_of_two().trailing_zeros()
}

fn block_bytes(class: usize) -> u64 {
    BLOCK_MIN << class
}

/// Takes a free block of `class`, and splits a larger one if need be.
fn take(free: &mut [Vec<u64>; CLASSES], class: usize) -> Option<u64> {
    let from = (class..CLASSES).find(|&from| !free[from].is_empty())?;
    let block = free[from].pop()?;
    for smaller in (class..from).rev() {
        free[smaller].push(block + block_bytes(smaller));
    }
    Some(block)
}

/// Joins every two free neighbours that once were one block.
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

/// Bytes of the arena with one holder at a time: the caller, or an operation until its outcome is taken. Dropping a
/// buffer gives its bytes back. A fresh buffer holds whatever its bytes held before.
pub struct Buffer<M: Memory> {
    blocks: Arc<Blocks<M>>,
    place: Place,
}

/// The state of a buffer before [`Buffer::withhold`].
#[derive(Clone, Copy, Debug)]
pub struct Withheld {
    class: u32,
}

impl<M: Memory> Buffer<M> {
    /// Keeps the bytes from all later buffers, also after this one is dropped: for bytes that others reach by their
    /// address, while an operation has the buffer and may lose it. [`Buffer::stop_withholding`] ends this. Meanwhile the
    /// capacity is the length.
    pub fn withhold(&mut self) -> Withheld {
        let class = u32::try_from(self.place.class()).unwrap_or(WITHHELD);
        self.place = self.place.with_class(WITHHELD);
        Withheld { class }
    }

    /// Lets later buffers have the bytes again once this one is dropped. `before` is what [`Buffer::withhold`] of this
    /// buffer has returned.
    pub fn stop_withholding(&mut self, before: Withheld) {
        self.place = self.place.with_class(before.class);
    }

    /// Returns the number of bytes that an operation on this buffer moves.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.place.length()
    }

    /// Returns whether an operation on this buffer moves no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the greatest length to which [`Buffer::resize`] can set the buffer, in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        let class = self.place.class();
        if class == WITHHELD as usize { self.len().into() } else { block_bytes(class) }
    }

    /// Changes the length within the capacity. Added bytes hold whatever they held before.
    ///
    /// # Errors
    /// [`Error::ArenaFull`] beyond the capacity; the length stays.
    pub fn resize(&mut self, length: u32) -> Result<(), Error> {
        if u64::from(length) > self.capacity() {
            return Err(self.blocks.full(length));
        }
        self.place = self.place.with_length(length);
        Ok(())
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Panics
    /// Like a slice, when the span lies outside the buffer.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        self.check(offset, into.len());
        self.blocks.memory.read(self.at() + u64::from(offset), into);
    }

    /// Copies the first `N` words out, which are little-endian.
    ///
    /// # Panics
    /// The buffer is shorter.
    #[inline]
    #[must_use]
    pub fn words<const N: usize>(&self) -> [u64; N] {
        self.check(0, 8 * N);
        self.blocks.memory.read_words(self.at())
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Panics
    /// Like a slice, when the span lies outside the buffer.
    pub fn write(&mut self, offset: u32, from: &[u8]) {
        self.check(offset, from.len());
        self.blocks.memory.write(self.at() + u64::from(offset), from);
    }

    /// Copies bytes out, like [`Buffer::read`], but returns an error if the span lies outside the buffer.
    ///
    /// # Errors
    /// [`Error::OutsideBuffer`]: nothing was copied.
    pub fn try_read(&self, offset: u32, into: &mut [u8]) -> Result<(), Error> {
        self.span_of(offset, into.len())?;
        self.read(offset, into);
        Ok(())
    }

    /// Copies bytes in, like [`Buffer::write`], but returns an error if the span lies outside the buffer.
    ///
    /// # Errors
    /// [`Error::OutsideBuffer`]: nothing was copied.
    pub fn try_write(&mut self, offset: u32, from: &[u8]) -> Result<(), Error> {
        self.span_of(offset, from.len())?;
        self.write(offset, from);
        Ok(())
    }

    fn check(&self, offset: u32, length: usize) {
        let outside = self.span_of(offset, length).err();
        assert!(outside.is_none(), "{length} bytes at {offset} reach outside a buffer of {}", self.len());
    }

    fn span_of(&self, offset: u32, length: usize) -> Result<(), Error> {
        let room = self.len().checked_sub(offset).and_then(|room| usize::try_from(room).ok());
        let inside = room.is_some_and(|room| length <= room);
        let (offset, length, size) = (offset.into(), length as u64, self.len().into());
        if inside { Ok(()) } else { Err(Error::OutsideBuffer { offset, length, size }) }
    }

    /// Returns whether the buffer comes from these blocks.
    #[inline]
    pub(crate) fn is_of(&self, blocks: &Arc<Blocks<M>>) -> bool {
        Arc::ptr_eq(&self.blocks, blocks)
    }

    pub(crate) fn span(&self) -> LocalSpan {
        LocalSpan { address: self.at(), length: self.len(), lkey: self.blocks.key }
    }

    /// Prefetches the first bytes into the processor's cache: the NIC has just written them and the caller will read
    /// them soon.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.blocks.memory.prefetch(self.at(), u64::from(self.len()).min(PREFETCHED_BYTES));
    }

    /// Offset of the buffer in the arena.
    pub(crate) fn at(&self) -> u64 {
        self.blocks.base + self.place.block()
    }
}

impl<M: Lend> Buffer<M> {
    /// Returns the bytes in place, without a copy.
    #[must_use]
    pub fn bytes(&self) -> M::Bytes<'_> {
        self.blocks.memory.lend(self.at(), self.len().into())
    }

    /// Returns the bytes in place, for the caller to fill before a write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> M::BytesMut<'_> {
        self.blocks.memory.lend_mut(self.at(), self.len().into())
    }
}

impl<M: Memory> Drop for Buffer<M> {
    fn drop(&mut self) {
        self.blocks.give_back(self.place);
    }
}

impl<M: Memory> fmt::Debug for Buffer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("at", &self.at()).field("length", &self.len()).finish_non_exhaustive()
    }
}

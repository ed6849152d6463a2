//! Buffers that a pipeline keeps for its next accesses: the client's own allocator takes a lock each time.

use portcullis::{Buffer, Error, Memory};

/// Largest buffer that is kept, in bytes, so that one size cannot take the whole arena.
const BYTES_MAX: u32 = 4096;
/// Number of buffers that are kept of one size.
const KEPT_MAX: usize = 128;
/// The smallest size, and the number of sizes: powers of two from the smallest on.
const BYTES_MIN: u32 = 64;
const SIZES: usize = (BYTES_MAX / BYTES_MIN).trailing_zeros() as usize + 1;

/// Free buffers, by size.
#[derive(Debug)]
pub struct Buffers<M: Memory> {
    free: [Vec<Buffer<M>>; SIZES],
}

impl<M: Memory> Default for Buffers<M> {
    fn default() -> Self {
        Self { free: std::array::from_fn(|_| Vec::new()) }
    }
}

/// Returns the index of the smallest size that has this many bytes. `None`: such buffers are not kept.
#[inline]
fn size_of(length: u32) -> Option<usize> {
    let size = length.div_ceil(BYTES_MIN).max(1).next_power_of_two().trailing_zeros() as usize;
    (size < SIZES).then_some(size)
}

impl<M: Memory> Buffers<M> {
    /// Takes a buffer of `length` bytes that was kept.
    #[inline]
    pub fn take_kept(&mut self, length: u32) -> Option<Buffer<M>> {
        let mut buffer = self.free[size_of(length)?].pop()?;
        if buffer.len() != length {
            buffer.resize(length).expect("a buffer is kept with those of its size");
        }
        Some(buffer)
    }

    /// Takes a buffer of `length` bytes, from those that are kept or from `new`.
    ///
    /// # Errors
    /// An error of `new`.
    pub fn take(
        &mut self,
        length: u32,
        new: impl Fn(u32) -> Result<Buffer<M>, Error>,
    ) -> Result<Buffer<M>, Error> {
        if let Some(buffer) = self.take_kept(length) {
            return Ok(buffer);
        }
        match new(length) {
            Err(Error::ArenaFull { .. }) => {
                // The rest of the arena may be in buffers that are kept.
                self.free.iter_mut().for_each(Vec::clear);
                new(length)
            }
            taken => taken,
        }
    }

    /// Keeps a buffer for another access.
    #[inline]
    pub fn give_back(&mut self, buffer: Buffer<M>) {
        let capacity = u32::try_from(buffer.capacity()).ok();
        if let Some(size) = capacity.and_then(size_of)
            && self.free[size].len() < KEPT_MAX
        {
            self.free[size].push(buffer);
        }
    }
}

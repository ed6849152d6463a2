//! Small steps that every structure takes: bytes in and out, zeros, and ends of permissions.

use super::{Awaited, Pipeline, all};
use portcullis::{BarePermission, Buffer, Clock, Error, VerbsEndpoint};
use std::rc::Rc;

/// Largest number of bytes that one write of zeros takes.
pub(crate) const ZEROS: usize = 16 << 10;

/// Returns the little-endian word at a place.
#[inline]
pub(crate) fn word_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Passes the bytes of a buffer that is not needed any more to `look`. `look` must not request anything of this
    /// pipeline.
    #[inline]
    pub(crate) fn look<T>(&self, buffer: Buffer<E::Memory>, look: impl FnOnce(&[u8]) -> T) -> T {
        let core = &mut *self.core.borrow_mut();
        let length = buffer.len() as usize;
        if core.scratch.len() < length {
            core.scratch.resize(length, 0);
        }
        let bytes = &mut core.scratch[..length];
        buffer.read(0, bytes);
        core.buffers.give_back(buffer);
        look(bytes)
    }

    /// Returns the first `N` words of a buffer that is not needed any more.
    #[inline]
    pub(crate) fn words<const N: usize>(&self, buffer: Buffer<E::Memory>) -> [u64; N] {
        let words = buffer.words();
        self.core.borrow_mut().buffers.give_back(buffer);
        words
    }

    /// Copies the bytes of a buffer that is not needed any more.
    pub(crate) fn copied(&self, buffer: Buffer<E::Memory>) -> Vec<u8> {
        self.look(buffer, <[u8]>::to_vec)
    }

    /// Requests a few bytes at once, before any task awaits them.
    pub(crate) fn read_few(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        length: usize,
    ) -> Awaited<'_, E, C, Buffer<E::Memory>> {
        let length = u32::try_from(length).expect("parts of a structure are far shorter");
        self.read(permission, offset, length)
    }

    /// Reads a few bytes.
    pub(crate) async fn read_bytes(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Error> {
        let buffer = self.read_few(permission, offset, length).await?;
        Ok(self.copied(buffer))
    }

    /// Zeroes the first `length` bytes of a permission.
    pub(crate) async fn zero(&self, permission: &Rc<BarePermission>, length: u64) -> Result<(), Error> {
        let zeros = vec![0; ZEROS];
        let pieces = (0..length).step_by(ZEROS).map(|at| {
            let piece = usize::try_from(length - at).unwrap_or(ZEROS).min(ZEROS);
            self.write(permission, at, &zeros[..piece])
        });
        all(pieces).await?;
        Ok(())
    }

    /// Ends a permission, unless an access is under way under it. Does not wait for the end.
    pub(crate) fn end(&self, permission: Rc<BarePermission>) {
        if let Ok(permission) = Rc::try_unwrap(permission) {
            drop(self.revoke(permission, false));
        }
    }
}

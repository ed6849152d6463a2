//! Small steps that every structure takes: bytes in and out, zeros, and ends of permissions.

use super::{Awaited, Pipeline, all};
use portcullis::{BarePermission, Buffer, Clock, Error, Memory, VerbsEndpoint};
use std::rc::Rc;

/// The most bytes that one write of zeros takes.
pub(crate) const ZEROS: usize = 16 << 10;

/// The little-endian word at a place.
#[inline]
pub(crate) fn word_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The bytes of a buffer.
pub(crate) fn copied<M: Memory>(buffer: &Buffer<M>) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.read(0, &mut bytes);
    bytes
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Asks for a few bytes at once, before anybody awaits them.
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
        Ok(copied(&self.read_few(permission, offset, length).await?))
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

    /// Ends a permission, unless something is under way under it. Nobody waits for that.
    pub(crate) fn end(&self, permission: Rc<BarePermission>) {
        if let Ok(permission) = Rc::try_unwrap(permission) {
            drop(self.revoke(permission, false));
        }
    }
}

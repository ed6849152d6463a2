//! Reads and writes that a call waits for. They are cut into pieces, several of which are under way at once.

use crate::core::Core;
use crate::failure::{OrRaise, raised};
use portcullis::{Access, Error, Permission, Rights};
use portcullis_foreign::{ArenaBuffer, Completion};
use pyo3::prelude::*;
use std::ops::Range;

/// Largest number of bytes that one operation moves.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// Largest number of pieces of one call that are under way at once: 4 MiB. If the node's thread and this one share a
/// processor, each wait for pieces costs hundreds of microseconds, as much as the transfer of a MiB or more.
const PIECES_MAX: usize = 16;
/// Number of pieces under way at which further ones are begun, together: fewer waits and doorbells than one for each
/// piece.
const PIECES_LOW: usize = PIECES_MAX / 2;

impl Core {
    /// Reads bytes of the permission's memory, and hands them to `land`, each piece with its place. Nothing is read
    /// unless the permission covers all of them.
    #[inline]
    pub(crate) fn read(
        &mut self,
        py: Python<'_>,
        permission: &Permission,
        (offset, length): (u64, usize),
        mut land: impl FnMut(usize, &[u8]),
    ) -> PyResult<()> {
        permission.check_span(offset, length as u64, Rights::READ).or_raise(py)?;
        let begin = |core: &mut Self, tag, at: Range<usize>, buffer| {
            let at = offset.saturating_add(at.start as u64);
            core.attached.operations.add(tag, Access::read(permission.view(), at, buffer));
        };
        self.in_pieces(py, length, begin, |at, buffer| land(at, &buffer.bytes()))
    }

    /// Writes bytes to the permission's memory. `fill` supplies each piece, by its place. Nothing is written unless the
    /// permission covers all of them.
    #[inline]
    pub(crate) fn write(
        &mut self,
        py: Python<'_>,
        permission: &Permission,
        (offset, length): (u64, usize),
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> PyResult<()> {
        permission.check_span(offset, length as u64, Rights::WRITE).or_raise(py)?;
        let begin = |core: &mut Self, tag, at: Range<usize>, mut buffer: ArenaBuffer| {
            fill(at.start, &mut buffer.bytes_mut());
            let at = offset.saturating_add(at.start as u64);
            core.attached.operations.add(tag, Access::write(permission.view(), at, buffer));
        };
        self.in_pieces(py, length, begin, |_, _| ())
    }

    /// Moves pieces, several at a time. When this returns, none is under way, unless it returns the exception of a
    /// signal handler.
    #[inline]
    fn in_pieces(
        &mut self,
        py: Python<'_>,
        length: usize,
        mut begin: impl FnMut(&mut Self, u64, Range<usize>, ArenaBuffer),
        mut land: impl FnMut(usize, &ArenaBuffer),
    ) -> PyResult<()> {
        // An access of no bytes has one piece, so that it is checked like any other.
        let pieces = length.div_ceil(PIECE_BYTES).max(1);
        let tags = self.tags(pieces);
        let (mut begun, mut ended, mut failed) = (0, 0, None);
        while ended < begun || (begun < pieces && failed.is_none()) {
            let most = if begun - ended <= PIECES_LOW { PIECES_MAX } else { 0 };
            while begun < pieces && begun - ended < most && failed.is_none() {
                let at = begun * PIECE_BYTES..length.min((begun + 1) * PIECE_BYTES);
                match self.attached.session.buffer(length_of(at.len())) {
                    Ok(buffer) => begin(self, tags.start + begun as u64, at, buffer),
                    // The arena has room again when a piece has ended.
                    Err(Error::ArenaFull { .. }) if ended < begun => break,
                    Err(error) => {
                        failed = Some(error.into());
                        break;
                    }
                }
                begun += 1;
            }
            if ended == begun {
                break;
            }
            self.attached.post();
            let (place, Completion { result, buffer, .. }) = self.take_one(py, &tags, 1)?;
            ended += 1;
            match (result, buffer) {
                (Ok(_), Some(buffer)) => land(place * PIECE_BYTES, &buffer),
                (Ok(_), None) => {}
                (Err(error), _) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), |failure| Err(raised(py, &failure)))
    }

    /// Reads bytes in one piece, for use in place.
    pub(crate) fn read_in_place(
        &mut self,
        py: Python<'_>,
        permission: &Permission,
        (offset, length): (u64, usize),
    ) -> PyResult<Completion> {
        permission.check_span(offset, length as u64, Rights::READ).or_raise(py)?;
        let buffer = self.attached.session.buffer(length_of(length)).or_raise(py)?;
        let tag = self.tags(1).start;
        self.attached.operations.add(tag, Access::read(permission.view(), offset, buffer));
        self.attached.post();
        self.take(py, tag)
    }
}

/// Converts a length to the type that buffers use. A length that is too large for the type becomes one that no arena
/// has room for.
pub(crate) fn length_of(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

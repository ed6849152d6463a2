//! The bytes of runs, in the session's arena.
//!
//! A run is one piece if the arena has a free one of that length, and several pieces otherwise. So however the arena is
//! fragmented, it has room for as many pages as it has bytes.

use crate::FarError;
use crate::pages::{RunId, Span};
use portcullis::{ArenaMemory, Buffer, Error, Session};
use portcullis_memory::userfault::PAGE;
use std::collections::HashMap;

/// Pages of the longest piece. One access transfers a piece, and several accesses are in progress at once.
const PIECE_MAX: u32 = 16;
const PAGE_BYTES: u32 = 4096;

const _: () = assert!(PAGE_BYTES as usize == PAGE);

/// Some pages of a run.
#[derive(Debug)]
pub(super) struct Piece {
    /// Index of its first page among the run's pages.
    pub(super) at: u32,
    /// The piece's bytes. `None` while an access is in progress.
    pub(super) buffer: Option<Buffer<ArenaMemory>>,
}

/// The bytes of a run.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) span: Span,
    pub(super) pieces: Vec<Piece>,
    /// Number of accesses that are in progress or wait to be started.
    pub(super) accesses: usize,
}

/// The bytes of all runs.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    runs: HashMap<RunId, Stored>,
}

impl Buffers {
    /// Allocates buffers for a run.
    ///
    /// # Errors
    /// The arena is full.
    pub(super) fn add(&mut self, session: &Session, run: RunId, span: Span) -> Result<&mut Stored, FarError> {
        let mut pieces = Vec::with_capacity(span.count.div_ceil(PIECE_MAX) as usize);
        let mut at = 0;
        let mut most = PIECE_MAX;
        while at < span.count {
            let pages = most.min(span.count - at);
            match session.buffer(pages * PAGE_BYTES) {
                Ok(buffer) => {
                    pieces.push(Piece { at, buffer: Some(buffer) });
                    at += pages;
                }
                Err(Error::ArenaFull { .. }) if pages > 1 => most = pages / 2,
                Err(source) => {
                    return Err(FarError::Node { what: "cannot hold the program's pages", source });
                }
            }
        }
        Ok(self.runs.entry(run).insert_entry(Stored { span, pieces, accesses: 0 }).into_mut())
    }

    pub(super) fn get_mut(&mut self, run: RunId) -> &mut Stored {
        self.runs.get_mut(&run).expect("the run has a buffer")
    }

    /// Returns the bytes of a run's page. `at` is the page's index among the run's pages.
    pub(super) fn page(&self, run: RunId, at: u64) -> Vec<u8> {
        let (piece, offset) = place_of(&self.runs[&run].pieces, at);
        let buffer = piece.buffer.as_ref().expect("nothing is under way with a run that is mapped from");
        buffer.bytes()[offset..offset + PAGE].to_vec()
    }

    /// Writes the bytes of a run's page.
    pub(super) fn write_page(
        &mut self,
        run: RunId,
        at: u64,
        write: impl FnOnce(&mut [u8]) -> Result<(), FarError>,
    ) -> Result<(), FarError> {
        let pieces = &mut self.get_mut(run).pieces;
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        let piece = pieces.iter_mut().rev().find(|piece| piece.at <= at).expect("a run has its pages");
        let offset = (at - piece.at) as usize * PAGE;
        let buffer = piece.buffer.as_mut().expect("the buffer is new");
        write(&mut buffer.bytes_mut()[offset..offset + PAGE])
    }

    pub(super) fn remove(&mut self, run: RunId) {
        let gone = self.runs.remove(&run).expect("the run has a buffer");
        assert_eq!(gone.accesses, 0, "a run that is dropped is not on its way");
    }
}

/// Returns the piece that has a page, and the offset of the page in it.
fn place_of(pieces: &[Piece], at: u64) -> (&Piece, usize) {
    let at = u32::try_from(at).unwrap_or(u32::MAX);
    let piece = pieces.iter().rev().find(|piece| piece.at <= at).expect("a run has its pages");
    (piece, (at - piece.at) as usize * PAGE)
}

//! The chunks that pages are stored in. A segment has one chunk that its pages are written to, and after a fork also
//! older ones: a chunk that a snapshot reads is not written any more.

use super::{Effect, Pages};
use std::collections::HashMap;

/// Identifier of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkId(std::num::NonZeroU64);

#[derive(Clone, Copy, Debug)]
struct Chunk {
    segment: u64,
    is_here: bool,
    /// Number of pages that are stored in the chunk.
    stored: u32,
    /// Number of snapshots that may read the chunk.
    snapshots: u32,
}

/// All chunks, by their identifiers.
#[derive(Debug, Default)]
pub(super) struct ChunkTable {
    chunks: HashMap<ChunkId, Chunk>,
    last: u64,
}

impl ChunkTable {
    fn add(&mut self, segment: u64) -> ChunkId {
        self.last += 1;
        let id = ChunkId(std::num::NonZeroU64::new(self.last).expect("a count from one on"));
        self.chunks.insert(id, Chunk { segment, is_here: false, stored: 0, snapshots: 0 });
        id
    }

    pub(super) fn is_here(&self, id: ChunkId) -> bool {
        self.chunks.get(&id).is_some_and(|chunk| chunk.is_here)
    }

    fn get_mut(&mut self, id: ChunkId) -> &mut Chunk {
        self.chunks.get_mut(&id).expect("the chunk is there")
    }
}

impl Pages {
    /// Returns the chunk that pages of a segment are written to. `None`: it is not allocated yet.
    pub(super) fn chunk_to_write(&mut self, segment: u64) -> Option<ChunkId> {
        match self.table.segment_mut(segment).current {
            Some(id) => self.chunks.is_here(id).then_some(id),
            None => {
                let id = self.chunks.add(segment);
                let it = self.table.segment_mut(segment);
                it.current = Some(id);
                it.chunks.push(id);
                self.effects.push_back(Effect::AllocateChunk(id));
                None
            }
        }
    }

    /// Records the chunk that stores a page's bytes.
    pub(super) fn set_stored(&mut self, page: u64, stored_in: Option<ChunkId>) {
        let was = std::mem::replace(&mut self.table.page_mut(page).stored_in, stored_in);
        if let Some(id) = stored_in {
            self.chunks.get_mut(id).stored += 1;
        }
        if let Some(id) = was {
            let chunk = self.chunks.get_mut(id);
            chunk.stored -= 1;
            self.superfluous.push(chunk.segment);
        }
    }

    /// Records that the chunk was allocated.
    pub fn chunk_allocated(&mut self, id: ChunkId) {
        let chunk = self.chunks.get_mut(id);
        chunk.is_here = true;
        self.superfluous.push(chunk.segment);
    }

    /// Stops writes to a chunk, because a snapshot may read it from here on.
    pub(super) fn freeze(&mut self, id: ChunkId) {
        let chunk = self.chunks.get_mut(id);
        chunk.snapshots += 1;
        let segment = self.table.segment_mut(chunk.segment);
        segment.current = segment.current.filter(|&current| current != id);
    }

    /// Records that a snapshot does not need a chunk any more.
    pub(super) fn thaw(&mut self, id: ChunkId) {
        let chunk = self.chunks.get_mut(id);
        chunk.snapshots -= 1;
        self.superfluous.push(chunk.segment);
        if chunk.snapshots == 0 {
            // The fuller of two chunks is written to, so that the other one empties.
            let (number, stored) = (chunk.segment, chunk.stored);
            let current = self.table.segment_mut(number).current;
            let is_fuller = current.is_none_or(|current| self.chunks.get_mut(current).stored < stored);
            if is_fuller {
                self.table.segment_mut(number).current = Some(id);
            }
        }
    }

    /// Frees the chunks that hold no pages any more.
    pub(super) fn free_chunks(&mut self) {
        for number in std::mem::take(&mut self.superfluous) {
            if !self.table.is_touched(number) {
                continue;
            }
            let segment = self.table.segment_mut(number);
            if segment.runs == 0 {
                let all = std::mem::take(&mut segment.chunks);
                let (empty, used): (Vec<_>, Vec<_>) = all.into_iter().partition(|id| {
                    let chunk = self.chunks.get_mut(*id);
                    chunk.is_here && chunk.stored == 0 && chunk.snapshots == 0
                });
                let segment = self.table.segment_mut(number);
                segment.chunks = used;
                segment.current = segment.current.filter(|current| !empty.contains(current));
                for id in empty {
                    self.chunks.chunks.remove(&id);
                    self.effects.push_back(Effect::FreeChunk(id));
                }
            }
            self.table.forget(number);
        }
    }
}

//! The memory of forked children, in its state at the parent's fork.
//!
//! The kernel shares the pages that were mapped then between parent and child. Pages that were stored on the node are
//! read from there when the child touches them: a chunk that a snapshot reads is not written any more. A child's pages
//! are never taken out.

use super::runs::{Origin, State};
use super::table::{PageState, SEGMENT_PAGES};
use super::{Access, ChunkId, Effect, Pages, RunId, Span};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of pages that a fault of a child maps.
const TOGETHER_MAX: u32 = 16;

/// Identifier of a child's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SnapshotId(u64);

/// An action in a child's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildEffect {
    /// Map pages that a run has, writable, if they are missing.
    Map {
        /// The run.
        run: RunId,
        /// First page of the run's buffer.
        first: u64,
        /// The pages.
        span: Span,
    },
    /// Map zeros if the page is missing, and wake the threads that wait for it.
    Zero(u64),
    /// Lift the protection of a page.
    Allow(u64),
}

/// The pages of a segment that a child has not read yet.
#[derive(Clone, Debug)]
struct Part {
    chunk: ChunkId,
    /// A bit for each page of the segment that is to be read from the chunk.
    pages: [u64; 4],
}

impl Part {
    fn has(&self, page: u64) -> bool {
        let (word, bit) = place_of(page);
        self.pages[word] >> bit & 1 == 1
    }

    fn is_empty(&self) -> bool {
        self.pages == [0; 4]
    }
}

fn place_of(page: u64) -> (usize, u64) {
    let at = page % SEGMENT_PAGES;
    (usize::try_from(at / 64).unwrap_or(0), at % 64)
}

/// A child's memory.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    parts: BTreeMap<u64, Vec<Part>>,
    /// Faults that wait for room among the runs.
    stalled: VecDeque<(u64, Access)>,
}

impl Snapshot {
    fn chunk_of(&self, page: u64) -> Option<ChunkId> {
        let parts = self.parts.get(&(page / SEGMENT_PAGES))?;
        parts.iter().find(|part| part.has(page)).map(|part| part.chunk)
    }

    fn inherit(&mut self, page: u64, chunk: ChunkId) {
        let parts = self.parts.entry(page / SEGMENT_PAGES).or_default();
        let at = parts.iter().position(|part| part.chunk == chunk).unwrap_or_else(|| {
            parts.push(Part { chunk, pages: [0; 4] });
            parts.len() - 1
        });
        let (word, bit) = place_of(page);
        parts[at].pages[word] |= 1 << bit;
    }

    /// Forgets a page. Returns the chunk if this was the last page that the child needed of it.
    fn forget(&mut self, page: u64) -> Option<ChunkId> {
        let segment = page / SEGMENT_PAGES;
        let parts = self.parts.get_mut(&segment)?;
        let at = parts.iter().position(|part| part.has(page))?;
        let (word, bit) = place_of(page);
        parts[at].pages[word] &= !(1 << bit);
        let gone = parts[at].is_empty().then(|| parts.swap_remove(at).chunk);
        if parts.is_empty() {
            self.parts.remove(&segment);
        }
        gone
    }

    fn chunks(&self) -> impl Iterator<Item = ChunkId> {
        self.parts.values().flatten().map(|part| part.chunk)
    }
}

impl Pages {
    /// Whether the place of each page's bytes is known: no bytes are on their way out of the program or to the node.
    /// Only then can the memory be divided by [`Pages::fork`].
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.runs.saving_pages() == 0 && self.under_way.is_none()
    }

    /// Records a fork of the program, or of one of its children. `under_way` is an effect that is not carried out yet.
    ///
    /// # Panics
    /// [`Pages::is_settled`] does not hold.
    pub fn fork(&mut self, parent: Option<SnapshotId>, under_way: Option<Effect>) -> SnapshotId {
        assert!(self.is_settled(), "a fork comes while bytes are on their way");
        let id = SnapshotId(self.next_snapshot);
        self.next_snapshot += 1;
        let snapshot = match parent {
            None => self.divide(id),
            Some(parent) => Snapshot {
                parts: self.snapshots.get(&parent).map(|it| it.parts.clone()).unwrap_or_default(),
                stalled: VecDeque::new(),
            },
        };
        for chunk in snapshot.chunks().collect::<Vec<_>>() {
            self.freeze(chunk);
        }
        // The child misses the pages that are about to be mapped in the parent, because the table marks them as mapped
        // already.
        let not_yet: Vec<_> =
            under_way.iter().chain(&self.effects).filter_map(|effect| effect.mapped_for(parent)).collect();
        for (run, first, span) in not_yet.into_iter().rev() {
            self.effects.push_front(Effect::Child(id, ChildEffect::Map { run, first, span }));
        }
        self.snapshots.insert(id, snapshot);
        id
    }

    /// Determines the pages that a child of the program itself inherits. Pages that only a buffer has are mapped in the
    /// child at once.
    fn divide(&mut self, id: SnapshotId) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut copied = Vec::new();
        for segment in self.table.touched().collect::<Vec<_>>() {
            let from = segment * SEGMENT_PAGES;
            for page in from..(from + SEGMENT_PAGES).min(self.table.len()) {
                let it = self.table.page(page);
                let run = match it.state {
                    PageState::Mapped { .. } => continue,
                    PageState::Absent => None,
                    PageState::Held(run) => Some((run, self.runs.get(run).state)),
                };
                match (run, it.stored_in) {
                    (Some((run, State::Dirty)), _) => {
                        let first = self.runs.get(run).span.first;
                        copied.push(ChildEffect::Map { run, first, span: Span::one(page) });
                    }
                    // The page is still mapped, in both processes.
                    (Some((_, State::TakingOut)), _) | (_, None) => {}
                    (_, Some(chunk)) => snapshot.inherit(page, chunk),
                }
            }
        }
        for effect in copied.into_iter().rev() {
            self.effects.push_front(Effect::Child(id, effect));
        }
        snapshot
    }

    /// Handles a fault of a child: a thread has touched a page that is missing there, or writes to one that is
    /// protected there.
    pub fn child_fault(&mut self, id: SnapshotId, page: u64, access: Access) {
        self.counters.child_faults += 1;
        if !self.serve_child(id, page, access)
            && let Some(snapshot) = self.snapshots.get_mut(&id)
        {
            snapshot.stalled.push_back((page, access));
        }
    }

    fn serve_child(&mut self, id: SnapshotId, page: u64, access: Access) -> bool {
        let Some(snapshot) = self.snapshots.get(&id) else { return true };
        if access == Access::Protected {
            self.effects.push_back(Effect::Child(id, ChildEffect::Allow(page)));
            return true;
        }
        let Some(chunk) = snapshot.chunk_of(page) else {
            self.effects.push_back(Effect::Child(id, ChildEffect::Zero(page)));
            return true;
        };
        let segment = page / SEGMENT_PAGES;
        let mut span = Span::one(page);
        while span.count < TOGETHER_MAX
            && span.end() / SEGMENT_PAGES == segment
            && snapshot.chunk_of(span.end()) == Some(chunk)
        {
            span.count += 1;
        }
        let block = span.count.next_power_of_two();
        if self.runs.loading() + block > self.limits.held / 2 || !self.hold(block, None) {
            return false;
        }
        let run = self.add_run(span, State::Loading, Origin::Inherited(id));
        self.effects.push_back(Effect::Load(run, span, chunk));
        true
    }

    /// Serves the faults of children that waited for room.
    pub(super) fn serve_stalled_children(&mut self) {
        for id in self.snapshots.keys().copied().collect::<Vec<_>>() {
            while let Some((page, access)) = self.snapshots.get_mut(&id).and_then(|it| it.stalled.pop_front())
            {
                if !self.serve_child(id, page, access) {
                    if let Some(it) = self.snapshots.get_mut(&id) {
                        it.stalled.push_front((page, access));
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn has_stalled_children(&self) -> bool {
        self.snapshots.values().any(|it| !it.stalled.is_empty())
    }

    /// Handles the arrival of bytes that a child has requested.
    pub(super) fn loaded_for_child(&mut self, run: RunId, id: SnapshotId) {
        let span = self.runs.get(run).span;
        let mut spans = Vec::new();
        for page in span.pages() {
            // Pages that the child has dropped meanwhile are zeros.
            if self.snapshots.get(&id).is_some_and(|it| it.chunk_of(page).is_some()) {
                Span::join(&mut spans, page);
                self.counters.inherited += 1;
            }
            self.child_has(id, page);
        }
        for part in spans {
            let effect = ChildEffect::Map { run, first: span.first, span: part };
            self.effects.push_back(Effect::Child(id, effect));
        }
        let left = self.runs.get(run).left;
        self.let_go(run, left);
    }

    /// Records that a child has a page, or needs it no more.
    fn child_has(&mut self, id: SnapshotId, page: u64) {
        if let Some(chunk) = self.snapshots.get_mut(&id).and_then(|it| it.forget(page)) {
            self.thaw(chunk);
        }
    }

    /// Records that a child does not need the bytes of pages any more: they are zeros from here on.
    pub fn child_removed(&mut self, id: SnapshotId, span: Span) {
        for page in span.pages() {
            self.child_has(id, page);
        }
    }

    /// Records that a child has ended, or executes another program.
    pub fn child_ended(&mut self, id: SnapshotId) {
        let Some(snapshot) = self.snapshots.remove(&id) else { return };
        for chunk in snapshot.chunks() {
            self.thaw(chunk);
        }
    }
}

//! Runs: neighbouring pages whose bytes are in one buffer.

use super::{ChunkId, SnapshotId, Span, Waiting};
use std::collections::{HashMap, VecDeque};

/// Identifier of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunId(u64);

/// Present use of a run's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The buffer is being read from the node.
    Loading,
    /// The buffer is being filled from mapped pages.
    TakingOut,
    /// The node's bytes of the run's pages are neither newer nor older than the buffer's.
    Clean,
    /// The node does not have the present bytes of the run's pages.
    Dirty,
    /// The buffer is being written to the node.
    Saving,
}

/// Source of a run's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The node, for a fault.
    Fetched,
    /// The node, ahead of any fault.
    Prefetched,
    /// The program's memory, in which the pages were clean or dirty.
    TakenOut { is_dirty: bool },
    /// The node, for a child. The run has no page of the program itself.
    Inherited(SnapshotId),
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) span: Span,
    pub(super) state: State,
    /// Pages that are still in the run.
    pub(super) left: u32,
    /// Source of the run's bytes.
    pub(super) origin: Origin,
    /// The chunk that the run is being written to.
    pub(super) chunk: Option<ChunkId>,
    /// A bit for each page of the run that the program has dropped while the page was taken out.
    pub(super) dropped: u64,
    /// Faults on the run's pages, which wait until pages can be mapped from the run.
    pub(super) waiting: Vec<Waiting>,
}

impl Run {
    /// Number of pages that the run takes: its buffer is a block whose length is a power of two.
    fn block(&self) -> u32 {
        self.span.count.next_power_of_two()
    }
}

/// All runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: HashMap<RunId, Run>,
    next: u64,
    taken: u32,
    /// Pages of `taken` that are being read from the node. They must leave room for pages that are taken out.
    loading: u32,
    /// Runs that were clean, or dirty, at some time, oldest first.
    clean: VecDeque<RunId>,
    dirty: VecDeque<RunId>,
    /// Pages of dirty runs.
    dirty_pages: u32,
    saving_pages: u32,
}

impl Runs {
    pub(super) fn add(&mut self, span: Span, state: State, origin: Origin) -> RunId {
        let id = RunId(self.next);
        self.next += 1;
        let run = Run { span, state, left: span.count, origin, chunk: None, dropped: 0, waiting: Vec::new() };
        self.taken += run.block();
        self.count(state, span.count, run.block(), true);
        self.runs.insert(id, run);
        id
    }

    pub(super) fn get(&self, id: RunId) -> &Run {
        &self.runs[&id]
    }

    pub(super) fn get_mut(&mut self, id: RunId) -> &mut Run {
        self.runs.get_mut(&id).expect("the run is there")
    }

    /// Adds a run to the counters, or removes it from them.
    fn count(&mut self, state: State, pages: u32, block: u32, is_in: bool) {
        let (counter, by) = match state {
            State::Loading => (&mut self.loading, block),
            State::Dirty => (&mut self.dirty_pages, pages),
            State::Saving => (&mut self.saving_pages, pages),
            State::TakingOut | State::Clean => return,
        };
        *counter = if is_in { *counter + by } else { *counter - by };
    }

    pub(super) fn set_state(&mut self, id: RunId, state: State) {
        let run = self.get_mut(id);
        let was = std::mem::replace(&mut run.state, state);
        let (pages, block) = (run.span.count, run.block());
        self.count(was, pages, block, false);
        self.count(state, pages, block, true);
        match state {
            State::Clean => self.clean.push_back(id),
            State::Dirty => self.dirty.push_back(id),
            State::Loading | State::TakingOut | State::Saving => {}
        }
    }

    pub(super) fn remove(&mut self, id: RunId) -> Run {
        let run = self.runs.remove(&id).expect("the run is there");
        self.count(run.state, run.span.count, run.block(), false);
        self.taken -= run.block();
        run
    }

    /// Returns the run that has been clean for longest, other than `keep`.
    pub(super) fn oldest_clean(&mut self, keep: Option<RunId>) -> Option<RunId> {
        let is_clean = |id: &RunId| self.runs.get(id).is_some_and(|run| run.state == State::Clean);
        while self.clean.front().is_some_and(|id| !is_clean(id)) {
            self.clean.pop_front();
        }
        self.clean.iter().copied().find(|id| Some(*id) != keep && is_clean(id))
    }

    /// Takes the run that has been dirty for longest. The caller saves it, or puts it back.
    pub(super) fn take_dirty(&mut self) -> Option<RunId> {
        loop {
            let id = self.dirty.pop_front()?;
            if self.runs.get(&id).is_some_and(|run| run.state == State::Dirty) {
                return Some(id);
            }
        }
    }

    /// Puts back runs of [`Runs::take_dirty`], in this order, before all others.
    pub(super) fn put_back(&mut self, dirty: Vec<RunId>) {
        for id in dirty.into_iter().rev() {
            self.dirty.push_front(id);
        }
    }

    /// Number of pages that all runs take.
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// Number of pages that are taken by runs that are being read from the node.
    pub(super) fn loading(&self) -> u32 {
        self.loading
    }

    /// Number of pages of runs that wait to be written to the node.
    pub(super) fn dirty_pages(&self) -> u32 {
        self.dirty_pages
    }

    pub(super) fn saving_pages(&self) -> u32 {
        self.saving_pages
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.runs.values().any(|run| !run.waiting.is_empty())
    }
}

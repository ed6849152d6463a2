//! Runs: neighbouring pages whose bytes are in one buffer.

use super::{ChunkId, SnapshotId, Span, Waiting};
use std::collections::{HashMap, VecDeque};

/// Names a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunId(u64);

/// What a run's buffer is for at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It is being read from the node.
    Loading,
    /// It is being filled from mapped pages.
    TakingOut,
    /// The node has newer bytes of none of its pages, nor older ones.
    Clean,
    /// The node has none of its pages as they are.
    Dirty,
    /// It is being written to the node.
    Saving,
}

/// Where a run's bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The node, for a fault.
    Fetched,
    /// The node, ahead of any fault.
    Prefetched,
    /// The program's memory, where they were clean or dirty.
    TakenOut { is_dirty: bool },
    /// The node, for a child. No page of the program itself is in it.
    Inherited(SnapshotId),
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) span: Span,
    pub(super) state: State,
    /// Pages that are still in the run.
    pub(super) left: u32,
    /// Where its bytes come from.
    pub(super) origin: Origin,
    /// The chunk that it is being written to.
    pub(super) chunk: Option<ChunkId>,
    /// A bit for each of its pages that the program has dropped while it was taken out.
    pub(super) dropped: u64,
    /// Faults on its pages, which wait until it can be mapped from.
    pub(super) waiting: Vec<Waiting>,
}

impl Run {
    /// Pages that it takes: its buffer is a block whose length is a power of two.
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
    /// Of these, what is being read from the node. It must leave room for what is taken out.
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

    /// Counts a run in, or out.
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

    /// The clean run that has been so for longest, other than `keep`.
    pub(super) fn oldest_clean(&mut self, keep: Option<RunId>) -> Option<RunId> {
        let is_clean = |id: &RunId| self.runs.get(id).is_some_and(|run| run.state == State::Clean);
        while self.clean.front().is_some_and(|id| !is_clean(id)) {
            self.clean.pop_front();
        }
        self.clean.iter().copied().find(|id| Some(*id) != keep && is_clean(id))
    }

    /// Takes the dirty run that has been so for longest. It is to be saved, or put back.
    pub(super) fn take_dirty(&mut self) -> Option<RunId> {
        loop {
            let id = self.dirty.pop_front()?;
            if self.runs.get(&id).is_some_and(|run| run.state == State::Dirty) {
                return Some(id);
            }
        }
    }

    /// Puts back what [`Runs::take_dirty`] has given, in this order, before all others.
    pub(super) fn put_back(&mut self, dirty: Vec<RunId>) {
        for id in dirty.into_iter().rev() {
            self.dirty.push_front(id);
        }
    }

    /// Pages that all runs take.
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// Of these, pages of runs that are being read from the node.
    pub(super) fn loading(&self) -> u32 {
        self.loading
    }

    /// Pages of runs that wait to be written to the node, and of those that are being written.
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

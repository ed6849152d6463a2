//! Records between the node's thread, which never waits, and the thread that writes them.

use super::AuditStatus;
use portcullis_node::AuditRecord;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Records that wait here at the most. Further ones stay in the node's own queue, which counts what it loses.
const RECORDS_MAX: usize = 16_384;
/// How long the writer leaves records to gather after it has written some: waking it costs the node's thread more than a
/// record does.
const GATHER: Duration = Duration::from_millis(2);
/// How long until what did not work is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Where the two threads meet.
#[derive(Debug, Default)]
pub(super) struct Tray {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    records: VecDeque<AuditRecord>,
    orders: Orders,
    /// The writer sleeps until there is something.
    asleep: bool,
    status: AuditStatus,
    /// Records that were handed over.
    handed: u64,
    /// The writer has ended.
    over: bool,
}

/// What the writer is told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    /// The file was renamed: write to the one that is at the path.
    pub reopen: bool,
    /// Nothing comes any more.
    pub close: bool,
}

impl Orders {
    fn any(self) -> bool {
        self.reopen || self.close
    }
}

impl Tray {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn order_reopen(&self) {
        self.state().orders.reopen = true;
        self.news.notify_one();
    }

    pub fn order_close(&self) {
        self.state().orders.close = true;
        self.news.notify_one();
    }

    pub fn status(&self) -> AuditStatus {
        self.state().status.clone()
    }

    pub fn tell<T>(&self, change: impl FnOnce(&mut AuditStatus) -> T) -> T {
        change(&mut self.state().status)
    }

    /// The writer has ended.
    fn end(&self) {
        self.state().over = true;
        self.news.notify_all();
    }

    /// Waits until the writer has ended. False: it has not, and what it has not written counts as lost.
    pub fn wait_for_end(&self, at_most: Duration) -> bool {
        let waited = self.news.wait_timeout_while(self.state(), at_most, |state| !state.over);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !state.over {
            state.status.lost = state.handed.saturating_sub(state.status.written).max(1);
            state.status.failing = Some(format!("a write has not come back for {at_most:?}"));
        }
        state.over
    }

    /// Waits for records, which are put into `records`, or for orders; not for longer than `at_most`.
    pub fn take(&self, records: &mut VecDeque<AuditRecord>, at_most: Option<Duration>) -> Orders {
        let idle = |state: &mut State| {
            let idle = state.records.is_empty() && !state.orders.any();
            state.asleep = idle;
            idle
        };
        let mut state = match at_most {
            None => self.news.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.news.wait_timeout_while(self.state(), time, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.asleep = false;
        std::mem::swap(&mut state.records, records);
        std::mem::take(&mut state.orders)
    }

    /// Takes what is there into `records`.
    pub fn take_rest(&self, records: &mut VecDeque<AuditRecord>) {
        std::mem::swap(&mut self.state().records, records);
    }

    /// Waits for orders until it is time to look for records again.
    pub fn gather(&self) {
        drop(self.wait_for_orders(GATHER));
    }

    /// Waits for orders until it is time to try again what did not work. Records go on waiting.
    pub fn wait_to_retry(&self) -> Orders {
        std::mem::take(&mut self.wait_for_orders(RETRY).orders)
    }

    fn wait_for_orders(&self, at_most: Duration) -> MutexGuard<'_, State> {
        let waited = self.news.wait_timeout_while(self.state(), at_most, |state| !state.orders.any());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Says that the writer has ended, however it does.
#[derive(Debug)]
pub(super) struct WriterEnd(pub Arc<Tray>);

impl Drop for WriterEnd {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Where the node's records go in.
#[derive(Debug)]
pub(crate) struct AuditSink {
    tray: Arc<Tray>,
    /// Taken from the node, and not in the tray yet.
    held: Option<AuditRecord>,
}

impl AuditSink {
    pub(super) fn new(tray: Arc<Tray>) -> Self {
        Self { tray, held: None }
    }

    /// Moves records on while there is room for them. Never waits: returns whether the writer was in the way, so that it
    /// should be called again soon.
    pub fn fill(&mut self, mut next: impl FnMut() -> Option<AuditRecord>) -> bool {
        let Some(first) = self.held.take().or_else(&mut next) else { return false };
        self.held = Some(first);
        let Ok(mut state) = self.tray.state.try_lock() else { return true };
        while state.records.len() < RECORDS_MAX {
            let Some(record) = self.held.take().or_else(&mut next) else { break };
            state.records.push_back(record);
            state.handed += 1;
        }
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.tray.news.notify_one();
        }
        false
    }

    /// Moves the last records on, however many there are.
    pub fn drain(&mut self, next: impl FnMut() -> Option<AuditRecord>) {
        let rest = self.held.take().into_iter().chain(std::iter::from_fn(next));
        let mut state = self.tray.state();
        let before = state.records.len();
        state.records.extend(rest);
        state.handed += (state.records.len() - before) as u64;
    }
}

//! The tray: it passes records from the node's thread, which never waits, to the thread that writes them.

use super::AuditStatus;
use portcullis_node::AuditRecord;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most records that wait in the tray. Further ones stay in the node's own queue, which counts those that it loses.
const RECORDS_MAX: usize = 16_384;
/// Time for which the writer lets records gather after it has written some: waking it costs the node's thread more than
/// a record does.
const GATHER: Duration = Duration::from_millis(2);
/// Time until a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The state that the two threads share.
#[derive(Debug, Default)]
pub(super) struct Tray {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    records: VecDeque<AuditRecord>,
    orders: Orders,
    /// Whether the writer sleeps until there is something to do.
    asleep: bool,
    status: AuditStatus,
    /// Number of records that the node handed over.
    handed: u64,
    /// Whether the writer has ended.
    over: bool,
}

/// Orders to the writer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    /// Whether the file was renamed: the writer is to write to the file that is at the path now.
    pub reopen: bool,
    /// Whether no more records will follow.
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

    /// Marks the writer as ended.
    fn end(&self) {
        self.state().over = true;
        self.news.notify_all();
    }

    /// Waits until the writer has ended. Returns `false` if it has not: the records that it has not written count as
    /// lost.
    pub fn wait_for_end(&self, at_most: Duration) -> bool {
        let waited = self.news.wait_timeout_while(self.state(), at_most, |state| !state.over);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !state.over {
            state.status.lost = state.handed.saturating_sub(state.status.written).max(1);
            state.status.failing = Some(format!("a write has not returned for {at_most:?}"));
        }
        state.over
    }

    /// Waits for records, which are put into `records`, or for orders, for `at_most` at the most.
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

    /// Takes the records in the tray into `records`.
    pub fn take_rest(&self, records: &mut VecDeque<AuditRecord>) {
        std::mem::swap(&mut self.state().records, records);
    }

    /// Waits for orders until it is time to take records again.
    pub fn gather(&self) {
        drop(self.wait_for_orders(GATHER));
    }

    /// Waits for orders until it is time to try a failed write again. Records stay in the tray.
    pub fn wait_to_retry(&self) -> Orders {
        std::mem::take(&mut self.wait_for_orders(RETRY).orders)
    }

    fn wait_for_orders(&self, at_most: Duration) -> MutexGuard<'_, State> {
        let waited = self.news.wait_timeout_while(self.state(), at_most, |state| !state.orders.any());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Marks the writer as ended, however its thread ends.
#[derive(Debug)]
pub(super) struct WriterEnd(pub Arc<Tray>);

impl Drop for WriterEnd {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The node's end of the tray, where it puts its records.
#[derive(Debug)]
pub(crate) struct AuditSink {
    tray: Arc<Tray>,
    /// A record taken from the node that is not yet in the tray.
    held: Option<AuditRecord>,
}

impl AuditSink {
    pub(super) fn new(tray: Arc<Tray>) -> Self {
        Self { tray, held: None }
    }

    /// Moves records from the node into the tray while there is room. Never waits. Returns whether the writer held the
    /// lock, so that this has to be called again soon.
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

    /// Moves the last records into the tray, however many there are.
    pub fn drain(&mut self, next: impl FnMut() -> Option<AuditRecord>) {
        let rest = self.held.take().into_iter().chain(std::iter::from_fn(next));
        let mut state = self.tray.state();
        let before = state.records.len();
        state.records.extend(rest);
        state.handed += (state.records.len() - before) as u64;
    }
}

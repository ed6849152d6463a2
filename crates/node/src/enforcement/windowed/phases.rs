//! One tenant's batches on the queue pairs of its clients.
//!
//! A queue pair executes its requests in order, but several queue pairs do not wait for each other. So a batch has two
//! phases: first its invalidations and then its binds. A phase begins when all requests of the previous phase are
//! finished, in whichever batch. Otherwise a window could be bound over bytes that another client can still reach.

use super::data_queue_pairs::{DataQueuePairs, Posting, WindowRequest};
use portcullis_nic::{Nic, Operation, QpId};
use std::collections::{BTreeMap, VecDeque};

/// Requests that may be executed in any order, by queue pair.
#[derive(Debug)]
struct Phase<Unit> {
    binds: bool,
    waiting: BTreeMap<QpId, VecDeque<WindowRequest<Unit>>>,
    under_way: usize,
    /// Whether it is the last phase of its batch.
    ends_batch: bool,
}

/// The phases. The first is under way.
#[derive(Debug)]
pub struct Phases<Unit>(VecDeque<Phase<Unit>>);

impl<Unit> Default for Phases<Unit> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<Unit: Copy + PartialEq> Phases<Unit> {
    /// Adds a request to the open batch.
    pub fn put(&mut self, request: WindowRequest<Unit>) {
        let binds = matches!(request.operation, Operation::BindWindow(_));
        let is_open = |phase: &Phase<Unit>| !phase.ends_batch && phase.binds == binds;
        if !self.0.back().is_some_and(is_open) {
            let waiting = BTreeMap::new();
            self.0.push_back(Phase { binds, waiting, under_way: 0, ends_batch: false });
        }
        let phase = self.0.back_mut().expect("there is one");
        phase.waiting.entry(request.qp).or_default().push_back(request);
    }

    /// Closes the open batch.
    pub fn close_batch(&mut self) {
        self.0.back_mut().expect("a batch has requests").ends_batch = true;
    }

    /// Handles the end of a request of the first phase.
    pub fn complete(&mut self) {
        let phase = self.0.front_mut().expect("a completed request was posted for a phase");
        phase.under_way -= 1;
    }

    /// Posts the requests that can be posted now. Returns the number of batches that are done, and puts windows into
    /// `closing` that have to be deallocated because they cannot be invalidated.
    pub fn post(
        &mut self,
        nic: &mut impl Nic,
        data_queue_pairs: &mut DataQueuePairs<Unit>,
        closing: &mut Vec<WindowRequest<Unit>>,
    ) -> usize {
        let mut done = 0;
        while let Some(phase) = self.0.front_mut() {
            phase.waiting.retain(|_, waiting| {
                while let Some(&request) = waiting.front() {
                    match data_queue_pairs.post(nic, request) {
                        Posting::Posted => phase.under_way += 1,
                        Posting::Later => break,
                        Posting::Skipped => {}
                        Posting::Closes => closing.push(request),
                    }
                    waiting.pop_front();
                }
                !waiting.is_empty()
            });
            if !phase.waiting.is_empty() || phase.under_way > 0 {
                break;
            }
            done += usize::from(phase.ends_batch);
            self.0.pop_front();
        }
        done
    }

    /// Forgets all batches.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

//! The client's end of a port's completion queues, in the order in which a client may take completions.

use super::layout::{CompletionRing, PortLayout};
use crate::core::{CompletionPoller, Ring};
use portcullis_memory::Mapping;
use portcullis_nic::Completion;

/// The client's end of a port's completion queues.
///
/// An engine of the node may post to the queue of the data queue pairs while the NIC's thread posts to the other. The client
/// takes a message only after all completions of data queue pairs that were posted before it.
#[derive(Debug)]
pub(super) struct PortCompletions {
    data: CompletionPoller<Mapping>,
    others: CompletionPoller<Mapping>,
    /// Number of entries of the queue of the data queue pairs.
    depth: u32,
    /// Number of completions of data queue pairs that were taken since the other queue was looked at.
    taken_since: u32,
    /// Whether the other queue had an entry then, behind at most `depth` completions of data queue pairs.
    is_due: bool,
}

impl PortCompletions {
    pub fn new(memory: &Mapping, layout: &PortLayout) -> Self {
        let poller = |CompletionRing { offset, depth, cell }| {
            CompletionPoller::new(Ring::new(memory.clone(), offset, depth), cell)
        };
        let (data, others) = (layout.data_completions(), layout.completions());
        let depth = data.depth;
        Self { data: poller(data), others: poller(others), depth, taken_since: 0, is_due: false }
    }

    /// Whether a completion waits.
    pub fn waiting(&self) -> bool {
        self.data.waiting() || self.others.waiting()
    }

    /// Takes the next completion and, for send queues, the lower half of the number of requests that the NIC has taken.
    #[inline]
    pub fn take(&mut self) -> Option<(Completion, u32)> {
        if self.taken_since >= self.depth
            && let Some(other) = self.take_due()
        {
            return Some(other);
        }
        match self.data.take() {
            Some(completion) => {
                self.taken_since += 1;
                Some(completion)
            }
            None => self.take_other(),
        }
    }

    /// Takes an entry of the other queue that all completions of data queue pairs before it have passed. A node that completes
    /// as fast as the client polls keeps no message from the client.
    #[cold]
    fn take_due(&mut self) -> Option<(Completion, u32)> {
        self.taken_since = 0;
        let due = if self.is_due { self.others.take() } else { None };
        // The entry behind it may have come only now, with completions of data queue pairs before it.
        self.is_due = self.others.waiting();
        due
    }

    #[inline]
    fn take_other(&mut self) -> Option<(Completion, u32)> {
        (self.taken_since, self.is_due) = (0, false);
        if !self.others.waiting() {
            return None;
        }
        // One of a data queue pair may have arrived since the first check, and before the message.
        self.data.take().or_else(|| self.others.take())
    }

    /// Publishes to the node the numbers of completions that were polled.
    pub fn publish(&self) {
        self.data.publish();
        self.others.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CompletionPoster;
    use portcullis_nic::{CompletionKind, EndpointSize, QpId, Status};

    /// Both queues of a port, with room for two completions of data queue pairs.
    struct Queues {
        client: PortCompletions,
        data: CompletionPoster<Mapping>,
        others: CompletionPoster<Mapping>,
        posted: u64,
    }

    impl Queues {
        fn new() -> Self {
            let size = EndpointSize {
                chunk_queue_pairs: 0,
                data_queue_pairs: 1,
                send_depth: 2,
                control_depth: 1,
                message_bytes: 128,
                arena_bytes: 256,
            };
            let layout = PortLayout::new(size);
            let memory = Mapping::private(layout.bytes()).expect("memory");
            let poster = |CompletionRing { offset, depth, cell }| {
                CompletionPoster::new(Ring::new(memory.clone(), offset, depth), cell)
            };
            let (data, others) = (poster(layout.data_completions()), poster(layout.completions()));
            Self { client: PortCompletions::new(&memory, &layout), data, others, posted: 0 }
        }

        fn post(&mut self, is_message: bool) {
            self.posted += 1;
            let kind = CompletionKind::Send;
            let completion =
                Completion { request: self.posted, queue_pair: QpId(0), status: Status::Success, kind };
            let poster = if is_message { &mut self.others } else { &mut self.data };
            assert!(poster.has_room(1), "the queue has room");
            poster.post(&completion, self.posted);
        }

        /// Number of completions of data queue pairs that were posted before this one and are not taken.
        fn older_than(&self, message: u64) -> usize {
            let mut client = self.client.data.clone();
            std::iter::from_fn(|| client.take()).filter(|(it, _)| it.request < message).count()
        }

        /// Takes a completion and returns its place in the order in which all were posted.
        fn take(&mut self) -> Option<u64> {
            let taken = self.client.take().map(|(completion, _)| completion.request);
            self.client.publish();
            taken
        }
    }

    #[test]
    fn a_message_is_taken_after_the_completions_before_it_and_is_not_kept_back_by_those_behind_it() {
        for period in 6..16 {
            let mut queues = Queues::new();
            let mut waiting = Vec::new();
            // The node always completes something before the client finds the queue of the data queue pairs empty.
            queues.post(false);
            for step in 0..200 {
                if step % period == 0 {
                    queues.post(true);
                    waiting.push(queues.posted);
                }
                queues.post(false);
                let mut taken = queues.take().expect("there is one");
                if waiting.first() == Some(&taken) {
                    let older = queues.older_than(taken);
                    assert_eq!(
                        older, 0,
                        "{period}, {step}: completions before message {taken} are not taken"
                    );
                    waiting.remove(0);
                    taken = queues.take().expect("there is one");
                }
                assert!(!waiting.contains(&taken), "messages keep their order");
                assert!(waiting.len() <= 1, "{period}, {step}: {waiting:?} wait");
            }
        }
    }
}

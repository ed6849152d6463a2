//! The carrier of mechanism `region-key`: each access is a separate encrypted operation, without a queue pair (1RMA).
//!
//! Such operations have no order among each other. A caller that needs an order sets a fence: operations behind the
//! fence begin when all operations before it have ended.

use crate::access::Action;
use crate::carrier::{Carrier, LINKS_NOTHING, Link, Outgoing, Posting};
use crate::{ClientConfig, Error};
use portcullis_nic::{
    Completion, EndpointQueue, OneShotOperations, OneShotRequest, OneShotVerb, QpId, Status, VerbsEndpoint,
};
use portcullis_planted::planted;
use portcullis_protocol::{Credential, Moment};
use std::collections::VecDeque;

/// The queue of the operations in completions.
const ONE_SHOT: QpId = EndpointQueue::OneShot.label();

/// Largest number of operations that are posted together.
const TOGETHER_MAX: usize = 32;

/// An operation that has not begun.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: OneShotRequest,
    /// Whether the operation waits for all before it.
    is_fenced: bool,
}

/// The operations that travel without queue pairs.
#[derive(Debug)]
pub(crate) struct OneShots {
    config: ClientConfig,
    waiting: VecDeque<Waiting>,
    /// Operations of a batch that is being collected.
    staged: Vec<Waiting>,
    /// Requests that are being posted together.
    together: Vec<OneShotRequest>,
    /// Operations that have begun and not ended.
    under_way: usize,
    /// Whether the next operation waits for all before it.
    fence: bool,
}

impl<E: VerbsEndpoint> Carrier<E> for OneShots {
    fn take_in(&mut self, link: &mut Link<E>, begun: Outgoing<'_>, posting: Posting) -> Result<(), Error> {
        let Outgoing { operation, local, access } = begun;
        let Credential::RegionKey { region, key } = *access.credential else {
            unreachable!("other accesses go another way")
        };
        let Some(is_staged) = posting.is_staged() else { return Err(LINKS_NOTHING) };
        let staged = if is_staged { self.staged.len() } else { 0 };
        if self.waiting.len() + staged >= self.config.backlog_max {
            return Err(self.config.backlog_full());
        }
        let verb = match access.action {
            Action::Read => OneShotVerb::Read,
            Action::Write => {
                OneShotVerb::Write { may_repeat: access.is_exclusive || planted!(UncertainWriteRepeated) }
            }
            Action::CompareAndSwap { compare, swap } => OneShotVerb::CompareAndSwap { compare, swap },
            Action::FetchAndAdd { add } => OneShotVerb::FetchAndAdd { add },
        };
        let request = OneShotRequest { id: operation, region, key, address: access.address(), local, verb };
        let waiting = Waiting { request, is_fenced: std::mem::take(&mut self.fence) };
        if is_staged {
            self.staged.push(waiting);
        } else {
            self.waiting.push_back(waiting);
            self.begin_waiting(link);
        }
        Ok(())
    }

    fn send_staged(&mut self, link: &mut Link<E>) {
        self.waiting.extend(self.staged.drain(..));
        self.begin_waiting(link);
    }

    fn cancel_staged(&mut self, link: &mut Link<E>) {
        self.fence = false;
        for waiting in self.staged.drain(..) {
            link.operations.cancel(waiting.request.id);
        }
    }

    fn is_backed_up(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn pump(&mut self, link: &mut Link<E>, now: Moment) {
        self.give_up_expired(link, now);
        self.begin_waiting(link);
    }

    fn clear(&mut self) {
        self.staged.clear();
        self.waiting.clear();
        self.under_way = 0;
        self.fence = false;
    }
}

/// Returns how many of the first waiting operations may begin at once, up to `most`.
fn count_together(waiting: &VecDeque<Waiting>, under_way: usize, most: usize) -> usize {
    let mut before = under_way;
    let begin = waiting.iter().take(most).take_while(|next| {
        let may_begin = !next.is_fenced || before == 0;
        before += 1;
        may_begin
    });
    begin.count()
}

impl OneShots {
    /// Makes the carrier, if the endpoint has operations without queue pairs.
    pub(crate) fn new(endpoint: &mut impl VerbsEndpoint, config: ClientConfig) -> Option<Self> {
        endpoint.one_shots()?;
        Some(Self {
            config,
            waiting: VecDeque::new(),
            staged: Vec::new(),
            together: Vec::new(),
            under_way: 0,
            fence: false,
        })
    }

    /// Makes the next operation wait for all before it.
    pub(crate) fn fence(&mut self) {
        self.fence = true;
    }

    /// Begins as many waiting operations as there is room for, up to a fence.
    fn begin_waiting<E: VerbsEndpoint>(&mut self, link: &mut Link<E>) {
        // The first operation shows whether there is room at all. Often there is none.
        let mut most = 1;
        loop {
            let count = count_together(&self.waiting, self.under_way, most);
            if count == 0 {
                return;
            }
            self.together.clear();
            self.together.extend(self.waiting.iter().take(count).map(|next| next.request));
            let mut operations = link.endpoint.one_shots().expect("the endpoint of this carrier has them");
            let begun = operations.post_one_shot(&self.together);
            self.waiting.drain(..begun);
            self.under_way += begun;
            if begun < count {
                return;
            }
            most = TOGETHER_MAX;
        }
    }

    /// Ends an operation that was carried out. Returns `false` for the completion of another carrier, and for one that
    /// [`Client::judge`](crate::Client::judge) has to handle.
    #[inline]
    pub(crate) fn succeeded<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        completion: &Completion,
    ) -> bool {
        if completion.queue_pair != ONE_SHOT || completion.status != Status::Success {
            return false;
        }
        self.under_way = self.under_way.saturating_sub(1);
        link.operations.succeed(completion.request);
        true
    }

    /// Ends an operation that was not carried out.
    pub(crate) fn failed<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        now: Moment,
        completion: &Completion,
    ) {
        self.under_way = self.under_way.saturating_sub(1);
        link.operations.fail(completion.request, now, completion.status);
    }

    /// Ends waiting operations whose permission has expired meanwhile: the node would refuse them.
    fn give_up_expired<E: VerbsEndpoint>(&mut self, link: &mut Link<E>, now: Moment) {
        self.waiting.retain(|waiting| {
            let has_expired = link.operations.has_expired(waiting.request.id, now);
            if has_expired {
                link.operations.finish(waiting.request.id, Err(Error::Expired));
            }
            !has_expired
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_nic::{Lkey, LocalSpan};
    use portcullis_protocol::{HolderKey, RegionName, RemoteAddress};
    use proptest::prelude::*;

    fn waiting(fences: &[bool]) -> VecDeque<Waiting> {
        let local = LocalSpan { address: 0, length: 8, lkey: Lkey(0) };
        let request = |id| OneShotRequest {
            id,
            region: RegionName { index: 0, generation: 0 },
            key: HolderKey([0; 32]),
            address: RemoteAddress(0),
            local,
            verb: OneShotVerb::Read,
        };
        (0..).zip(fences).map(|(id, &is_fenced)| Waiting { request: request(id), is_fenced }).collect()
    }

    proptest! {
        #[test]
        fn an_operation_behind_a_fence_begins_when_all_before_it_have_ended(
            fences in prop::collection::vec(prop::bool::weighted(0.1), 0..80),
            under_way in 0usize..3,
        ) {
            let count = count_together(&waiting(&fences), under_way, TOGETHER_MAX);
            for (place, _) in fences.iter().enumerate().take(count).filter(|(_, is_fenced)| **is_fenced) {
                prop_assert_eq!(place + under_way, 0);
            }
            let stops = count == TOGETHER_MAX || count == fences.len() || fences[count];
            prop_assert!(stops, "{} of {} begin", count, fences.len());
        }
    }
}

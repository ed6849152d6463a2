//! Requests that nodes have taken in and not answered: what each reply is to, and how late it is.

use super::SessionId;
use super::permission::overlaps;
use portcullis_protocol::{Lifetime, Moment, Part, Request, RequestBody, Sharing};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// How long a node may take beyond what a request agreed to wait: parked requests wait for lingering windows and for
/// scrubs, rebuilds for those before them.
const SLACK: Lifetime = Lifetime::millis(60);
/// How long an answer may wait for its client to take it, so that its request seems to wait.
const ANSWER_ON_ITS_WAY: Lifetime = Lifetime::millis(4);
/// How long it may take over what needs nobody else's end.
const SOON: Lifetime = Lifetime::millis(25);

/// Which bytes of a node's memory a request wants of the object at `address`, if it wants that one, and how.
pub(super) fn wanted_of(body: &RequestBody, address: u64) -> Option<(Range<u64>, Sharing)> {
    let RequestBody::Acquire { object, part, sharing, .. } = body else { return None };
    (object.address().0 == address).then(|| (part_of(address, *part), *sharing))
}

/// The bytes of a node's memory that a part of the object at `address` means; without a length, all that follow.
pub(super) fn part_of(address: u64, part: Part) -> Range<u64> {
    let from = address.saturating_add(part.offset);
    let end = if part.length == 0 { u64::MAX } else { from.saturating_add(part.length) };
    from..end
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub body: RequestBody,
    /// When the node's NIC had it, on the node's clock.
    pub at: Moment,
    /// How long the node stood still since.
    pub stood_still: Lifetime,
    /// By when the answer must have left.
    due: Moment,
}

/// The unanswered requests to one node.
#[derive(Debug, Default)]
pub(super) struct Requests {
    asked: HashMap<(SessionId, u32), VecDeque<Asked>>,
}

impl Requests {
    /// A request has come.
    pub fn came(&mut self, session: SessionId, request: &Request, now: Moment, longest: Lifetime) {
        let wait = match request.body {
            RequestBody::Acquire { wait, .. } => Lifetime(wait.min(longest).0 + SLACK.0),
            RequestBody::Extend { .. } | RequestBody::Free { .. } | RequestBody::Revoke { .. } => SOON,
            _ => SLACK,
        };
        let due = now.after(wait);
        let asked = Asked { body: request.body, at: now, stood_still: Lifetime(0), due };
        self.asked.entry((session, request.sequence)).or_default().push_back(asked);
    }

    /// A reply goes out: to which request?
    pub fn answered(&mut self, session: SessionId, sequence: u32) -> Option<Asked> {
        let queue = self.asked.get_mut(&(session, sequence))?;
        let asked = queue.pop_front();
        if queue.is_empty() {
            self.asked.remove(&(session, sequence));
        }
        asked
    }

    /// A session is over: nobody waits for its answers.
    pub fn forget(&mut self, session: SessionId) {
        self.asked.retain(|&(its, _), _| its != session);
    }

    /// The node stood still for so long, or its clock jumped: nothing could be answered meanwhile.
    pub fn stood_still(&mut self, time: Lifetime) {
        for asked in self.asked.values_mut().flatten() {
            asked.due = asked.due.after(time);
            asked.stood_still.0 += time.0;
        }
    }

    /// Whether somebody has asked for these bytes of the object at `address` and has no answer.
    pub fn wanted(&self, address: u64, bytes: &Range<u64>) -> bool {
        let wants = |asked: &Asked| {
            wanted_of(&asked.body, address).is_some_and(|(wanted, _)| overlaps(&wanted, bytes))
        };
        self.asked.values().flatten().any(wants)
    }

    /// Who asked for these bytes of the object at `address` well before `at`, cannot hold them beside `by`, and has no
    /// answer.
    pub fn overtaken(&self, address: u64, bytes: &Range<u64>, at: Moment, by: Sharing) -> Option<SessionId> {
        let waits = |asked: &Asked| {
            wanted_of(&asked.body, address).is_some_and(|(wanted, sharing)| {
                let beside = by == Sharing::Shared && sharing == Sharing::Shared;
                !beside && overlaps(&wanted, bytes) && asked.at.after(ANSWER_ON_ITS_WAY) < at
            })
        };
        self.asked.iter().filter(|(_, queue)| queue.iter().any(waits)).map(|(key, _)| key.0).min()
    }

    /// A request whose answer is too late.
    pub fn overdue(&self, now: Moment) -> Option<(SessionId, Asked)> {
        let late = self.asked.iter().filter(|(_, queue)| queue.iter().any(|asked| asked.due < now));
        let first = late.min_by_key(|(key, _)| **key)?;
        first.1.front().map(|asked| (first.0.0, *asked))
    }

    /// Unanswered requests.
    pub fn len(&self) -> usize {
        self.asked.values().map(VecDeque::len).sum()
    }
}

//! Requests that nodes have taken in and not answered: what each reply is to, and how late it is.

use super::SessionId;
use portcullis_protocol::{Lifetime, Moment, Request, RequestBody};
use std::collections::{HashMap, VecDeque};

/// How long a node may take beyond what a request agreed to wait: parked requests wait for lingering windows and for
/// scrubs, rebuilds for those before them.
const SLACK: Lifetime = Lifetime::millis(60);

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
            RequestBody::Acquire { wait, .. } => wait.min(longest),
            _ => Lifetime(0),
        };
        let due = now.after(Lifetime(wait.0 + SLACK.0));
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

//! Requests that nodes have taken in and not answered: what each reply is to, and how late it is.

use super::SessionId;
use super::permission::overlaps;
use portcullis_protocol::{
    Lifetime, MESSAGE_BYTES, Moment, Part, Refusal, ReplyBody, Request, RequestBody, Sharing,
};
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
pub(super) fn wanted_of(body: Option<&RequestBody>, address: u64) -> Option<(Range<u64>, Sharing)> {
    let Some(RequestBody::Acquire { object, part, sharing, .. }) = body else { return None };
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
    /// None: the message meant nothing.
    pub body: Option<RequestBody>,
    /// When the node's NIC had it, on the node's clock.
    pub at: Moment,
    /// How long the node stood still since.
    pub stood_still: Lifetime,
    /// By when the answer must have left.
    due: Moment,
}

impl Asked {
    fn allocates(&self) -> bool {
        matches!(self.body, Some(RequestBody::Allocate { .. }))
    }
}

/// The unanswered requests to one node.
#[derive(Debug, Default)]
pub(super) struct Requests {
    asked: HashMap<(SessionId, u32), VecDeque<Asked>>,
    /// A session ended before it had the answer to an allocation.
    lost_allocation: bool,
}

impl Requests {
    /// A message has come: a request, or nonsense, which is answered too.
    pub fn came(&mut self, session: SessionId, message: &[u8], now: Moment, longest: Lifetime) {
        let request = message.first_chunk::<MESSAGE_BYTES>().map(|head| Request::decode(*head));
        let (sequence, body) = match request {
            Some(Ok(request)) => (request.sequence, Some(request.body)),
            Some(Err(_)) => (u32::from_le_bytes([message[4], message[5], message[6], message[7]]), None),
            // What is too short has no number.
            None => (0, None),
        };
        let wait = match body {
            Some(RequestBody::Acquire { wait, .. }) => Lifetime(wait.min(longest).0 + SLACK.0),
            Some(RequestBody::Extend { .. } | RequestBody::Free { .. } | RequestBody::Revoke { .. }) => SOON,
            _ => SLACK,
        };
        let asked = Asked { body, at: now, stood_still: Lifetime(0), due: now.after(wait) };
        self.asked.entry((session, sequence)).or_default().push_back(asked);
    }

    /// A reply goes out: to which request? Nonsense is answered at once, and bears a number that a request which waits
    /// may have as well. So, of several with one number, it is to nonsense if it can be, or to the first that it fits.
    pub fn answered(&mut self, session: SessionId, sequence: u32, reply: &ReplyBody) -> Option<Asked> {
        let queue = self.asked.get_mut(&(session, sequence))?;
        let fits = |asked: &&Asked| answers(reply, asked.body.as_ref());
        let meant = queue.iter().position(|asked| asked.body.is_none() && fits(&asked));
        let asked = queue.remove(meant.or_else(|| queue.iter().position(|asked| fits(&asked)))?);
        if queue.is_empty() {
            self.asked.remove(&(session, sequence));
        }
        asked
    }

    /// A session is over: nobody waits for its answers.
    pub fn forget(&mut self, session: SessionId) {
        let mut its = self.asked.iter().filter(|(key, _)| key.0 == session);
        self.lost_allocation |= its.any(|(_, queue)| queue.iter().any(Asked::allocates));
        self.asked.retain(|&(its, _), _| its != session);
    }

    /// Whether there may be objects of which no answer has told.
    pub fn may_have_allocated(&self) -> bool {
        self.lost_allocation || self.asked.values().flatten().any(Asked::allocates)
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
            wanted_of(asked.body.as_ref(), address).is_some_and(|(wanted, _)| overlaps(&wanted, bytes))
        };
        self.asked.values().flatten().any(wants)
    }

    /// Who asked for these bytes of the object at `address` well before `at`, cannot hold them beside `by`, and has no
    /// answer `now`, though the time that the request may wait for is not over: where it is, the refusal and the grant that
    /// it makes way for are posted in the same turn, and leave in any order.
    pub fn overtaken(
        &self,
        address: u64,
        bytes: &Range<u64>,
        (at, now): (Moment, Moment),
        by: Sharing,
    ) -> Option<SessionId> {
        let waits = |asked: &Asked| {
            wanted_of(asked.body.as_ref(), address).is_some_and(|(wanted, sharing)| {
                let beside = by == Sharing::Shared && sharing == Sharing::Shared;
                let may_wait = now.after(SLACK) < asked.due;
                !beside && may_wait && overlaps(&wanted, bytes) && asked.at.after(ANSWER_ON_ITS_WAY) < at
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

/// Whether a reply can be the answer to a request; none: to a message that meant nothing.
fn answers(reply: &ReplyBody, asked: Option<&RequestBody>) -> bool {
    use RequestBody::{
        Acquire, Allocate, CompareAndSwap, Extend, FetchAndAdd, Free, Read, Recover, Revoke, Write,
    };
    let may_be_nonsense = |of: &RequestBody| {
        matches!(of, Recover { .. } | Read { .. } | Write { .. } | CompareAndSwap { .. } | FetchAndAdd { .. })
    };
    match (reply, asked) {
        (ReplyBody::Refused(Refusal::Malformed), asked) => asked.is_none_or(may_be_nonsense),
        (_, None) => false,
        (ReplyBody::Refused(_), Some(_)) => true,
        (ReplyBody::Granted(_), Some(of)) => matches!(of, Allocate { .. } | Acquire { .. }),
        (ReplyBody::Extended(_), Some(of)) => matches!(of, Extend { .. }),
        (ReplyBody::Done, Some(of)) => {
            matches!(of, Revoke { .. } | Free { .. } | Recover { .. } | Write { .. })
        }
        (ReplyBody::Data(_), Some(of)) => matches!(of, Read { .. }),
        (ReplyBody::Value(_), Some(of)) => matches!(of, CompareAndSwap { .. } | FetchAndAdd { .. }),
    }
}

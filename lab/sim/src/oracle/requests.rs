//! Requests that nodes have not answered: the request of each reply, and the overdue requests.

use super::SessionId;
use super::permission::overlaps;
use portcullis_protocol::{
    Acquire, CopyRequest, GrantRequest, Holders, Lifetime, MESSAGE_BYTES, Moment, NamedRequest, Part,
    QueuePairRequest, Refusal, ReplyBody, Request, RequestBody, Sharing,
};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// How long a node may take beyond the wait that a request specifies. Parked requests wait for lingering windows and
/// for scrubs, and rebuilds wait for earlier ones.
const SLACK: Lifetime = Lifetime::millis(60);
/// How long an answer may wait until its client takes it. Meanwhile its request seems to wait.
const ANSWER_ON_ITS_WAY: Lifetime = Lifetime::millis(4);
/// How long a node may take for requests that depend on no other permission's end.
const SOON: Lifetime = Lifetime::millis(25);

/// Returns the bytes of the node's memory that a request wants, and how, if it requests the object at `address`.
pub(super) fn wanted_of(body: Option<&RequestBody>, address: u64) -> Option<(Range<u64>, Sharing)> {
    let Some(RequestBody::Grant(GrantRequest::Acquire(Acquire { object, part, sharing, .. }))) = body else {
        return None;
    };
    (object.address().0 == address).then(|| (part_of(address, *part), *sharing))
}

/// Returns the bytes of the node's memory in a part of the object at `address`. A part without a length has no end.
pub(super) fn part_of(address: u64, part: Part) -> Range<u64> {
    let from = address.saturating_add(part.offset);
    let end = if part.length == 0 { u64::MAX } else { from.saturating_add(part.length) };
    from..end
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// `None`: the message was malformed.
    pub body: Option<RequestBody>,
    /// Time at which the request reached the node's NIC, on the node's clock.
    pub at: Moment,
    /// How long the node has stood still since then.
    pub stood_still: Lifetime,
    /// Time by which the answer must have left.
    due: Moment,
    /// The session whose grant may have overtaken the request, and the time at which the grant left.
    overtaken: Option<(SessionId, Moment)>,
}

impl Asked {
    /// Creates a request whose answer may take its time.
    #[cfg(test)]
    pub fn new(body: Option<RequestBody>, at: Moment) -> Self {
        Self { body, at, stood_still: Lifetime(0), due: at.after(SLACK), overtaken: None }
    }

    /// Returns the session whose grant has overtaken the request, which is answered now. A request that the node could not
    /// grant for want of room, and whose refusal only left later than the grant, was overtaken by none.
    pub fn overtook(&self, reply: &ReplyBody, now: Moment) -> Option<SessionId> {
        let (by, at) = self.overtaken?;
        let had_no_room = matches!(reply, ReplyBody::Refused(refusal) if *refusal != Refusal::Conflict);
        let is_late = at.after(ANSWER_ON_ITS_WAY).after(self.stood_still) < now;
        (!had_no_room || is_late).then_some(by)
    }

    fn allocates(&self) -> bool {
        matches!(
            self.body,
            Some(
                RequestBody::Grant(GrantRequest::Allocate(_))
                    | RequestBody::Grant(GrantRequest::AllocateChunk)
            )
        )
    }
}

/// The unanswered requests to one node.
#[derive(Debug, Default)]
pub(super) struct Requests {
    asked: HashMap<(SessionId, u32), VecDeque<Asked>>,
    /// Whether a session ended before it had the answer to an allocation.
    lost_allocation: bool,
    /// The latest time until which the node stands still.
    still_until: Moment,
}

impl Requests {
    /// Records a message that cannot be taken apart. It has no number, and is answered as well.
    pub fn came_cut(&mut self, session: SessionId, now: Moment) {
        self.expect_answer((session, 0), None, SLACK, now);
    }

    /// Records a message. A malformed message is answered as well.
    pub fn came(&mut self, session: SessionId, message: [u8; MESSAGE_BYTES], now: Moment, longest: Lifetime) {
        let (sequence, body) = match Request::decode(message) {
            Ok(request) => (request.sequence, Some(request.body)),
            Err(_) => (u32::from_le_bytes([message[4], message[5], message[6], message[7]]), None),
        };
        let wait = match body {
            Some(RequestBody::Grant(GrantRequest::Acquire(Acquire { wait, .. }))) => {
                Lifetime(wait.min(longest).0 + SLACK.0)
            }
            Some(
                RequestBody::Grant(GrantRequest::Extend { .. })
                | RequestBody::Grant(GrantRequest::Free { holders: Holders::Stay, .. })
                | RequestBody::Grant(GrantRequest::Keep { .. })
                | RequestBody::Grant(GrantRequest::Revoke { .. })
                | RequestBody::Named(NamedRequest::Publish { .. })
                | RequestBody::Named(NamedRequest::Lookup { .. })
                | RequestBody::Named(NamedRequest::List { .. })
                | RequestBody::Named(NamedRequest::Share { .. })
                | RequestBody::Grant(GrantRequest::Include { .. }),
            ) => SOON,
            // The object's holders may extend what they hold for as long as they like.
            Some(RequestBody::Grant(GrantRequest::Free { holders: Holders::Await, .. })) => {
                Lifetime(u64::MAX / 2)
            }
            _ => SLACK,
        };
        self.expect_answer((session, sequence), body, wait, now);
    }

    fn expect_answer(
        &mut self,
        number: (SessionId, u32),
        body: Option<RequestBody>,
        wait: Lifetime,
        now: Moment,
    ) {
        let still = self.still_until.since(now);
        let due = now.after(wait).after(still);
        let asked = Asked { body, at: now, stood_still: still, due, overtaken: None };
        self.asked.entry(number).or_default().push_back(asked);
    }

    /// Finds the request of a reply. Malformed messages are answered at once, and may have the number of a waiting
    /// request. So, of several with one number, the reply is to a malformed one if possible, or else to the first that
    /// it fits.
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

    /// Records that a session is over. Its requests will not be answered.
    pub fn forget(&mut self, session: SessionId) {
        let mut its = self.asked.iter().filter(|(key, _)| key.0 == session);
        self.lost_allocation |= its.any(|(_, queue)| queue.iter().any(Asked::allocates));
        self.asked.retain(|&(its, _), _| its != session);
    }

    /// Whether there may be objects that no answer has reported.
    pub fn may_have_allocated(&self) -> bool {
        self.lost_allocation || self.asked.values().flatten().any(Asked::allocates)
    }

    /// Records that the node stands still for this time from `now` on, or that its clock jumped: it cannot answer
    /// meanwhile.
    pub fn stood_still(&mut self, time: Lifetime, now: Moment) {
        self.still_until = self.still_until.max(now.after(time));
        for asked in self.asked.values_mut().flatten() {
            asked.due = asked.due.after(time);
            asked.stood_still.0 += time.0;
        }
    }

    /// Whether any client waits for these bytes of the object at `address`.
    pub fn wanted(&self, address: u64, bytes: &Range<u64>) -> bool {
        let wants = |asked: &Asked| {
            wanted_of(asked.body.as_ref(), address).is_some_and(|(wanted, _)| overlaps(&wanted, bytes))
        };
        self.asked.values().flatten().any(wants)
    }

    /// Notes that a grant to the session `by` may have overtaken those who requested these bytes of the object at `address`
    /// well before `at`, cannot share them, and still wait. Requests whose time is over do not count: their refusals and
    /// the grant are posted in one turn, and leave in any order.
    pub fn note_overtaken(
        &mut self,
        (address, bytes): (u64, &Range<u64>),
        (at, now): (Moment, Moment),
        (by, sharing_of_grant): (SessionId, Sharing),
    ) {
        let waits = |asked: &Asked| {
            wanted_of(asked.body.as_ref(), address).is_some_and(|(wanted, sharing)| {
                let beside = sharing_of_grant == Sharing::Shared && sharing == Sharing::Shared;
                // The request's time goes on while the node stands still, and jumps with the node's clock.
                let may_wait = now.after(SLACK).after(asked.stood_still) < asked.due;
                !beside && may_wait && overlaps(&wanted, bytes) && asked.at.after(ANSWER_ON_ITS_WAY) < at
            })
        };
        for asked in self.asked.values_mut().flatten().filter(|asked| asked.overtaken.is_none()) {
            asked.overtaken = waits(asked).then_some((by, now));
        }
    }

    /// Returns a request whose answer is overdue.
    pub fn overdue(&self, now: Moment) -> Option<(SessionId, Asked)> {
        let late = self.asked.iter().filter(|(_, queue)| queue.iter().any(|asked| asked.due < now));
        let first = late.min_by_key(|(key, _)| **key)?;
        first.1.front().map(|asked| (first.0.0, *asked))
    }

    /// Returns the number of unanswered requests.
    pub fn len(&self) -> usize {
        self.asked.values().map(VecDeque::len).sum()
    }
}

/// Whether a reply can be the answer to a request. `None`: a malformed message.
fn answers(reply: &ReplyBody, asked: Option<&RequestBody>) -> bool {
    use CopyRequest::{CompareAndSwap, FetchAndAdd, Read, Write};
    use GrantRequest::{Acquire, Allocate, AllocateChunk, Extend, Free, Include, Keep, Revoke};
    use NamedRequest::{List, Lookup, Publish, Share, Unpublish, Unshare};
    use QueuePairRequest::{JoinChunks, Recover};
    use RequestBody::{Copy, Grant, Named, QueuePair};
    // For chunks: a client that has workers requests more of them, or requests a chunk from the node.
    let may_be_nonsense = |of: &RequestBody| matches!(of, QueuePair(_) | Copy(_) | Grant(AllocateChunk));
    match (reply, asked) {
        (ReplyBody::Refused(Refusal::Malformed), asked) => asked.is_none_or(may_be_nonsense),
        (_, None) => false,
        (ReplyBody::Refused(_), Some(_)) => true,
        (ReplyBody::Granted(_), Some(of)) => {
            matches!(of, Grant(Allocate(_) | Acquire(_) | AllocateChunk))
        }
        (ReplyBody::Extended(_), Some(of)) => matches!(of, Grant(Extend { .. })),
        (ReplyBody::Done, Some(of)) => {
            matches!(
                of,
                Grant(Revoke { .. } | Free { .. } | Keep { .. } | Include { .. })
                    | Named(Publish { .. } | Unpublish { .. } | Share { .. } | Unshare { .. })
                    | QueuePair(Recover { .. })
                    | Copy(Write { .. })
            )
        }
        (ReplyBody::Entry(_), Some(of)) => matches!(of, Named(Lookup { .. } | List { .. })),
        (ReplyBody::EndOfList, Some(of)) => matches!(of, Named(List { .. })),
        (ReplyBody::Data(_), Some(of)) => matches!(of, Copy(Read { .. })),
        (ReplyBody::Chunks(_), Some(of)) => matches!(of, QueuePair(JoinChunks)),
        (ReplyBody::Value(_), Some(of)) => {
            matches!(of, Copy(CompareAndSwap { .. } | FetchAndAdd { .. }))
        }
    }
}

//! The checkers' view of a permission from the messages that crossed the network, and not from the node's tables.

use super::{ONE_SHOT, SessionId, key_of};
use portcullis_protocol::{
    Credential, Granted, Header, LIFETIME_OFFSET, Lifetime, Moment, ObjectRef, PermissionId, Rights, Rkey,
    Sharing, WordKeys,
};
use std::ops::Range;

/// A permission that a node has announced.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub id: PermissionId,
    pub session: SessionId,
    pub tenant: usize,
    pub rights: Rights,
    pub sharing: Sharing,
    pub object: ObjectRef,
    pub buffer: Range<u64>,
    /// The credential that the holder shows.
    credential: Credential,
    pub longest: Lifetime,
    /// Until this moment on the node's clock, the holder must be served.
    pub served_until: Moment,
    /// The end of service as confirmed by the node itself.
    confirmed_until: Moment,
    /// From this moment on the node's clock, the permission is certainly over.
    pub over_from: Moment,
    /// Whether another permission covers bytes of its buffer. `header_passed_on`: of its header.
    pub buffer_passed_on: bool,
    pub header_passed_on: bool,
    /// Whether the holder requested the end, or the node announced it.
    pub ended: bool,
    /// Whether the holder or one of its siblings wrote something into the lifetime word that is no extension. If so,
    /// what the holder reads there has no meaning.
    pub vandalised: bool,
    /// The tenant of its object, if that is another tenant.
    pub owner: Option<usize>,
    /// Whether the object's tenant may have ended the permission, which may also live on.
    in_doubt: bool,
    /// Whether the object's tenant was informed that the permission is over: no access under it can succeed any more.
    pub taken_back: bool,
    /// Whether the holder was informed that the permission is over, and has no queue pairs: no access under it can
    /// succeed any more.
    pub told_over: bool,
    /// Whether a client of its object's tenant wanted all permissions over the object to end.
    pub end_was_wanted: bool,
    /// Whether a client was informed that its object has no holder any more: no access under it can succeed.
    pub freed: bool,
    /// Time at which the node wrote its final notice.
    pub noticed: Option<Moment>,
}

/// A session, and one of its data queue pairs.
pub(crate) type QueuePairOf = (SessionId, Option<u32>);

/// An access: queue pair, key, range, and needed right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub queue_pair: QueuePairOf,
    pub key: Rkey,
    pub from: u64,
    pub length: u64,
    pub right: Rights,
}

impl Wanted {
    pub fn span(&self) -> Range<u64> {
        self.from..self.from.saturating_add(self.length)
    }
}

impl Known {
    pub fn new(
        granted: &Granted,
        session: SessionId,
        tenant: usize,
        rights: Rights,
        sharing: Sharing,
    ) -> Self {
        let end = granted.permission.start.after(granted.lifetime);
        Self {
            id: granted.permission,
            session,
            tenant,
            rights,
            sharing,
            object: granted.object,
            buffer: granted.address().0..granted.address().0 + granted.length,
            credential: granted.credential,
            longest: granted.longest,
            served_until: end,
            confirmed_until: end,
            over_from: end,
            buffer_passed_on: false,
            header_passed_on: false,
            ended: false,
            vandalised: false,
            owner: None,
            in_doubt: false,
            taken_back: false,
            told_over: false,
            end_was_wanted: false,
            freed: false,
            noticed: None,
        }
    }

    /// Whether the permission may end before its time.
    pub fn may_end_early(&self) -> bool {
        self.vandalised || self.end_was_wanted
    }

    /// Returns the range of the lifetime word.
    pub fn word(&self) -> Range<u64> {
        let at = self.id.header.0 + LIFETIME_OFFSET;
        at..at + 8
    }

    /// Returns the range of the whole header.
    pub fn header(&self) -> Range<u64> {
        self.id.header.0..self.id.header.0 + Header::BYTES
    }

    /// Whether one of the permission's keys opens the buffer, and whether it opens the lifetime word.
    fn opens(&self, key: Rkey) -> (bool, bool) {
        match self.credential {
            Credential::Keys { buffer, lifetime } => (buffer == key, lifetime == key),
            Credential::Group(group) => {
                let opens_word = group.of_word().is_some_and(|word| word.has(key));
                (group.word() == WordKeys::Same || !opens_word, opens_word)
            }
            Credential::RegionKey { region, .. } => (key_of(region) == key, key_of(region) == key),
            Credential::Chunk(_) | Credential::Node => (false, false),
        }
    }

    /// Whether one of the permission's keys works on this queue pair. Each key of a group works on one queue pair.
    pub fn works_on(&self, key: Rkey, (session, number): QueuePairOf) -> bool {
        match self.credential {
            Credential::Group(group) => session == self.session && group.queue_pair_of(key) == number,
            // No other client can use it: the holder's number is in it.
            Credential::RegionKey { .. } => session == self.session && number == ONE_SHOT,
            _ => number != ONE_SHOT,
        }
    }

    /// Returns the key with which the holder began the access: the buffer's key on the first queue pair, if this is
    /// one of its keys on another.
    pub fn key_as_begun(&self, key: Rkey) -> Rkey {
        match self.credential {
            Credential::Group(group) if self.opens(key).0 => group.keys()[0],
            _ => key,
        }
    }

    /// Checks whether the permission's keys allow the access. Returns why not.
    pub fn covers(&self, wanted: &Wanted) -> Result<(), &'static str> {
        let (word, span) = (self.word(), wanted.span());
        let (opens_buffer, opens_word) = self.opens(wanted.key);
        if let Credential::RegionKey { .. } = self.credential {
            return self.region_covers(wanted);
        }
        let contiguous = word.end == self.buffer.start && opens_buffer && opens_word;
        let reach = if contiguous {
            word.start..self.buffer.end
        } else if opens_buffer {
            self.buffer.clone()
        } else {
            word.clone()
        };
        if span.start < reach.start || span.end > reach.end {
            return Err("outside its range");
        }
        let only_word = !contiguous && opens_word;
        let rights = if only_word { Rights::ATOMIC } else { self.rights };
        if rights.contains(wanted.right) { Ok(()) } else { Err("without its rights") }
    }

    /// Checks whether the permission's region allows the access: its bytes with its rights, and atomics on the
    /// lifetime word.
    fn region_covers(&self, wanted: &Wanted) -> Result<(), &'static str> {
        let span = wanted.span();
        if wanted.right == Rights::ATOMIC && !span.start.is_multiple_of(8) {
            return Err("on no word");
        }
        if span == self.word() && wanted.right == Rights::ATOMIC {
            return Ok(());
        }
        if span.start < self.buffer.start || span.end > self.buffer.end {
            return Err("outside its range");
        }
        if self.rights.contains(wanted.right) { Ok(()) } else { Err("without its rights") }
    }

    /// Whether another permission covers these bytes now.
    pub fn passed_on(&self, wanted: &Wanted) -> bool {
        let touches = |range: &Range<u64>| overlaps(range, &wanted.span());
        (self.buffer_passed_on && touches(&self.buffer)) || (self.header_passed_on && touches(&self.word()))
    }

    /// Records that the holder need not be served any more. The permission may or may not be over.
    pub fn may_end(&mut self, now: Moment) {
        self.ended = true;
        self.served_until = self.served_until.min(now);
    }

    /// Records that the object's tenant may end the permission from here on. The permission may also live on, and be
    /// extended.
    pub fn may_be_taken_back(&mut self, now: Moment) {
        self.in_doubt = true;
        self.served_until = self.served_until.min(now);
    }

    /// Records that the tenant of its object wants all permissions over the object to end.
    pub fn want_end(&mut self, now: Moment) {
        self.may_be_taken_back(now);
        self.end_was_wanted = true;
    }

    /// Records the node's report that its object has no holder any more.
    pub fn was_freed(&mut self, now: Moment) {
        self.is_over(now);
        self.freed = true;
    }

    /// Records the node's report that the permission is over.
    pub fn is_over(&mut self, now: Moment) {
        self.may_end(now);
        self.over_from = self.over_from.min(now);
    }

    /// Records that the node has informed a session that the permission is over.
    pub fn was_told_over(&mut self, session: SessionId, now: Moment) {
        self.is_over(now);
        // A window may linger. A region does not.
        self.told_over |= session == self.session && matches!(self.credential, Credential::RegionKey { .. });
    }

    /// Records that the lifetime word now holds `value`. `honest`: a compare and swap that found a lifetime wrote it.
    pub fn word_became(&mut self, value: u64, honest: bool, now: Moment) {
        if !honest {
            // The node may not have seen the previous extensions.
            self.vandalised = true;
            self.served_until = self.served_until.min(self.confirmed_until);
        }
        if value != 0 && self.noticed.is_none() {
            self.extended_to(Lifetime(value), now);
        }
    }

    /// Records the node's report that the permission, if it is live, lives this long from its start.
    pub fn confirmed(&mut self, lifetime: Lifetime, now: Moment) {
        self.extended_to(lifetime, now);
        if !self.ended && now < self.served_until {
            self.confirmed_until = self.confirmed_until.max(self.id.start.after(lifetime.min(self.longest)));
        }
    }

    fn extended_to(&mut self, lifetime: Lifetime, now: Moment) {
        let end = self.id.start.after(lifetime.min(self.longest));
        if self.ended {
            return;
        }
        if !self.vandalised && !self.in_doubt && now < self.served_until {
            self.served_until = self.served_until.max(end);
        }
        self.over_from = self.over_from.max(end);
    }
}

/// Whether two ranges share a byte.
pub(super) fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

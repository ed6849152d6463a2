//! A permission as the checkers know it: from the messages that crossed the network, never from the node's tables.

use super::SessionId;
use portcullis_protocol::{
    Credential, Granted, Header, LIFETIME_OFFSET, Lifetime, Moment, ObjectRef, PermissionId, Rights, Rkey,
    Sharing,
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
    /// The keys of the buffer and of the lifetime word.
    pub keys: (Rkey, Rkey),
    pub longest: Lifetime,
    /// Until then, on the node's clock, its holder must be served.
    pub served_until: Moment,
    /// The same, by what the node itself has said.
    confirmed_until: Moment,
    /// From then on, on the node's clock, it is over whatever happens.
    pub over_from: Moment,
    /// Somebody else has been given bytes of its buffer, or its header.
    pub buffer_passed_on: bool,
    pub header_passed_on: bool,
    /// Its holder asked for its end, or the node announced it.
    pub ended: bool,
    /// A sibling of its holder, or the holder itself, wrote something into the lifetime word that is no extension:
    /// what its holder reads there means nothing any more.
    pub vandalised: bool,
    /// When the node wrote that it will not be extended any more.
    pub noticed: Option<Moment>,
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
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
        let keys = match granted.credential {
            Credential::Keys { buffer, lifetime } => (buffer, lifetime),
            // No key at all: none is ever shown for it.
            Credential::Node => (Rkey(0), Rkey(0)),
        };
        let end = granted.permission.start.after(granted.lifetime);
        Self {
            id: granted.permission,
            session,
            tenant,
            rights,
            sharing,
            object: granted.object,
            buffer: granted.address().0..granted.address().0 + granted.length,
            keys,
            longest: granted.longest,
            served_until: end,
            confirmed_until: end,
            over_from: end,
            buffer_passed_on: false,
            header_passed_on: false,
            ended: false,
            vandalised: false,
            noticed: None,
        }
    }

    /// The lifetime word.
    pub fn word(&self) -> Range<u64> {
        let at = self.id.header.0 + LIFETIME_OFFSET;
        at..at + 8
    }

    /// The whole header.
    pub fn header(&self) -> Range<u64> {
        self.id.header.0..self.id.header.0 + Header::BYTES
    }

    /// Whether its keys open what is wanted: range and rights. Says why not.
    pub fn covers(&self, wanted: &Wanted) -> Result<(), &'static str> {
        let (word, span) = (self.word(), wanted.span());
        let contiguous = word.end == self.buffer.start && self.keys.0 == self.keys.1;
        let reach = if contiguous {
            word.start..self.buffer.end
        } else if wanted.key == self.keys.0 {
            self.buffer.clone()
        } else {
            word.clone()
        };
        if span.start < reach.start || span.end > reach.end {
            return Err("outside its range");
        }
        let only_word = !contiguous && wanted.key == self.keys.1;
        let rights = if only_word { Rights::ATOMIC } else { self.rights };
        if rights.contains(wanted.right) { Ok(()) } else { Err("without its rights") }
    }

    /// Whether somebody else has been given what is wanted.
    pub fn passed_on(&self, wanted: &Wanted) -> bool {
        let touches = |range: &Range<u64>| overlaps(range, &wanted.span());
        (self.buffer_passed_on && touches(&self.buffer)) || (self.header_passed_on && touches(&self.word()))
    }

    /// Its holder need not be served any more; whether it is over already is open.
    pub fn may_end(&mut self, now: Moment) {
        self.ended = true;
        self.served_until = self.served_until.min(now);
    }

    /// The node says that it is over.
    pub fn is_over(&mut self, now: Moment) {
        self.may_end(now);
        self.over_from = self.over_from.min(now);
    }

    /// The lifetime word holds `value` now. `honest`: by a compare and swap that found a lifetime there.
    pub fn word_became(&mut self, value: u64, honest: bool, now: Moment) {
        if !honest {
            // The node may not have seen the extensions that stood there.
            self.vandalised = true;
            self.served_until = self.served_until.min(self.confirmed_until);
        }
        if value != 0 && self.noticed.is_none() {
            self.extended_to(Lifetime(value), now);
        }
    }

    /// The node says that it lives for so long from its start, if it lives.
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
        if !self.vandalised && now < self.served_until {
            self.served_until = self.served_until.max(end);
        }
        self.over_from = self.over_from.max(end);
    }
}

/// Whether two ranges share a byte.
pub(super) fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

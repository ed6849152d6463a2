//! The objects that were freed, as far as the messages that crossed the network show.
//!
//! A node acts between a request's arrival and its answer's departure. So an object may be freed from a request's
//! arrival on, and is certainly freed from its answer on.

use portcullis_protocol::{Holders, Lifetime, Moment, ObjectName, ObjectRef, RemoteAddress};
use std::collections::HashMap;

/// How far ahead of its time a permission may start: each starts after the one before it that had its header.
const STARTS_AHEAD: Lifetime = Lifetime::micros(10);

/// The knowledge of an object that was freed for certain.
#[derive(Clone, Copy, Debug)]
struct Freed {
    /// Time of the first answer that reported the free to a client.
    since: Moment,
    /// Whether a client was informed that the object has no holder any more.
    has_no_holder: bool,
}

/// The frees of one life of a node.
#[derive(Debug, Default)]
pub(super) struct Frees {
    /// The objects that clients wanted to free, by reference, and whether all permissions over them were to end.
    /// `asked_at` has them by address.
    asked: HashMap<ObjectRef, bool>,
    asked_at: HashMap<RemoteAddress, bool>,
    freed: HashMap<ObjectRef, Freed>,
}

impl Frees {
    /// Records that a request to free an object has reached the node.
    pub fn asked(&mut self, object: ObjectName, holders: Holders) {
        let ends = match object {
            ObjectName::Reference(object) => self.asked.entry(object).or_default(),
            ObjectName::Address(address) => self.asked_at.entry(address).or_default(),
        };
        *ends |= holders == Holders::End;
    }

    /// Records that a client was informed that these objects are freed.
    pub fn done(&mut self, objects: &[ObjectRef], holders: Holders, now: Moment) {
        for &object in objects {
            let freed = self.freed.entry(object).or_insert(Freed { since: now, has_no_holder: false });
            freed.has_no_holder |= holders != Holders::Stay;
        }
    }

    /// Whether a client wanted to free this object, and whether all permissions over it were to end.
    fn wish_for(&self, object: ObjectRef) -> Option<bool> {
        let both = [self.asked.get(&object), self.asked_at.get(&object.address)];
        both.into_iter().flatten().copied().reduce(|one, other| one || other)
    }

    /// Whether one of these objects may be freed: an object, and those that it may belong to.
    pub fn may_be_freed(&self, mut objects: impl Iterator<Item = ObjectRef>) -> bool {
        objects.any(|object| self.wish_for(object).is_some())
    }

    /// Whether the permissions over one of these objects may be ended.
    pub fn may_end_holders(&self, mut objects: impl Iterator<Item = ObjectRef>) -> bool {
        objects.any(|object| self.wish_for(object) == Some(true))
    }

    /// Whether an object was freed before something that the node did at `moment`.
    pub fn was_freed_before(&self, object: ObjectRef, moment: Moment) -> bool {
        self.freed.get(&object).is_some_and(|freed| freed.since.after(STARTS_AHEAD) < moment)
    }

    /// Whether a client was informed that an object has no holder any more.
    pub fn has_no_holder(&self, object: ObjectRef) -> bool {
        self.freed.get(&object).is_some_and(|freed| freed.has_no_holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_protocol::Incarnation;
    use std::iter::once;

    fn object(birth: u64) -> ObjectRef {
        ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(4096 * birth), birth }
    }

    #[test]
    fn an_object_may_be_freed_from_the_request_on_and_is_from_the_answer_on() {
        let mut frees = Frees::default();
        let (one, other) = (object(1), object(2));
        assert!(!frees.may_be_freed(once(one)));
        frees.asked(one.into(), Holders::End);
        assert!(frees.may_be_freed(once(one)) && frees.may_end_holders(once(one)));
        assert!(!frees.may_be_freed(once(other)));
        assert!(!frees.was_freed_before(one, Moment(1_000)) && !frees.has_no_holder(one));
        frees.done(&[one], Holders::End, Moment(500));
        assert!(frees.was_freed_before(one, Moment(1_000)) && frees.has_no_holder(one));
        assert!(!frees.was_freed_before(one, Moment(500)));
    }

    #[test]
    fn a_later_answer_does_not_make_an_object_freed_later() {
        let mut frees = Frees::default();
        frees.done(&[object(1)], Holders::Stay, Moment(500));
        frees.done(&[object(1)], Holders::Await, Moment(5_000));
        assert!(frees.was_freed_before(object(1), Moment(1_000)) && frees.has_no_holder(object(1)));
    }

    #[test]
    fn what_is_freed_by_its_address_may_be_any_object_there() {
        let mut frees = Frees::default();
        frees.asked(ObjectName::Address(object(1).address), Holders::Stay);
        assert!(frees.may_be_freed(once(object(1))));
        assert!(!frees.may_be_freed(once(object(2))) && !frees.may_end_holders(once(object(1))));
    }
}

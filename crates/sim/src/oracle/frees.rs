//! Which objects were freed, as far as the messages that crossed the network tell.
//!
//! A node acts between a request's arrival and its answer's departure. So an object may be freed from a request's arrival on,
//! and is from its answer on.

use portcullis_protocol::{Holders, Lifetime, Moment, ObjectName, ObjectRef};
use std::collections::HashMap;

/// How far ahead of its time a permission may start: each starts after the one before it that had its header.
const STARTS_AHEAD: Lifetime = Lifetime::micros(10);

/// What is known of an object that was freed for certain.
#[derive(Clone, Copy, Debug)]
struct Freed {
    /// When a client was told so, for the first time.
    since: Moment,
    /// A client was told that nobody holds it any more.
    has_no_holder: bool,
}

/// The frees of one life of a node.
#[derive(Debug, Default)]
pub(super) struct Frees {
    /// Which objects, each with its members, clients wanted to free, and whether all permissions over them were to end.
    asked: Vec<(ObjectName, bool)>,
    freed: HashMap<ObjectRef, Freed>,
}

impl Frees {
    /// A request to free an object has reached the node.
    pub fn asked(&mut self, object: ObjectName, holders: Holders) {
        self.asked.push((object, holders == Holders::End));
    }

    /// A client was told that these objects are freed.
    pub fn done(&mut self, objects: &[ObjectRef], holders: Holders, now: Moment) {
        for &object in objects {
            let freed = self.freed.entry(object).or_insert(Freed { since: now, has_no_holder: false });
            freed.has_no_holder |= holders != Holders::Stay;
        }
    }

    /// Whether an object may be freed. `is_of`: whether it is an object, or may belong to it.
    pub fn may_be_freed(&self, object: ObjectRef, is_of: impl Fn(ObjectRef) -> bool) -> bool {
        self.asked.iter().any(|&(name, _)| is_meant(name, object, &is_of))
    }

    /// Whether the permissions over an object may be ended.
    pub fn may_end_holders(&self, object: ObjectRef, is_of: impl Fn(ObjectRef) -> bool) -> bool {
        self.asked.iter().any(|&(name, ends)| ends && is_meant(name, object, &is_of))
    }

    /// Whether an object was freed before something that the node did at `moment`.
    pub fn was_freed_before(&self, object: ObjectRef, moment: Moment) -> bool {
        self.freed.get(&object).is_some_and(|freed| freed.since.after(STARTS_AHEAD) < moment)
    }

    /// Whether a client was told that nobody holds an object any more.
    pub fn has_no_holder(&self, object: ObjectRef) -> bool {
        self.freed.get(&object).is_some_and(|freed| freed.has_no_holder)
    }
}

/// Whether a request that names an object means this one, or a head that it may belong to.
fn is_meant(name: ObjectName, object: ObjectRef, is_of: impl Fn(ObjectRef) -> bool) -> bool {
    match name {
        ObjectName::Reference(meant) => is_of(meant),
        // Whatever lay there at that time, and belonged to it, may be meant.
        ObjectName::Address(address) => address == object.address || is_of(ObjectRef { address, ..object }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_protocol::{Incarnation, RemoteAddress};

    fn object(birth: u64) -> ObjectRef {
        ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(4096 * birth), birth }
    }

    #[test]
    fn an_object_may_be_freed_from_the_request_on_and_is_from_the_answer_on() {
        let mut frees = Frees::default();
        let (one, other) = (object(1), object(2));
        assert!(!frees.may_be_freed(one, |it| it == one));
        frees.asked(one.into(), Holders::End);
        assert!(frees.may_be_freed(one, |it| it == one) && frees.may_end_holders(one, |it| it == one));
        assert!(!frees.may_be_freed(other, |it| it == other));
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
        assert!(frees.may_be_freed(object(1), |_| false));
        assert!(!frees.may_be_freed(object(2), |_| false) && !frees.may_end_holders(object(1), |_| false));
    }
}

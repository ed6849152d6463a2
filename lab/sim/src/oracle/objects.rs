//! The checkers' view of objects from the grants that crossed the network: which object lies where.

use portcullis_protocol::{Granted, Moment, ObjectRef};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// The objects of one life of a node.
#[derive(Debug, Default)]
pub(super) struct Objects {
    births: HashSet<u64>,
    /// The latest object at each place, by the start of its bytes, with their end, and with the start of the first
    /// permission over it.
    latest: BTreeMap<u64, (u64, ObjectRef, Moment)>,
}

impl Objects {
    /// Records an allocated object. Returns the fault of its reference, if there is one.
    pub fn born(&mut self, granted: &Granted) -> Option<&'static str> {
        let place = granted.object.address.0..granted.object.address.0.saturating_add(granted.length);
        // The message may have waited for its client so long that another object lies there already.
        let replaced = self.over(&place).any(|(_, it, _)| it.birth > granted.object.birth);
        if !replaced {
            let before: Vec<u64> = self.over(&place).map(|(start, ..)| start).collect();
            for start in before {
                self.latest.remove(&start);
            }
            self.latest.insert(place.start, (place.end, granted.object, granted.permission.start));
        }
        let known = !self.births.insert(granted.object.birth);
        known.then_some("a new object has the reference of another one")
    }

    /// Checks a grant over an existing object. Returns a fault if another object lay there when the permission began, or
    /// if no client was informed of the object (clients can find objects by address). A message may have waited for its
    /// client so long that the permission has ended, and another object lies there since. `untold`: the answer to an
    /// allocation may have been lost.
    pub fn opened(&mut self, granted: &Granted, untold: bool) -> Option<&'static str> {
        if !self.births.contains(&granted.object.birth) {
            return if untold {
                self.born(granted)
            } else {
                Some("no client received a reference to that object")
            };
        }
        let from = granted.address().0;
        let other = self
            .over(&(from..from.saturating_add(granted.length)))
            .any(|(_, it, since)| it != granted.object && since <= granted.permission.start);
        other.then_some("another object has been allocated there since")
    }

    fn over(&self, place: &Range<u64>) -> impl Iterator<Item = (u64, ObjectRef, Moment)> {
        let found = self.latest.range(..place.end).rev().take_while(|(_, (end, ..))| *end > place.start);
        found.map(|(&start, &(_, object, since))| (start, object, since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_protocol::{
        Credential, Incarnation, Lifetime, Mechanism, Moment, PermissionId, RemoteAddress,
    };

    fn granted(address: u64, birth: u64, length: u64) -> Granted {
        let (incarnation, address) = (Incarnation(1), RemoteAddress(address));
        Granted {
            permission: PermissionId { header: RemoteAddress(0), start: Moment(0) },
            object: ObjectRef { incarnation, address, birth },
            offset: 0,
            length,
            lifetime: Lifetime(1),
            waited: Lifetime(0),
            longest: Lifetime(1),
            credential: Credential::Node,
            mechanism: Mechanism::NodeCopy,
        }
    }

    #[test]
    fn an_object_under_a_later_one_is_gone() {
        let mut objects = Objects::default();
        let (old, beside) = (granted(100, 1, 50), granted(150, 2, 50));
        assert_eq!([objects.born(&old), objects.born(&beside)], [None, None]);
        assert_eq!([objects.opened(&old, false), objects.opened(&beside, false)], [None, None]);
        assert_eq!(objects.born(&granted(140, 3, 5)), None);
        assert!(objects.opened(&old, true).is_some());
        assert_eq!(objects.opened(&beside, false), None);
    }

    #[test]
    fn an_object_that_no_answer_has_told_of_is_there_only_if_an_answer_was_lost() {
        let mut objects = Objects::default();
        let (old, untold) = (granted(100, 1, 50), granted(100, 2, 50));
        assert_eq!(objects.born(&old), None);
        assert!(objects.opened(&untold, false).is_some());
        assert_eq!(objects.opened(&untold, true), None);
        assert_eq!(objects.opened(&untold, false), None, "from then on it is known");
        assert!(objects.opened(&old, false).is_some());
    }

    #[test]
    fn an_object_that_is_told_of_late_does_not_hide_the_one_that_lies_there_since() {
        let mut objects = Objects::default();
        let (late, since) = (granted(100, 1, 50), granted(120, 2, 50));
        assert_eq!([objects.born(&since), objects.born(&late)], [None, None]);
        assert_eq!(objects.opened(&since, false), None);
        assert!(objects.opened(&late, false).is_some());
    }

    #[test]
    fn a_grant_that_is_told_of_late_is_judged_by_its_start() {
        let mut objects = Objects::default();
        let at = |start, granted: Granted| Granted {
            permission: PermissionId { start: Moment(start), ..granted.permission },
            ..granted
        };
        let (old, since) = (granted(100, 1, 50), granted(120, 2, 50));
        assert_eq!([objects.born(&at(10, old)), objects.born(&at(30, since))], [None, None]);
        assert_eq!(objects.opened(&at(20, old), false), None);
        assert!(objects.opened(&at(30, old), false).is_some());
        assert!(objects.opened(&at(40, old), false).is_some());
    }

    #[test]
    fn a_reference_that_comes_twice_is_noticed() {
        let mut objects = Objects::default();
        assert_eq!(objects.born(&granted(100, 1, 50)), None);
        assert!(objects.born(&granted(500, 1, 50)).is_some());
    }
}

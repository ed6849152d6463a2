//! The directory: the names of objects, and the tenants with which each name is shared.
//!
//! The directory is state and does no I/O. Its names end with the node. It identifies tenants by their names only, and
//! also serves the names of tenants that have no clients now. The caller has checked that the object belongs to the
//! tenant.

use crate::config::Quota;
use portcullis_protocol::{DirectoryName, ObjectRef, Refusal, Rights, TenantName};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The reader of a list of names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader<'a> {
    /// The tenant that owns the names. It sees all.
    Owner,
    /// Another tenant. It sees the names that are shared with it.
    Other(&'a TenantName),
}

/// A name.
#[derive(Debug)]
struct Named {
    object: ObjectRef,
    shares: BTreeMap<TenantName, Rights>,
}

/// The names of one tenant.
#[derive(Debug, Default)]
struct Namespace {
    names: BTreeMap<DirectoryName, Named>,
    /// The names that each other tenant may see. Without this index, a tenant that sees few of many names could make
    /// the node search them all.
    seen_by: BTreeMap<TenantName, BTreeSet<DirectoryName>>,
}

impl Namespace {
    fn hide(&mut self, name: &DirectoryName, from: &TenantName) {
        if let Some(seen) = self.seen_by.get_mut(from) {
            seen.remove(name);
            if seen.is_empty() {
                self.seen_by.remove(from);
            }
        }
    }
}

/// The names of one node's objects, by tenant. The books keep the directory in step with the objects: they remove a name
/// before its object.
///
/// Every call costs the logarithm of the number of names or shares, and `unpublish` costs that for each share.
#[derive(Debug)]
pub(crate) struct Directory {
    quota: Quota,
    tenants: BTreeMap<Box<str>, Namespace>,
    names: u64,
}

impl Directory {
    /// A directory without names, which allows each tenant the names and shares of `quota`.
    pub fn new(quota: Quota) -> Self {
        Self { quota, tenants: BTreeMap::new(), names: 0 }
    }

    /// Enters a name of `owner` for an object.
    ///
    /// # Errors
    /// [`Refusal::NameTaken`], or [`Refusal::Quota`] in names. Nothing was changed.
    pub fn publish(&mut self, owner: &str, name: DirectoryName, object: ObjectRef) -> Result<(), Refusal> {
        let used = self.tenants.get(owner).map_or(0, |its| its.names.len() as u64);
        if self.named(owner, &name).is_some() {
            return Err(Refusal::NameTaken);
        }
        if used >= self.quota.names_max {
            return Err(Refusal::Quota { used, limit: self.quota.names_max });
        }
        let its = self.tenants.entry(owner.into()).or_default();
        its.names.insert(name, Named { object, shares: BTreeMap::new() });
        self.names += 1;
        Ok(())
    }

    /// Removes a name of `owner`, with all its shares. Does nothing if `owner` has no such name.
    pub fn unpublish(&mut self, owner: &str, name: &DirectoryName) {
        let Some(its) = self.tenants.get_mut(owner) else { return };
        let Some(named) = its.names.remove(name) else { return };
        for with in named.shares.keys() {
            its.hide(name, with);
        }
        if its.names.is_empty() {
            self.tenants.remove(owner);
        }
        self.names -= 1;
    }

    /// Returns the object that has this name with `owner`.
    pub fn find(&self, owner: &str, name: &DirectoryName) -> Option<ObjectRef> {
        self.named(owner, name).map(|named| named.object)
    }

    /// Shares the object that has this name with `owner`: gives the tenant `with` the rights `rights` over it.
    ///
    /// # Errors
    /// [`Refusal::NoSuchName`]; [`Refusal::AlreadyShared`] if the tenant would lose a right; [`Refusal::Quota`] in
    /// tenants. Nothing was changed.
    pub fn share(
        &mut self,
        owner: &str,
        name: &DirectoryName,
        with: TenantName,
        rights: Rights,
    ) -> Result<(), Refusal> {
        let its = self.tenants.get_mut(owner).ok_or(Refusal::NoSuchName)?;
        let named = its.names.get_mut(name).ok_or(Refusal::NoSuchName)?;
        let (used, limit) = (named.shares.len() as u64, self.quota.shares_max);
        match named.shares.get(&with) {
            Some(&before) if !rights.contains(before) => return Err(Refusal::AlreadyShared),
            None if used >= limit => return Err(Refusal::Quota { used, limit }),
            Some(_) | None => {}
        }
        named.shares.insert(with, rights);
        its.seen_by.entry(with).or_default().insert(*name);
        Ok(())
    }

    /// Ends the sharing of a name with a tenant.
    ///
    /// # Errors
    /// [`Refusal::NoSuchName`], or [`Refusal::NotShared`].
    pub fn unshare(&mut self, owner: &str, name: &DirectoryName, with: &TenantName) -> Result<(), Refusal> {
        let its = self.tenants.get_mut(owner).ok_or(Refusal::NoSuchName)?;
        let named = its.names.get_mut(name).ok_or(Refusal::NoSuchName)?;
        named.shares.remove(with).ok_or(Refusal::NotShared)?;
        its.hide(name, with);
        Ok(())
    }

    /// Returns a tenant's rights over the object that has this name with `owner`. `None`: the object is not shared with
    /// the tenant.
    pub fn shared(&self, owner: &str, name: &DirectoryName, with: &TenantName) -> Option<Rights> {
        self.named(owner, name)?.shares.get(with).copied()
    }

    /// Returns the first name of `owner` behind `after`, or of all, that `reader` may see.
    pub fn next(
        &self,
        owner: &str,
        after: Option<&DirectoryName>,
        reader: Reader<'_>,
    ) -> Option<DirectoryName> {
        let its = self.tenants.get(owner)?;
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        match reader {
            Reader::Owner => its.names.range::<DirectoryName, _>(behind).next().map(|(&name, _)| name),
            Reader::Other(reader) => {
                its.seen_by.get(reader)?.range::<DirectoryName, _>(behind).next().copied()
            }
        }
    }

    /// Returns the number of names of all tenants.
    pub fn names(&self) -> u64 {
        self.names
    }

    fn named(&self, owner: &str, name: &DirectoryName) -> Option<&Named> {
        self.tenants.get(owner)?.names.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_protocol::{Incarnation, RemoteAddress};
    use proptest::prelude::*;

    const QUOTA: Quota = Quota {
        bytes_max: 1,
        objects_max: 1,
        permissions_max: 1,
        names_max: 4,
        shares_max: 2,
        chunks_max: 1,
    };

    fn name(number: u8) -> DirectoryName {
        DirectoryName::new(&format!("name {number}")).expect("a name")
    }

    fn tenant(number: u8) -> TenantName {
        TenantName::new(&format!("tenant {number}")).expect("a name")
    }

    fn object(birth: u64) -> ObjectRef {
        ObjectRef { incarnation: Incarnation(7), address: RemoteAddress(birth * 64), birth }
    }

    #[test]
    fn a_name_is_given_once_until_it_is_free_again() {
        let mut directory = Directory::new(QUOTA);
        assert_eq!(directory.publish("a", name(1), object(1)), Ok(()));
        assert_eq!(directory.publish("a", name(1), object(2)), Err(Refusal::NameTaken));
        assert_eq!(directory.publish("b", name(1), object(3)), Ok(()), "another tenant's names are its own");
        assert_eq!(directory.find("a", &name(1)), Some(object(1)));
        directory.unpublish("a", &name(1));
        assert_eq!(directory.publish("a", name(1), object(2)), Ok(()));
        assert_eq!(
            (directory.find("a", &name(1)), directory.find("b", &name(1))),
            (Some(object(2)), Some(object(3)))
        );
    }

    #[test]
    fn names_and_shares_have_limits_and_what_is_given_back_counts_no_more() {
        let mut directory = Directory::new(QUOTA);
        for number in 0..4 {
            assert_eq!(directory.publish("a", name(number), object(number.into())), Ok(()));
        }
        let full = Err(Refusal::Quota { used: 4, limit: 4 });
        assert_eq!(directory.publish("a", name(9), object(9)), full);
        assert_eq!(directory.publish("a", name(0), object(9)), Err(Refusal::NameTaken));
        directory.unpublish("a", &name(2));
        assert_eq!(directory.publish("a", name(9), object(9)), Ok(()));
        for other in 0..2 {
            assert_eq!(directory.share("a", &name(9), tenant(other), Rights::READ), Ok(()));
        }
        let full = Err(Refusal::Quota { used: 2, limit: 2 });
        assert_eq!(directory.share("a", &name(9), tenant(2), Rights::READ), full);
        assert_eq!(directory.share("a", &name(9), tenant(1), Rights::all()), Ok(()), "it is one of the two");
        assert_eq!(directory.unshare("a", &name(9), &tenant(0)), Ok(()));
        assert_eq!(directory.share("a", &name(9), tenant(2), Rights::READ), Ok(()));
        assert_eq!(directory.names(), 4);
    }

    #[test]
    fn a_share_grows_but_shrinks_only_by_its_end() {
        let mut directory = Directory::new(QUOTA);
        assert_eq!(directory.share("a", &name(1), tenant(1), Rights::READ), Err(Refusal::NoSuchName));
        directory.publish("a", name(1), object(1)).expect("it is free");
        assert_eq!(directory.unshare("a", &name(1), &tenant(1)), Err(Refusal::NotShared));
        let both = Rights::READ | Rights::WRITE;
        for rights in [Rights::READ, both, both] {
            assert_eq!(directory.share("a", &name(1), tenant(1), rights), Ok(()));
        }
        assert_eq!(directory.share("a", &name(1), tenant(1), Rights::READ), Err(Refusal::AlreadyShared));
        assert_eq!(directory.shared("a", &name(1), &tenant(1)), Some(both));
        directory.unpublish("a", &name(1));
        directory.publish("a", name(1), object(2)).expect("it is free");
        assert_eq!(directory.shared("a", &name(1), &tenant(1)), None, "shares go with the name");
    }

    proptest! {
        /// A list has all names that a reader may see, once each and in order, whatever is shared in between.
        #[test]
        fn a_list_has_what_its_reader_may_see(
            steps in prop::collection::vec((0u8..6, 0u8..8, 0u8..3), 0..120),
        ) {
            let quota = Quota { names_max: 64, shares_max: 64, ..QUOTA };
            let mut directory = Directory::new(quota);
            let mut model: BTreeMap<DirectoryName, BTreeSet<u8>> = BTreeMap::new();
            for (what, number, with) in steps {
                let name = name(number);
                match what {
                    0 | 1 => {
                        let free = directory.publish("a", name, object(1)).is_ok();
                        prop_assert_eq!(free, !model.contains_key(&name));
                        model.entry(name).or_default();
                    }
                    2 => {
                        directory.unpublish("a", &name);
                        model.remove(&name);
                    }
                    3 => {
                        let known = model.get_mut(&name).map(|with_whom| with_whom.remove(&with));
                        prop_assert_eq!(directory.unshare("a", &name, &tenant(with)).is_ok(), known == Some(true));
                    }
                    _ => {
                        let shared = directory.share("a", &name, tenant(with), Rights::READ).is_ok();
                        prop_assert_eq!(shared, model.get_mut(&name).map(|whom| whom.insert(with)).is_some());
                    }
                }
            }
            let list = |reader: Reader<'_>| -> Vec<DirectoryName> {
                let first = directory.next("a", None, reader);
                std::iter::successors(first, |last| directory.next("a", Some(last), reader)).collect()
            };
            prop_assert_eq!(list(Reader::Owner), model.keys().copied().collect::<Vec<_>>());
            for with in 0..3 {
                let seen = model.iter().filter(|(_, whom)| whom.contains(&with)).map(|(&name, _)| name);
                prop_assert_eq!(list(Reader::Other(&tenant(with))), seen.collect::<Vec<_>>());
            }
            prop_assert_eq!(directory.names(), model.len() as u64);
        }
    }
}

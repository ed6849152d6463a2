//! The tenant of each object, and what other tenants may have of it, as far as the messages that crossed the network
//! show.
//!
//! A node acts between a request's arrival and its answer's departure. So the effect of a request is possible from
//! its arrival on, and certain from its answer on.

use super::requests::Asked;
use portcullis_protocol::{
    DirectoryName, GrantRequest, Granted, Moment, NamedRequest, ObjectRef, ReplyBody, RequestBody, Rights,
    Sharing, TenantName,
};
use std::collections::HashMap;

/// The requested effect of a request, which other requests can end.
#[derive(Clone, Copy, Debug)]
struct Attempt<T> {
    what: T,
    asked: Moment,
    /// Time at which the node confirmed the effect.
    done: Option<Moment>,
    /// Time by which the effect was over.
    ended: Option<Moment>,
}

impl<T> Attempt<T> {
    /// Whether the effect was certain before a request that arrived at `moment`.
    fn certain(&self, moment: Moment) -> bool {
        self.ended.is_none() && self.done.is_some_and(|done| done < moment)
    }

    fn possible(&self, moment: Moment) -> bool {
        self.ended.is_none_or(|ended| moment <= ended)
    }
}

/// The knowledge of one name of a tenant.
#[derive(Debug, Default)]
struct Named {
    objects: Vec<Attempt<ObjectRef>>,
    shares: Vec<Attempt<(TenantName, Rights)>>,
}

impl Named {
    /// Ends, by `now`, the effects that were certain before `asked`.
    fn end(&mut self, asked: Moment, now: Moment) {
        let names = self.objects.iter_mut().filter(|it| it.certain(asked)).map(|it| &mut it.ended);
        let shares = self.shares.iter_mut().filter(|it| it.certain(asked)).map(|it| &mut it.ended);
        names.chain(shares).for_each(|ended| *ended = Some(now));
    }

    /// Returns the object that had the name for certain, and no other, when a request arrived at `asked`.
    fn object(&self, asked: Moment) -> Option<ObjectRef> {
        let mut those = self.objects.iter().filter(|it| it.ended.is_none());
        let (it, None) = (those.next()?, those.next()) else { return None };
        it.certain(asked).then_some(it.what)
    }
}

/// Permissions of other tenants that an answer reported as over: those over these objects that started before that
/// moment.
#[derive(Clone, Debug)]
pub(super) struct TakenBack {
    /// The object with the name, and those that belong to it.
    pub objects: Vec<ObjectRef>,
    /// The tenant of the permissions. `None`: all other tenants.
    pub tenant: Option<TenantName>,
    pub before: Moment,
}

/// The directory of one life of a node.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The tenant of each object, by birth.
    owners: HashMap<u64, usize>,
    names: HashMap<(usize, DirectoryName), Named>,
    /// The objects to which each object belongs. It belongs to them for as long as both exist.
    heads: HashMap<ObjectRef, Vec<Attempt<ObjectRef>>>,
    /// Time of a tenant's last request that may end what others hold of its objects.
    taken_back: HashMap<usize, Moment>,
    /// Number of such requests of a tenant that have no answer yet.
    pending: HashMap<usize, u32>,
}

/// Returns the name of a tenant in the simulated nodes.
pub(super) fn called(tenant: usize) -> Option<TenantName> {
    tenant.to_string().parse().ok()
}

impl Shares {
    /// Records that a node has informed a tenant of an object. Returns the object's tenant, if it is another one.
    pub fn told(&mut self, object: ObjectRef, tenant: usize) -> Option<usize> {
        let owner = *self.owners.entry(object.birth).or_insert(tenant);
        (owner != tenant).then_some(owner)
    }

    /// Returns the tenant of an object, if a client was informed of the object.
    pub fn owner(&self, object: ObjectRef) -> Option<usize> {
        self.owners.get(&object.birth).copied()
    }

    /// Records that a request of a tenant's client has reached the node. Returns whether it may end what others hold
    /// of the tenant's objects.
    pub fn asked(&mut self, tenant: usize, request: &RequestBody, now: Moment) -> bool {
        match *request {
            RequestBody::Named(NamedRequest::Publish { name, object }) => {
                let attempt = Attempt { what: object, asked: now, done: None, ended: None };
                self.names.entry((tenant, name)).or_default().objects.push(attempt);
            }
            RequestBody::Named(NamedRequest::Share { name, tenant: with, rights }) => {
                let attempt = Attempt { what: (with, rights), asked: now, done: None, ended: None };
                self.names.entry((tenant, name)).or_default().shares.push(attempt);
            }
            RequestBody::Grant(GrantRequest::Include { member, head }) => {
                let attempt = Attempt { what: head, asked: now, done: None, ended: None };
                self.heads.entry(member).or_default().push(attempt);
            }
            _ if takes_back(request) => {
                *self.pending.entry(tenant).or_default() += 1;
                self.lets_go(tenant, now);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Records that from now on a tenant's objects may end, with what others hold of them.
    pub fn lets_go(&mut self, tenant: usize, now: Moment) {
        self.taken_back.insert(tenant, now);
    }

    /// Whether what others hold of a tenant's objects since `start` may have ended.
    pub fn may_have_ended(&self, owner: usize, start: Moment) -> bool {
        let pending = self.pending.get(&owner).is_some_and(|&pending| pending > 0);
        pending || self.taken_back.get(&owner).is_some_and(|&at| at >= start)
    }

    /// Records an answer to a tenant's client that leaves the node. Returns what the answer reports as over.
    pub fn answered(
        &mut self,
        tenant: usize,
        asked: &Asked,
        reply: &ReplyBody,
        now: Moment,
    ) -> Option<TakenBack> {
        let done = *reply == ReplyBody::Done;
        let body = asked.body?;
        if takes_back(&body) {
            self.pending.entry(tenant).and_modify(|pending| *pending -= 1);
        }
        match body {
            RequestBody::Named(NamedRequest::Publish { name, object }) => {
                let named = self.names.get_mut(&(tenant, name))?;
                if done {
                    // The name was free: an object that had it before has it no more.
                    named.end(asked.at, asked.at);
                }
                settle(&mut named.objects, |it| *it == object, asked.at, done.then_some(now));
                None
            }
            RequestBody::Named(NamedRequest::Share { name, tenant: with, rights }) => {
                let named = self.names.get_mut(&(tenant, name))?;
                settle(&mut named.shares, |it| *it == (with, rights), asked.at, done.then_some(now));
                None
            }
            RequestBody::Grant(GrantRequest::Include { member, head }) => {
                settle(self.heads.get_mut(&member)?, |it| *it == head, asked.at, done.then_some(now));
                None
            }
            RequestBody::Named(NamedRequest::Unshare { name, tenant: with }) if done => {
                let named = self.names.get_mut(&(tenant, name))?;
                let object = named.object(asked.at);
                let its = named.shares.iter_mut().filter(|it| it.what.0 == with && it.certain(asked.at));
                its.for_each(|it| it.ended = Some(now));
                Some(TakenBack {
                    objects: self.all_of(object?, asked.at),
                    tenant: Some(with),
                    before: asked.at,
                })
            }
            RequestBody::Named(NamedRequest::Unpublish { name }) if done => {
                let named = self.names.get_mut(&(tenant, name))?;
                let object = named.object(asked.at);
                named.end(asked.at, now);
                Some(TakenBack { objects: self.all_of(object?, asked.at), tenant: None, before: asked.at })
            }
            _ => None,
        }
    }

    /// Returns an object, and the objects that belonged to it for certain when a request arrived at `asked`.
    pub fn all_of(&self, head: ObjectRef, asked: Moment) -> Vec<ObjectRef> {
        let belongs =
            |heads: &[Attempt<ObjectRef>]| heads.iter().any(|it| it.what == head && it.certain(asked));
        let members = self.heads.iter().filter(|(_, heads)| belongs(heads)).map(|(member, _)| *member);
        std::iter::once(head).chain(members).collect()
    }

    /// Returns an object, and the objects that it may belong to.
    pub fn heads_of(&self, object: ObjectRef) -> impl Iterator<Item = ObjectRef> {
        let heads = self.heads.get(&object).into_iter().flatten();
        std::iter::once(object).chain(heads.map(|it| it.what))
    }

    /// Whether an object is this one, or may belong to it.
    fn may_be_of(&self, object: ObjectRef, head: ObjectRef) -> bool {
        self.heads_of(object).any(|it| it == head)
    }

    /// Whether a tenant may have been granted this permission over an object of `owner`.
    pub fn allow(
        &self,
        owner: usize,
        granted: &Granted,
        tenant: usize,
        (rights, sharing): (Rights, Sharing),
    ) -> bool {
        let (Some(called), start) = (called(tenant), granted.permission.start) else { return false };
        let needed = if sharing == Sharing::Exclusive { rights | Rights::WRITE } else { rights };
        let its = self.names.iter().filter(|((tenant, _), _)| *tenant == owner).map(|(_, named)| named);
        its.into_iter().any(|named| {
            let is_it =
                |it: &Attempt<ObjectRef>| self.may_be_of(granted.object, it.what) && it.possible(start);
            let allows = |it: &Attempt<(TenantName, Rights)>| {
                it.what.0 == called && it.what.1.contains(needed) && it.possible(start)
            };
            named.objects.iter().any(is_it) && named.shares.iter().any(allows)
        })
    }

    /// Returns the tenants that may have written into an object: its own, and those that it was ever shared with.
    pub fn writers(&self, object: ObjectRef) -> Vec<usize> {
        let Some(&owner) = self.owners.get(&object.birth) else { return Vec::new() };
        let named = self.names.iter().filter(|((tenant, _), _)| *tenant == owner).map(|(_, named)| named);
        let of_it = named.filter(|named| named.objects.iter().any(|it| self.may_be_of(object, it.what)));
        let with = of_it.flat_map(|named| &named.shares).filter_map(|it| it.what.0.as_str().parse().ok());
        std::iter::once(owner).chain(with).collect()
    }
}

/// Whether a request may end what other tenants hold of objects of the requesting tenant.
fn takes_back(request: &RequestBody) -> bool {
    use GrantRequest::{Free, Keep, Revoke};
    use NamedRequest::{Unpublish, Unshare};
    matches!(
        request,
        RequestBody::Named(Unpublish { .. } | Unshare { .. })
            | RequestBody::Grant(Free { .. } | Keep { .. } | Revoke { .. })
    )
}

/// Records the answer to the request at `asked`: the time of its effect, or (`None`) its refusal.
fn settle<T>(
    attempts: &mut Vec<Attempt<T>>,
    is_it: impl Fn(&T) -> bool,
    asked: Moment,
    done: Option<Moment>,
) {
    let at = attempts.iter().position(|it| it.asked == asked && it.done.is_none() && is_it(&it.what));
    match (at, done) {
        (Some(at), Some(_)) => attempts[at].done = done,
        (Some(at), None) => {
            attempts.remove(at);
        }
        (None, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_protocol::{
        Credential, Incarnation, Lifetime, Mechanism, PermissionId, Refusal, RemoteAddress,
    };

    const OBJECT: ObjectRef =
        ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(4096), birth: 1 };

    fn name() -> DirectoryName {
        "table".parse().expect("a name")
    }

    /// Sends a request of tenant 0, and its answer.
    fn does(
        shares: &mut Shares,
        body: RequestBody,
        (asked, done): (u64, u64),
        reply: ReplyBody,
    ) -> Option<TakenBack> {
        shares.asked(0, &body, Moment(asked));
        shares.answered(0, &Asked::new(Some(body), Moment(asked)), &reply, Moment(done))
    }

    fn shared() -> Shares {
        let mut shares = Shares::default();
        assert_eq!(shares.told(OBJECT, 0), None);
        let with = called(1).expect("a name");
        does(
            &mut shares,
            RequestBody::Named(NamedRequest::Publish { name: name(), object: OBJECT }),
            (1, 2),
            ReplyBody::Done,
        );
        let share =
            RequestBody::Named(NamedRequest::Share { name: name(), tenant: with, rights: Rights::READ });
        does(&mut shares, share, (3, 4), ReplyBody::Done);
        shares
    }

    fn allow(shares: &Shares, start: u64, rights: Rights, sharing: Sharing) -> bool {
        let granted = Granted {
            permission: PermissionId { header: RemoteAddress(0), start: Moment(start) },
            object: OBJECT,
            offset: 0,
            length: 8,
            lifetime: Lifetime(1),
            waited: Lifetime(0),
            longest: Lifetime(1),
            credential: Credential::Node,
            mechanism: Mechanism::NodeCopy,
        };
        shares.allow(0, &granted, 1, (rights, sharing))
    }

    #[test]
    fn what_is_shared_may_be_had_and_nothing_else() {
        let mut shares = shared();
        assert_eq!(shares.told(OBJECT, 1), Some(0));
        assert!(allow(&shares, 5, Rights::READ, Sharing::Shared));
        assert!(!allow(&shares, 5, Rights::WRITE, Sharing::Shared));
        assert!(!allow(&shares, 5, Rights::READ, Sharing::Exclusive));
        assert_eq!(shares.writers(OBJECT), [0, 1]);
    }

    #[test]
    fn after_the_answer_to_its_end_a_share_allows_nothing_new() {
        let mut shares = shared();
        let unshare =
            RequestBody::Named(NamedRequest::Unshare { name: name(), tenant: called(1).expect("a name") });
        assert!(shares.asked(0, &unshare, Moment(10)) && shares.may_have_ended(0, Moment(9)));
        assert!(allow(&shares, 15, Rights::READ, Sharing::Shared), "the node may not have done it yet");
        let told = shares.answered(0, &Asked::new(Some(unshare), Moment(10)), &ReplyBody::Done, Moment(20));
        assert_eq!(told.map(|told| (told.objects, told.before)), Some((vec![OBJECT], Moment(10))));
        assert!(!allow(&shares, 21, Rights::READ, Sharing::Shared));
    }

    #[test]
    fn what_was_refused_never_was() {
        let mut shares = shared();
        let share = |rights| {
            RequestBody::Named(NamedRequest::Share {
                name: name(),
                tenant: called(1).expect("a name"),
                rights,
            })
        };
        shares.asked(0, &share(Rights::all()), Moment(5));
        assert!(allow(&shares, 6, Rights::all(), Sharing::Exclusive), "it may be so");
        let refused = ReplyBody::Refused(Refusal::NoSuchName);
        shares.answered(0, &Asked::new(Some(share(Rights::all())), Moment(5)), &refused, Moment(7));
        assert!(!allow(&shares, 6, Rights::all(), Sharing::Exclusive));
    }
}

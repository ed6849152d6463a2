//! The checkers' model of a node: its memory, its permissions, and its unanswered requests.

use super::chunks::ChunkModel;
use super::frees::Frees;
use super::memory_model::MemoryModel;
use super::objects::Objects;
use super::permission::{Known, Wanted, overlaps};
use super::requests::Requests;
use super::shares::{Shares, TakenBack, called};
use super::{Promise, SessionId, key_of};
use portcullis_node::POOL_BASE;
use portcullis_protocol::{
    Credential, GrantRequest, Granted, Holders, Lifetime, Moment, ObjectName, ObjectRef, PermissionId,
    RequestBody, Rights, Rkey, Sharing,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

/// Number of turns within which a node must have done what was due before the first of them.
const TURNS_TO_ACT: usize = 12;
/// The fewest grants of one window between two grants with the same key.
const KEYS_APART: u32 = 100;
/// How long an object may be free before a waiting client must have it.
const VAIN_WAIT: Lifetime = Lifetime::millis(3);
/// How long a NIC may take for the unbinds of permissions that all ended at once.
const TIME_TO_UNBIND: Lifetime = Lifetime::micros(100);
/// Turns of a node that are remembered.
const TURNS_KEPT: usize = 4096;

/// The reason why an access that succeeded should have been refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stray {
    pub promise: Promise,
    pub why: &'static str,
}

/// The checkers' knowledge of one life of a node.
#[derive(Debug)]
pub(super) struct NodeModel {
    pub memory: MemoryModel,
    pub requests: Requests,
    pub objects: Objects,
    pub shares: Shares,
    pub frees: Frees,
    /// The chunks that the NIC hands out, if it does.
    pub chunks: Option<ChunkModel>,
    /// How long windows of ended permissions may stay bound.
    linger: Lifetime,
    permissions: Vec<Known>,
    by_key: HashMap<Rkey, usize>,
    by_id: HashMap<PermissionId, usize>,
    by_session: HashMap<SessionId, Vec<usize>>,
    /// How often a region or window was granted, by index. `used_at` is that count at each key's last grant.
    uses: HashMap<u32, u32>,
    used_at: HashMap<Rkey, u32>,
    /// Permissions by the start of their buffer and of their header.
    by_place: BTreeMap<u64, Vec<usize>>,
    /// The length of the longest buffer.
    longest_span: u64,
    /// The times of the node's last turns, on its clock.
    turns: VecDeque<Moment>,
}

impl NodeModel {
    pub fn new(pool_bytes: u64, linger: Lifetime) -> Self {
        Self {
            memory: MemoryModel::new(pool_bytes),
            requests: Requests::default(),
            objects: Objects::default(),
            shares: Shares::default(),
            frees: Frees::default(),
            chunks: None,
            linger,
            permissions: Vec::new(),
            by_key: HashMap::new(),
            by_id: HashMap::new(),
            by_session: HashMap::new(),
            uses: HashMap::new(),
            used_at: HashMap::new(),
            by_place: BTreeMap::new(),
            longest_span: 32,
            turns: VecDeque::new(),
        }
    }

    /// Records a turn of the node.
    pub fn turned(&mut self, now: Moment) {
        if self.turns.len() == TURNS_KEPT {
            self.turns.pop_front();
        }
        self.turns.push_back(now);
    }

    /// Whether the node has had the time to end what was over from `over` on: a turn that noticed it, the time that a
    /// window may linger after that, and enough turns to carry the end out.
    fn had_time_to_end(&self, over: Moment) -> bool {
        let Some(&noticed) = self.turns.get(self.turns.partition_point(|&turn| turn < over)) else {
            return false;
        };
        let Some(acted) = self.turns.len().checked_sub(TURNS_TO_ACT) else { return false };
        self.turns[acted] > noticed.after(Lifetime(self.linger.0 + self.linger.0 / 4 + TIME_TO_UNBIND.0))
    }

    /// Returns the offset of an address in the pool.
    pub fn offset(&self, address: u64, length: u64) -> Option<u64> {
        let offset = address.checked_sub(POOL_BASE.0)?;
        (offset.checked_add(length)? <= self.memory.bytes()).then_some(offset)
    }

    /// Returns the permission with this id.
    pub fn known(&mut self, id: PermissionId) -> Option<&mut Known> {
        self.by_id.get(&id).map(|&at| &mut self.permissions[at])
    }

    /// Returns the permission with this id, read-only.
    pub fn get(&self, id: PermissionId) -> Option<&Known> {
        self.by_id.get(&id).map(|&at| &self.permissions[at])
    }

    /// Returns the latest permission with this key.
    pub fn by_key(&self, key: Rkey) -> Option<&Known> {
        self.by_key.get(&key).map(|&at| &self.permissions[at])
    }

    /// Returns the permission with this key, if the span touches its lifetime word.
    pub fn by_word(&mut self, key: Rkey, span: &Range<u64>) -> Option<&mut Known> {
        let known = &mut self.permissions[*self.by_key.get(&key)?];
        overlaps(&known.word(), span).then_some(known)
    }

    /// Calls `act` with each permission of a session.
    pub fn for_session(&mut self, session: SessionId, mut act: impl FnMut(&mut Known)) {
        for &at in self.by_session.get(&session).map_or(&[][..], Vec::as_slice) {
            act(&mut self.permissions[at]);
        }
    }

    /// Whether a session has had any grant.
    pub fn knows(&self, session: SessionId) -> bool {
        self.by_session.contains_key(&session)
    }

    /// Returns permissions that may end before their time, with their sessions.
    pub fn may_end_early(&self) -> impl Iterator<Item = (SessionId, PermissionId)> {
        self.permissions.iter().filter(|known| known.may_end_early()).map(|known| (known.session, known.id))
    }

    /// Records that a request has reached the node, whose effects may begin now.
    pub fn requested(&mut self, (session, tenant): (SessionId, usize), body: &RequestBody, now: Moment) {
        match *body {
            RequestBody::Grant(GrantRequest::Revoke { permission, free }) => {
                if let Some(known) = self.known(permission)
                    && known.session == session
                {
                    known.may_end(now);
                }
                if free && let Some(object) = self.get(permission).map(|known| known.object) {
                    self.free_asked(tenant, object.into(), Holders::Stay, now);
                }
            }
            RequestBody::Grant(GrantRequest::Free { object, holders }) => {
                self.free_asked(tenant, object, holders, now);
            }
            _ => {}
        }
        if self.shares.asked(tenant, body, now) {
            self.lets_go(tenant, now);
        }
    }

    /// Records that a client of a tenant wants an object to be freed. Another tenant's request has no effect.
    pub fn free_asked(&mut self, tenant: usize, name: ObjectName, holders: Holders, now: Moment) {
        if let ObjectName::Reference(object) = name
            && self.shares.owner(object).is_some_and(|owner| owner != tenant)
        {
            return;
        }
        self.frees.asked(name, holders);
        if holders != Holders::End {
            return;
        }
        let Self { permissions, frees, shares, .. } = self;
        let may_end = |known: &&mut Known| {
            !known.end_was_wanted && frees.may_end_holders(shares.heads_of(known.object))
        };
        permissions.iter_mut().filter(may_end).for_each(|known| known.want_end(now));
    }

    /// Records that a client was informed that an object is freed, as requested at `asked`. Returns a permission over
    /// it whose holder must be served, if the client waited for the holders to end.
    pub fn freed(
        &mut self,
        object: ObjectRef,
        holders: Holders,
        (asked, now): (Moment, Moment),
    ) -> Option<PermissionId> {
        let objects = self.shares.all_of(object, asked);
        self.frees.done(&objects, Holders::Stay, now);
        if holders == Holders::Stay {
            return None;
        }
        self.frees.done(&[object], holders, now);
        // A member that was freed alone, or was freed with its last permission, no longer belonged to the head.
        let members = objects.iter().filter(|it| !self.frees.may_be_freed(std::iter::once(**it)));
        let members: Vec<ObjectRef> = members.copied().collect();
        let mut held = None;
        for known in &mut self.permissions {
            let lives = now < known.over_from && !known.ended;
            if known.object == object || lives && members.contains(&known.object) {
                held = held.or((now < known.served_until && !known.ended).then_some(known.id));
                known.was_freed(now);
            }
        }
        held
    }

    /// Whether an object may be freed, alone or with its head.
    pub fn may_be_freed(&self, object: ObjectRef) -> bool {
        self.frees.may_be_freed(self.shares.heads_of(object))
    }

    /// Returns the permissions of a tenant.
    pub fn of_tenant(&mut self, tenant: usize) -> impl Iterator<Item = &mut Known> {
        self.permissions.iter_mut().filter(move |known| known.tenant == tenant)
    }

    /// Checks whether a permission allows an access that has just succeeded.
    pub fn judge(&self, tenant: usize, wanted: &Wanted) -> Result<(), Stray> {
        let stray = |promise, why| Err(Stray { promise, why });
        let Some(&at) = self.by_key.get(&wanted.key) else {
            return stray(Promise::Access, "no permission has this key");
        };
        let known = &self.permissions[at];
        if known.tenant != tenant {
            return stray(Promise::Access, "the permission is another tenant's");
        }
        if let Err(why) = known.covers(wanted) {
            return stray(Promise::Access, why);
        }
        if !known.works_on(wanted.key, wanted.queue_pair) {
            return stray(Promise::Access, "the key is of another queue pair");
        }
        // The lifetime word is not part of the object.
        if known.taken_back && overlaps(&known.buffer, &wanted.span()) {
            return stray(
                Promise::Access,
                "its object's tenant received the answer that the object is shared \
                no more",
            );
        }
        if known.freed && overlaps(&known.buffer, &wanted.span()) {
            return stray(
                Promise::Freed,
                "a client received the answer that no session holds its object any more",
            );
        }
        if known.told_over {
            return stray(Promise::Access, "its holder received the notice that it is over");
        }
        if known.passed_on(wanted) {
            return stray(Promise::Reuse, "another permission has been granted over these bytes since");
        }
        if self.had_time_to_end(known.over_from) {
            return stray(Promise::Access, "the permission ended long ago");
        }
        Ok(())
    }

    /// Whether the permission of a successful access is over. If so, its window lingers.
    pub fn is_late(&self, wanted: &Wanted, now: Moment) -> bool {
        self.by_key.get(&wanted.key).is_some_and(|&at| self.permissions[at].over_from <= now)
    }

    /// Whether an access that was just refused should have been served.
    pub fn was_due(&self, tenant: usize, wanted: &Wanted, now: Moment) -> bool {
        self.by_key.get(&wanted.key).is_some_and(|&at| {
            let known = &self.permissions[at];
            known.tenant == tenant
                && known.covers(wanted).is_ok()
                && known.works_on(wanted.key, wanted.queue_pair)
                && !known.passed_on(wanted)
                && self.is_served(known, now)
        })
    }

    /// Whether the holder of a permission must be served. A permission over another tenant's object lives for as long as
    /// that tenant wants the object: for certain while it holds the object itself.
    fn is_served(&self, known: &Known, now: Moment) -> bool {
        let wanted = known.owner.is_none_or(|owner| self.is_held(known.object, owner, known.id.start, now));
        now < known.served_until && wanted
    }

    /// Records that a tenant may give up its objects, or take back what others hold of them.
    pub fn lets_go(&mut self, owner: usize, now: Moment) {
        self.shares.lets_go(owner, now);
        self.permissions
            .iter_mut()
            .filter(|it| it.owner == Some(owner))
            .for_each(|it| it.may_be_taken_back(now));
    }

    /// Records that a tenant was informed that it no longer shares an object.
    pub fn taken_back(&mut self, told: &TakenBack, now: Moment) {
        for it in &mut self.permissions {
            let whose = told.tenant.is_none_or(|tenant| called(it.tenant) == Some(tenant));
            if it.owner.is_some() && told.objects.contains(&it.object) && it.id.start < told.before && whose {
                it.is_over(now);
                it.taken_back = true;
            }
        }
    }

    /// Returns the permissions whose buffer or header shares a byte with `span`.
    fn near(&self, span: &Range<u64>) -> Vec<usize> {
        let from = span.start.saturating_sub(self.longest_span);
        let mut near: Vec<usize> =
            self.by_place.range(from..span.end).flat_map(|(_, list)| list.iter().copied()).collect();
        near.retain(|&at| {
            let known = &self.permissions[at];
            overlaps(&known.buffer, span) || overlaps(&known.header(), span)
        });
        near
    }

    /// Checks that a permission may be over its object: the object was not freed, and the tenant is allowed that much
    /// of it.
    fn check_object(&mut self, known: &mut Known, granted: &Granted, now: Moment) -> Vec<Stray> {
        let mut broken = Vec::new();
        if self.frees.was_freed_before(granted.object, granted.permission.start) {
            broken.push(Stray { promise: Promise::Freed, why: "its object was freed before" });
        }
        if self.frees.may_end_holders(self.shares.heads_of(granted.object)) {
            known.want_end(now);
        }
        if self.frees.has_no_holder(granted.object) {
            known.was_freed(now);
        }
        if let Some(owner) = known.owner {
            if !self.shares.allow(owner, granted, known.tenant, (known.rights, known.sharing)) {
                let why = "the object is another tenant's, which does not share it, or not that far";
                broken.push(Stray { promise: Promise::Access, why });
            }
            if self.shares.may_have_ended(owner, granted.permission.start) {
                known.may_be_taken_back(now);
            }
        }
        broken
    }

    /// Records a grant that leaves. Returns the promises that it breaks.
    pub fn granted(
        &mut self,
        granted: &Granted,
        (session, tenant, barred): (SessionId, usize, bool),
        (rights, sharing): (Rights, Sharing),
        now: Moment,
    ) -> Vec<Stray> {
        let mut known = Known::new(granted, session, tenant, rights, sharing);
        known.owner = self.shares.told(granted.object, tenant);
        if barred {
            known.is_over(now);
        }
        let mut broken = self.check_object(&mut known, granted, now);
        // The message may have waited for its client so long that the permission is over and others have followed.
        let is_over = now >= known.served_until;
        let mut places = self.near(&known.buffer);
        places.extend(self.near(&known.header()));
        places.sort_unstable();
        places.dedup();
        for at in places {
            let served = self.is_served(&self.permissions[at], now);
            let other = &mut self.permissions[at];
            let compatible = other.sharing == Sharing::Shared
                && sharing == Sharing::Shared
                && other.object == known.object;
            let buffers = overlaps(&other.buffer, &known.buffer) && !compatible;
            let loses_buffer = buffers || overlaps(&other.buffer, &known.header());
            let loses_header =
                overlaps(&other.header(), &known.buffer) || overlaps(&other.header(), &known.header());
            if is_over && other.id.start >= known.id.start {
                known.buffer_passed_on |= buffers || overlaps(&known.buffer, &other.header());
                known.header_passed_on |=
                    overlaps(&known.header(), &other.buffer) || overlaps(&known.header(), &other.header());
                continue;
            }
            if buffers {
                broken.extend(still_served(
                    other,
                    served,
                    Promise::Exclusion,
                    "a live permission is held beside it",
                ));
            } else if loses_buffer {
                broken.extend(still_served(
                    other,
                    served,
                    Promise::Reuse,
                    "its header lies in a live permission's buffer",
                ));
            }
            if loses_header {
                broken.extend(still_served(
                    other,
                    served,
                    Promise::Reuse,
                    "a live permission has its header there",
                ));
            }
            other.buffer_passed_on |= loses_buffer;
            other.header_passed_on |= loses_header;
        }
        if self.repeats_a_key(granted.credential) {
            broken.push(Stray {
                promise: Promise::Reuse,
                why: "its key was another permission's not long ago",
            });
        }
        self.enter(known, granted.credential);
        broken
    }

    /// Whether a client of the tenant has certainly held an object from one moment to another.
    pub fn is_held(&self, object: ObjectRef, tenant: usize, from: Moment, now: Moment) -> bool {
        let its = |it: &&Known| it.object == object && it.tenant == tenant && it.owner.is_none();
        let mut of_it = self.permissions.iter().filter(its);
        of_it.any(|known| known.id.start <= from && now < known.served_until && !known.ended)
    }

    /// Whether a key is granted again too soon. A permission uses at least one of its window's 256 keys, and its end
    /// uses at most one more.
    fn repeats_a_key(&mut self, credential: Credential) -> bool {
        let Credential::Keys { buffer, lifetime } = credential else { return false };
        let mut repeats = false;
        for key in if buffer == lifetime { vec![buffer] } else { vec![buffer, lifetime] } {
            let uses = self.uses.entry(key.index()).or_insert(0);
            *uses += 1;
            let before = self.used_at.insert(key, *uses);
            repeats |= before.is_some_and(|before| *uses - before < KEYS_APART);
        }
        repeats
    }

    /// Whether no client has held these bytes for so long that a request waited in vain for them.
    pub fn was_free(&self, bytes: &Range<u64>, since: Moment, now: Moment, stood_still: Lifetime) -> bool {
        let holders = self.permissions.iter().filter(|known| overlaps(&known.buffer, bytes));
        let last = holders.map(|known| known.over_from.min(now)).max().unwrap_or(since).max(since);
        now.since(last).0 > VAIN_WAIT.0 + stood_still.0
    }

    fn enter(&mut self, known: Known, credential: Credential) {
        let at = self.permissions.len();
        self.longest_span = self.longest_span.max(known.buffer.end - known.buffer.start);
        for place in [known.buffer.start, known.id.header.0] {
            let list = self.by_place.entry(place).or_default();
            // Permissions whose bytes were all granted again do not matter.
            list.retain(|&it| {
                !(self.permissions[it].buffer_passed_on && self.permissions[it].header_passed_on)
            });
            list.push(at);
        }
        let region = match credential {
            Credential::RegionKey { region, .. } => Some(key_of(region)),
            _ => None,
        };
        for key in credential.keys().chain(region) {
            self.by_key.insert(key, at);
        }
        self.by_id.insert(known.id, at);
        self.by_session.entry(known.session).or_default().push(at);
        self.permissions.push(known);
    }

    /// Records that the node has written zero at `word`. Returns the live permission with that lifetime word, the
    /// address of its object, and its bytes.
    pub fn notice(&mut self, word: u64, now: Moment) -> Option<(PermissionId, u64, Range<u64>)> {
        let near = self.near(&(word..word + 8));
        let at = near.into_iter().find(|&at| {
            let known = &self.permissions[at];
            known.word().start == word && !known.header_passed_on && self.is_served(known, now)
        })?;
        let known = &mut self.permissions[at];
        known.noticed.get_or_insert(now);
        Some((known.id, known.object.address.0, known.buffer.clone()))
    }

    /// Returns a permission that is certainly live and whose buffer the node's processor has just changed.
    pub fn written_by_node(&self, span: &Range<u64>, now: Moment) -> Option<PermissionId> {
        let hit = |&at: &usize| {
            let known = &self.permissions[at];
            overlaps(&known.buffer, span) && !known.buffer_passed_on && self.is_served(known, now)
        };
        self.near(span).into_iter().find(hit).map(|at| self.permissions[at].id)
    }
}

/// Returns the promise that is broken if a permission that must be served loses bytes.
fn still_served(other: &Known, served: bool, promise: Promise, why: &'static str) -> Option<Stray> {
    (served && !other.ended).then_some(Stray { promise, why })
}

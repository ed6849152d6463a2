//! One node as the checkers know it: its memory, its permissions, what it owes answers to.

use super::memory_model::MemoryModel;
use super::objects::Objects;
use super::permission::{Known, Wanted, overlaps};
use super::requests::Requests;
use super::{Promise, SessionId};
use portcullis_node::POOL_BASE;
use portcullis_protocol::{
    Credential, Granted, Lifetime, Moment, ObjectRef, PermissionId, Rights, Rkey, Sharing,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

/// Turns of a node after which it must have done what was due before the first of them.
const TURNS_TO_ACT: usize = 12;
/// Grants of one window between two that have the same key.
const KEYS_APART: u32 = 100;
/// How long an object may be free before who waits for it has it.
const VAIN_WAIT: Lifetime = Lifetime::millis(3);
/// How long a NIC may take over the unbinds of everything that ended at once.
const TIME_TO_UNBIND: Lifetime = Lifetime::micros(100);
/// Turns of a node that are remembered.
const TURNS_KEPT: usize = 4096;

/// Why an access that succeeded should not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stray {
    pub promise: Promise,
    pub why: &'static str,
}

/// What the checkers know of one life of a node.
#[derive(Debug)]
pub(super) struct NodeModel {
    pub memory: MemoryModel,
    pub requests: Requests,
    pub objects: Objects,
    /// Windows of ended permissions may stay bound for so long.
    linger: Lifetime,
    permissions: Vec<Known>,
    by_key: HashMap<Rkey, usize>,
    by_id: HashMap<PermissionId, usize>,
    by_session: HashMap<SessionId, Vec<usize>>,
    /// How often a region or window has been granted, by its index, and with which key when.
    uses: HashMap<u32, u32>,
    used_at: HashMap<Rkey, u32>,
    /// Permissions by where their buffer, and their header, begin.
    by_place: BTreeMap<u64, Vec<usize>>,
    /// The longest span in that map.
    longest_span: u64,
    /// When the node's last turns were, on its clock.
    turns: VecDeque<Moment>,
}

impl NodeModel {
    pub fn new(pool_bytes: u64, linger: Lifetime) -> Self {
        Self {
            memory: MemoryModel::new(pool_bytes),
            requests: Requests::default(),
            objects: Objects::default(),
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

    /// The node has had a turn.
    pub fn turned(&mut self, now: Moment) {
        if self.turns.len() == TURNS_KEPT {
            self.turns.pop_front();
        }
        self.turns.push_back(now);
    }

    /// Whether the node has had the time to end what was over from `over` on: a turn that noticed, the time that a
    /// window may linger after that, and turns enough to carry it out.
    fn had_time_to_end(&self, over: Moment) -> bool {
        let Some(&noticed) = self.turns.get(self.turns.partition_point(|&turn| turn < over)) else {
            return false;
        };
        let Some(acted) = self.turns.len().checked_sub(TURNS_TO_ACT) else { return false };
        self.turns[acted] > noticed.after(Lifetime(self.linger.0 + self.linger.0 / 4 + TIME_TO_UNBIND.0))
    }

    /// Where in the pool an address lies.
    pub fn offset(&self, address: u64, length: u64) -> Option<u64> {
        let offset = address.checked_sub(POOL_BASE.0)?;
        (offset.checked_add(length)? <= self.memory.bytes()).then_some(offset)
    }

    /// The permission with this id.
    pub fn known(&mut self, id: PermissionId) -> Option<&mut Known> {
        self.by_id.get(&id).map(|&at| &mut self.permissions[at])
    }

    /// The same, to look at.
    pub fn get(&self, id: PermissionId) -> Option<&Known> {
        self.by_id.get(&id).map(|&at| &self.permissions[at])
    }

    /// The permission that had this key last.
    pub fn by_key(&self, key: Rkey) -> Option<&Known> {
        self.by_key.get(&key).map(|&at| &self.permissions[at])
    }

    /// The permission whose lifetime word this is, as shown by the key.
    pub fn by_word(&mut self, key: Rkey, span: &Range<u64>) -> Option<&mut Known> {
        let known = &mut self.permissions[*self.by_key.get(&key)?];
        overlaps(&known.word(), span).then_some(known)
    }

    /// Does something to each permission of a session.
    pub fn for_session(&mut self, session: SessionId, mut act: impl FnMut(&mut Known)) {
        for &at in self.by_session.get(&session).map_or(&[][..], Vec::as_slice) {
            act(&mut self.permissions[at]);
        }
    }

    /// Whether a session has been granted anything.
    pub fn knows(&self, session: SessionId) -> bool {
        self.by_session.contains_key(&session)
    }

    /// Permissions whose lifetime word was spoilt, and whose they were.
    pub fn vandalised(&self) -> impl Iterator<Item = (SessionId, PermissionId)> {
        self.permissions.iter().filter(|known| known.vandalised).map(|known| (known.session, known.id))
    }

    /// Permissions of a tenant.
    pub fn of_tenant(&mut self, tenant: usize) -> impl Iterator<Item = &mut Known> {
        self.permissions.iter_mut().filter(move |known| known.tenant == tenant)
    }

    /// Whether nothing allows an access that has just succeeded.
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
        if known.passed_on(wanted) {
            return stray(Promise::Reuse, "somebody else has been given these bytes since");
        }
        if self.had_time_to_end(known.over_from) {
            return stray(Promise::Access, "the permission ended long ago");
        }
        Ok(())
    }

    /// Whether the permission of an access that succeeded is over: its window lingers.
    pub fn is_late(&self, wanted: &Wanted, now: Moment) -> bool {
        self.by_key.get(&wanted.key).is_some_and(|&at| self.permissions[at].over_from <= now)
    }

    /// Whether an access that has just been refused should have been served.
    pub fn was_due(&self, tenant: usize, wanted: &Wanted, now: Moment) -> bool {
        self.by_key.get(&wanted.key).is_some_and(|&at| {
            let known = &self.permissions[at];
            known.tenant == tenant
                && known.covers(wanted).is_ok()
                && !known.passed_on(wanted)
                && now < known.served_until
        })
    }

    /// Permissions whose buffer or header shares a byte with `span`.
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

    /// A grant goes out. Says what it breaks.
    pub fn granted(
        &mut self,
        granted: &Granted,
        (session, tenant, barred): (SessionId, usize, bool),
        (rights, sharing): (Rights, Sharing),
        now: Moment,
    ) -> Vec<Stray> {
        let mut known = Known::new(granted, session, tenant, rights, sharing);
        if barred {
            known.is_over(now);
        }
        // Its message may have waited for its client for so long that it is over, and others have followed.
        let is_over = now >= known.served_until;
        let mut broken = Vec::new();
        let mut places = self.near(&known.buffer);
        places.extend(self.near(&known.header()));
        places.sort_unstable();
        places.dedup();
        for at in places {
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
                    now,
                    Promise::Exclusion,
                    "a live permission is held beside it",
                ));
            } else if loses_buffer {
                broken.extend(still_served(
                    other,
                    now,
                    Promise::Reuse,
                    "its header lies in a live permission's buffer",
                ));
            }
            if loses_header {
                broken.extend(still_served(
                    other,
                    now,
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

    /// Whether somebody of the tenant has surely held an object from one moment to another.
    pub fn is_held(&self, object: ObjectRef, tenant: usize, from: Moment, now: Moment) -> bool {
        let mut of_it = self.permissions.iter().filter(|it| it.object == object && it.tenant == tenant);
        of_it.any(|known| known.id.start <= from && now < known.served_until && !known.ended)
    }

    /// Whether a key is granted again before its window has gone through its others: each permission takes one of 256
    /// at least, and its end another at most.
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

    /// Whether nobody has held these bytes for so long that a request waited in vain for them.
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
            // Those whose bytes have all been passed on matter no more.
            list.retain(|&it| {
                !(self.permissions[it].buffer_passed_on && self.permissions[it].header_passed_on)
            });
            list.push(at);
        }
        if let Credential::Keys { buffer, lifetime } = credential {
            self.by_key.insert(buffer, at);
            self.by_key.insert(lifetime, at);
        }
        self.by_id.insert(known.id, at);
        self.by_session.entry(known.session).or_default().push(at);
        self.permissions.push(known);
    }

    /// The node has written zero at `word`: the live permission whose lifetime word that is, where its object lies, and
    /// which bytes it is over.
    pub fn notice(&mut self, word: u64, now: Moment) -> Option<(PermissionId, u64, Range<u64>)> {
        let near = self.near(&(word..word + 8));
        let at = near.into_iter().find(|&at| {
            let known = &self.permissions[at];
            known.word().start == word && !known.header_passed_on && now < known.served_until
        })?;
        let known = &mut self.permissions[at];
        known.noticed.get_or_insert(now);
        Some((known.id, known.object.address.0, known.buffer.clone()))
    }

    /// A permission that is surely live and whose buffer the node's processor has just changed.
    pub fn written_by_node(&self, span: &Range<u64>, now: Moment) -> Option<PermissionId> {
        let hit = |&at: &usize| {
            let known = &self.permissions[at];
            overlaps(&known.buffer, span) && !known.buffer_passed_on && now < known.served_until
        };
        self.near(span).into_iter().find(hit).map(|at| self.permissions[at].id)
    }
}

/// What it breaks that a permission which must be served loses bytes.
fn still_served(other: &Known, now: Moment, promise: Promise, why: &'static str) -> Option<Stray> {
    (now < other.served_until && !other.ended).then_some(Stray { promise, why })
}

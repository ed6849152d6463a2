//! The test's record of a node's past: every key that was ever granted, and the bytes that were written with it.

use crate::rig::{Rig, keys, word};
use portcullis_nic::Status;
use portcullis_protocol::{
    Granted, Lifetime, Moment, QueuePairRequest, Refusal, ReplyBody, RequestBody, Rights, Rkey, Sharing,
};
use std::collections::{HashMap, HashSet};

pub const TENANTS: [&str; 2] = ["a", "b"];
pub const LONGEST: Lifetime = Lifetime::millis(300);
/// Bytes at both ends of a buffer that are tested: enough to reach every window's bounds.
const EDGE: u64 = 64;

/// A permission that was granted. It may have ended. The newest record is last.
pub struct Record {
    pub granted: Granted,
    pub rights: Rights,
    pub tenant: usize,
    pub client: usize,
    /// Whether the holder revoked the permission or left.
    pub ended: bool,
    /// Whether the holder changed the lifetime word: then the permission may live up to the longest lifetime, or not.
    pub touched: bool,
    /// Whether it began without other holders of its memory: all earlier ones were over.
    alone: bool,
    /// The number of records when the permission was first known to be over.
    over_at: Option<usize>,
}

impl Record {
    pub fn is_live(&self, now: Moment) -> bool {
        !self.ended && now < self.granted.permission.start.after(self.granted.lifetime)
    }

    pub fn is_over(&self, now: Moment) -> bool {
        let most = if self.touched { LONGEST } else { self.granted.lifetime };
        self.ended || now >= self.granted.permission.start.after(most)
    }

    fn end(&self) -> u64 {
        self.granted.address().0 + self.granted.length
    }
}

pub struct World {
    pub rig: Rig,
    /// The tenant of each attached client.
    pub tenants: HashMap<usize, usize>,
    pub records: Vec<Record>,
    /// The tenant that wrote each stamp.
    stamps: Vec<usize>,
    /// The stamp with which each object that may be live is filled, by address, once it is written.
    contents: HashMap<u64, Option<u64>>,
}

/// The first stamp. The node writes nothing like it.
const STAMP: u64 = 0x5a5a_0000_0000_0000;

impl World {
    pub fn new(rig: Rig) -> Self {
        let (tenants, contents) = (HashMap::new(), HashMap::new());
        Self { rig, tenants, records: Vec::new(), stamps: Vec::new(), contents }
    }

    pub fn attach(&mut self, tenant: usize) {
        let client = self.rig.attach(TENANTS[tenant]);
        self.tenants.insert(client, tenant);
    }

    pub fn detach(&mut self, client: usize) {
        self.rig.detach(client);
        // The node does not announce the ends. So a sibling that knows the keys may use them until the node's next
        // turn.
        self.rig.settle();
        self.tenants.remove(&client);
        for record in self.records.iter_mut().filter(|record| record.client == client) {
            record.ended = true;
            // Another client may get the number soon.
            record.client = usize::MAX;
        }
    }

    /// The `pick`-th client of a tenant, or of all tenants.
    pub fn client(&self, pick: usize, tenant: Option<usize>) -> Option<usize> {
        let mut all: Vec<usize> = self.tenants.keys().copied().collect();
        all.retain(|client| tenant.is_none_or(|tenant| self.tenants[client] == tenant));
        all.sort_unstable();
        (!all.is_empty()).then(|| all[pick % all.len()])
    }

    pub fn live(&self, pick: usize) -> Option<usize> {
        let now = self.rig.now;
        let live: Vec<usize> = (0..self.records.len()).filter(|&at| self.records[at].is_live(now)).collect();
        (!live.is_empty()).then(|| live[pick % live.len()])
    }

    /// Takes a reply to a request for a permission: checks the memory that was granted, and fills it.
    pub fn note(
        &mut self,
        client: usize,
        (rights, sharing): (Rights, Sharing),
        is_new: bool,
        reply: ReplyBody,
    ) {
        let granted = match reply {
            ReplyBody::Granted(granted) => granted,
            ReplyBody::Refused(
                Refusal::OutOfMemory { .. } | Refusal::NodeFull { .. } | Refusal::Conflict | Refusal::Gone,
            ) => return,
            other => panic!("{other:?}"),
        };
        let tenant = self.tenants[&client];
        let alone = is_new || sharing == Sharing::Exclusive;
        let record =
            Record { granted, rights, tenant, client, ended: false, touched: false, alone, over_at: None };
        let now = self.rig.now;
        for other in self.records.iter().filter(|other| other.is_live(now)) {
            let apart = other.end() <= granted.address().0 || record.end() <= other.granted.address().0;
            let same = other.granted.address() == granted.address() && other.tenant == tenant && !is_new;
            assert!(apart || same, "{granted:?} lies over {:?}", other.granted);
            assert_ne!(other.granted.permission.header, granted.permission.header, "a header for two");
        }
        self.records.push(record);
        if is_new {
            self.contents.insert(granted.address().0, None);
        }
        self.look(self.records.len() - 1);
        self.fill(self.records.len() - 1);
    }

    pub fn fill(&mut self, at: usize) {
        let Record { granted, rights, tenant, client, .. } = self.records[at];
        if !rights.contains(Rights::WRITE) {
            return;
        }
        let stamp = self.stamp(tenant);
        let bytes = stamp.to_le_bytes().repeat(usize::try_from(granted.length / 8).expect("small"));
        let status = self.rig.write(client, keys(&granted).0, granted.address().0, &bytes);
        assert_eq!(status, Status::Success, "a live permission writes: {granted:?}");
        self.contents.insert(granted.address().0, Some(stamp));
    }

    fn stamp(&mut self, tenant: usize) -> u64 {
        self.stamps.push(tenant);
        STAMP + self.stamps.len() as u64 - 1
    }

    fn check_words(&self, tenant: usize, start: u64, bytes: &[u8], what: &str) {
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight")));
        // A tenant may find the remains of headers at places where its own objects had them.
        let own_headers: HashSet<u64> = self
            .records
            .iter()
            .filter(|record| record.tenant == tenant)
            .flat_map(|record| (0..4).map(|word| record.granted.permission.header.0 + 8 * word))
            .collect();
        for (_, word) in (start..).step_by(8).zip(words).filter(|(at, _)| !own_headers.contains(at)) {
            let index = usize::try_from(word.wrapping_sub(STAMP)).unwrap_or(usize::MAX);
            let own = self.stamps.get(index).is_some_and(|&of| of == tenant);
            assert!(word == 0 || own, "{what} shows {word:#x}, which is not tenant {tenant}'s");
        }
    }

    /// Checks that a live permission opens its bytes, as they were last written.
    pub fn look(&mut self, at: usize) {
        let Record { granted, rights, tenant, client, .. } = self.records[at];
        if !rights.contains(Rights::READ) {
            return;
        }
        let length = u32::try_from(granted.length).expect("small");
        let (status, bytes) = self.rig.read(client, keys(&granted).0, granted.address().0, length);
        assert_eq!(status, Status::Success, "a live permission reads: {granted:?}");
        match self.contents.get(&granted.address().0).copied().flatten() {
            Some(stamp) => {
                assert!(
                    bytes.chunks_exact(8).all(|word| word == stamp.to_le_bytes()),
                    "{granted:?} was changed"
                );
            }
            None => self.check_words(tenant, granted.address().0, &bytes, "fresh memory"),
        }
    }

    pub fn look_at_all(&mut self) {
        for at in 0..self.records.len() {
            if self.records[at].is_live(self.rig.now) {
                self.look(at);
            }
        }
    }

    /// Marks the permissions that are over by now.
    pub fn see_ends(&mut self) {
        let (now, count) = (self.rig.now, self.records.len());
        for record in self.records.iter_mut().filter(|record| record.is_over(now)) {
            record.over_at.get_or_insert(count);
        }
    }

    /// Whether another client was given any of these bytes after permission `at`, or holds them now.
    fn is_anothers(&self, at: usize, from: u64, to: u64) -> bool {
        let now = self.rig.now;
        self.records.iter().enumerate().any(|(other, record)| {
            let overlaps = record.granted.address().0 < to && from < record.end();
            let since = self.records[at].over_at.is_some_and(|over_at| other >= over_at);
            other != at && overlaps && (since || (record.alone && other > at) || record.is_live(now))
        })
    }

    /// Tries the keys of an ended permission, as a client of its tenant or of another tenant.
    pub fn try_stale(&mut self, pick: usize, by: usize) {
        let now = self.rig.now;
        let over: Vec<usize> = (0..self.records.len()).filter(|&at| self.records[at].is_over(now)).collect();
        // The latest permissions are the most likely to be still open, so half of the tries use them.
        let recent = if pick.is_multiple_of(2) { 6 } else { over.len() };
        let Some(&at) = over.iter().rev().nth((pick / 2) % recent.clamp(1, over.len().max(1))) else {
            return;
        };
        let Some(client) = self.client(by, None) else { return };
        let Record { granted, tenant, .. } = self.records[at];
        let (key, lifetime_key) = keys(&granted);
        let own = self.tenants[&client] == tenant;
        let (first, last) = (granted.address().0, granted.address().0 + granted.length);
        for start in [first, last - EDGE.min(granted.length)] {
            let length = EDGE.min(granted.length);
            let may = own && !self.is_anothers(at, start, start + length);
            self.stale_write(client, key, (start, length), may);
            self.stale_read(client, key, (start, length), may);
        }
        let later = &self.records[at + 1..];
        let header_anothers =
            later.iter().any(|it| it.granted.permission.header == granted.permission.header);
        let (status, _) = self.rig.swap(client, lifetime_key, word(&granted), 1, 1);
        assert!(status != Status::Success || (own && !header_anothers), "a stale extension of {granted:?}");
        self.mend(client, status);
    }

    fn stale_read(&mut self, client: usize, key: Rkey, (start, length): (u64, u64), may: bool) {
        let (status, bytes) = self.rig.read(client, key, start, u32::try_from(length).expect("small"));
        assert!(status != Status::Success || may, "a stale read with {key:?} at {start:#x}");
        if status == Status::Success {
            self.check_words(self.tenants[&client], start, &bytes, "a stale read");
        }
        self.mend(client, status);
    }

    fn stale_write(&mut self, client: usize, key: Rkey, (start, length): (u64, u64), may: bool) {
        let stamp = self.stamp(self.tenants[&client]).to_le_bytes();
        let bytes = stamp.repeat(usize::try_from(length / 8).expect("small"));
        let status = self.rig.write(client, key, start, &bytes);
        assert!(status != Status::Success || may, "a stale write with {key:?} at {start:#x}");
        self.mend(client, status);
    }

    fn mend(&mut self, client: usize, status: Status) {
        if status != Status::Success {
            assert_eq!(status, Status::RemoteAccessError);
            self.rig.turn();
            let reply = self
                .rig
                .ask_soon(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }));
            assert_eq!(reply, ReplyBody::Done);
            portcullis_nic::DataQueuePairs::rebuilt(&mut self.rig.seat(client).endpoint, 0);
        }
    }
}

//! What the NIC has done with the chunks, taken up afterwards: late, but complete.
//!
//! A counting completion queue says that something has happened: each allocation and each free releases the lock once.
//! Then the records are read, some at a time. An allocation names its holder in the record only after it has released the
//! lock, so the records are read again until no worker had a request in hand when the reading began. A record counts its uses, so what happened between two readings is counted
//! too, although nobody knows any more who held the chunk meanwhile.

use portcullis_nic::{Memory, RemoteAddress};
use portcullis_offload::{ChunkPool, ClientNumber};
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, Lifetime, Moment};
use std::collections::BTreeMap;

/// How long the node waits from one reading of all records to the next.
const BETWEEN: Lifetime = Lifetime::millis(1);
/// The longest that it waits while a worker has a request in hand and nothing changes: a client that posts no receive for
/// the reply can keep its worker so.
const LONGEST: Lifetime = Lifetime::millis(1000);

/// A chunk as it was read last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    holder: Option<ClientNumber>,
    /// Who held it last, if nobody does.
    last: Option<ClientNumber>,
    uses: u64,
}

/// A change that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Adopted {
    pub chunk: RemoteAddress,
    /// Who held it when it was read before.
    pub before: Option<ClientNumber>,
    pub now: Option<ClientNumber>,
    /// How often it was freed since.
    pub frees: u64,
    /// The number of its present use, or of its next one.
    pub number_of_use: u64,
}

/// All chunks, as they were read last.
#[derive(Debug)]
pub(crate) struct Adoption {
    seen: Vec<Seen>,
    held: BTreeMap<ClientNumber, u64>,
    frees: u64,
    /// Releases of the lock when the present reading began.
    releases: u32,
    /// The next record to be read. `None`: no reading is under way.
    next: Option<usize>,
    /// There may be something new to be read.
    is_due: bool,
    /// The present reading began when no worker had a request in hand, so it misses nothing.
    is_final: bool,
    /// The present reading has found a change.
    has_found: bool,
    read_at: Moment,
    /// How long it waits after that.
    pause: Lifetime,
}

impl Adoption {
    pub fn new<M: Memory>(pool: &ChunkPool<M, CHUNK_QUEUE_PAIRS>) -> Self {
        let chunks = 0..pool.geometry().chunks;
        let seen = chunks.map(|chunk| Seen { holder: None, last: None, uses: pool.number_of_use(chunk) });
        let seen = seen.collect();
        Self {
            seen,
            held: BTreeMap::new(),
            frees: 0,
            releases: 0,
            next: None,
            is_due: false,
            is_final: true,
            has_found: false,
            read_at: Moment(0),
            pause: BETWEEN,
        }
    }

    /// Reads some records, if there may be something new in them. `is_at_rest`: whether no worker has a request in hand.
    pub fn step<M: Memory>(
        &mut self,
        pool: &ChunkPool<M, CHUNK_QUEUE_PAIRS>,
        (releases, is_at_rest): (u32, impl FnOnce() -> bool),
        steps: u32,
        now: Moment,
    ) -> Vec<Adopted> {
        if releases != self.releases && self.next.is_none() {
            (self.is_due, self.pause) = (true, BETWEEN);
        }
        if !self.is_due || self.next.is_none() && now < self.read_at.after(self.pause) {
            return Vec::new();
        }
        let first = self.next.unwrap_or_else(|| {
            (self.releases, self.is_final, self.has_found) = (releases, is_at_rest(), false);
            0
        });
        let end = first.saturating_add(steps as usize).min(self.seen.len());
        let found: Vec<_> = (first..end).filter_map(|place| self.read(pool, place)).collect();
        self.has_found |= !found.is_empty();
        self.next = (end < self.seen.len()).then_some(end);
        self.read_at = now;
        if self.next.is_none() {
            self.is_due = !self.is_final;
            let longer = Lifetime(self.pause.0.saturating_mul(2)).min(LONGEST);
            self.pause = if self.has_found { BETWEEN } else { longer };
        }
        found
    }

    /// The table has changed although the lock was not released.
    pub fn look_again(&mut self) {
        (self.is_due, self.next, self.pause) = (true, None, BETWEEN);
    }

    fn read<M: Memory>(&mut self, pool: &ChunkPool<M, CHUNK_QUEUE_PAIRS>, place: usize) -> Option<Adopted> {
        let chunk = place as u64;
        let (uses, holder) = (pool.number_of_use(chunk), pool.holder(chunk));
        let seen = &mut self.seen[place];
        let before = seen.holder;
        let frees = uses.wrapping_sub(seen.uses);
        if frees == 0 && before == holder {
            return None;
        }
        *seen = Seen { holder, last: before.or(seen.last), uses };
        self.frees += frees;
        if let Some(before) = before
            && let Some(count) = self.held.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&before);
            }
        }
        if let Some(holder) = holder {
            *self.held.entry(holder).or_default() += 1;
        }
        let chunk = pool.geometry().address(chunk);
        Some(Adopted { chunk, before, now: holder, frees, number_of_use: uses })
    }

    /// When there is something to be read, if there is.
    pub fn next_step(&self) -> Option<Moment> {
        let pause = if self.next.is_some() { Lifetime(0) } else { self.pause };
        self.is_due.then(|| self.read_at.after(pause))
    }

    /// Whether a client was a chunk's last holder.
    pub fn was_holder(&self, chunk: u64, client: ClientNumber) -> bool {
        let seen = usize::try_from(chunk).ok().and_then(|place| self.seen.get(place));
        seen.is_some_and(|seen| seen.holder == Some(client) || seen.last == Some(client))
    }

    /// Chunks that somebody holds.
    pub fn held(&self) -> u64 {
        self.held.values().sum()
    }

    /// Chunks that a client holds.
    pub fn held_by(&self, client: ClientNumber) -> u64 {
        self.held.get(&client).copied().unwrap_or(0)
    }

    /// How often a chunk was allocated.
    pub fn allocations(&self) -> u64 {
        self.frees + self.held()
    }
}

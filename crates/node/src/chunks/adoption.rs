//! Records afterwards the changes that the NIC has made to the chunks: late, but completely.
//!
//! A counting completion queue shows that something has happened: each allocation and each free releases the lock once.
//! Then the node reads the records, some at a time. An allocation writes its holder into the record only after it has
//! released the lock. So the node reads the records again, until no worker had a request in hand when the reading
//! began. A record counts its uses, so uses between two readings are counted too, although their holders are not known
//! any more.

use portcullis_nic::{Memory, RemoteAddress};
use portcullis_offload::{ChunkPool, ClientNumber};
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, Lifetime, Moment};
use std::collections::BTreeMap;

/// Time from one reading of all records to the next.
const BETWEEN: Lifetime = Lifetime::millis(1);
/// The longest time between two readings while a worker has a request in hand and nothing changes. A client that posts
/// no receive for the reply can keep its worker in that state.
const LONGEST: Lifetime = Lifetime::millis(1000);

/// A chunk, as it was last read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    holder: Option<ClientNumber>,
    /// The chunk's last holder, if it has none now.
    last: Option<ClientNumber>,
    uses: u64,
}

/// A change of a chunk that a reading has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Adopted {
    pub chunk: RemoteAddress,
    /// The chunk's holder at the previous reading.
    pub before: Option<ClientNumber>,
    pub now: Option<ClientNumber>,
    /// Number of frees since then.
    pub frees: u64,
    /// Number of the chunk's present use, or of its next one.
    pub number_of_use: u64,
}

/// All chunks, as they were last read.
#[derive(Debug)]
pub(crate) struct Adoption {
    seen: Vec<Seen>,
    held: BTreeMap<ClientNumber, u64>,
    frees: u64,
    /// Number of releases of the lock when the present reading began.
    releases: u32,
    /// The next record to read. `None`: no reading is under way.
    next: Option<usize>,
    /// Whether there may be something new to read.
    is_due: bool,
    /// Whether no worker had a request in hand when the present reading began, so that it misses nothing.
    is_final: bool,
    /// Whether the present reading has found a change.
    has_found: bool,
    read_at: Moment,
    /// Time from `read_at` to the next reading.
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

    /// Reads some records, if there may be something new in them. `is_at_rest` returns whether no worker has a request
    /// in hand.
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

    /// Schedules a reading of the table, which has changed although the lock was not released.
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

    /// Returns the time of the next reading, if one is due.
    pub fn next_step(&self) -> Option<Moment> {
        let pause = if self.next.is_some() { Lifetime(0) } else { self.pause };
        self.is_due.then(|| self.read_at.after(pause))
    }

    /// Whether a client holds a chunk, or was its last holder.
    pub fn was_holder(&self, chunk: u64, client: ClientNumber) -> bool {
        let seen = usize::try_from(chunk).ok().and_then(|place| self.seen.get(place));
        seen.is_some_and(|seen| seen.holder == Some(client) || seen.last == Some(client))
    }

    /// Returns the number of chunks that are held.
    pub fn held(&self) -> u64 {
        self.held.values().sum()
    }

    /// Returns the number of chunks that a client holds.
    pub fn held_by(&self, client: ClientNumber) -> u64 {
        self.held.get(&client).copied().unwrap_or(0)
    }

    /// Returns the number of allocations of chunks.
    pub fn allocations(&self) -> u64 {
        self.frees + self.held()
    }
}

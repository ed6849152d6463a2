//! Assignment of keys to sandboxes. There may be more sandboxes than keys: a sandbox keeps its key from one trap to the
//! next, until another sandbox needs it (RPCool §5.2, «cached» sandboxes).

use crate::keys::{Key, READ_WRITE, withheld};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of keys for sandboxes. The processor has sixteen, of which one is that of ordinary memory and one is that of
/// withheld memory.
pub(super) const KEYS_MAX: usize = 14;
/// No sandbox.
const NOBODY: u64 = 0;
/// Bit of a sandbox's number: the sandbox is in a trap, and keeps its key.
const IN_TRAP: u64 = 1 << 63;

/// Holder of each key: the sandbox's number.
static HOLDERS: [AtomicU64; KEYS_MAX] = [const { AtomicU64::new(NOBODY) }; KEYS_MAX];
/// Number of threads that wait for a key.
static WAITING: AtomicU32 = AtomicU32::new(0);
static RING: Mutex<Ring> = Mutex::new(Ring { keys: [const { None }; KEYS_MAX], next: 0 });
static CHANGED: Condvar = Condvar::new();

/// State that is read only when a key changes its holder.
struct Ring {
    keys: [Option<Held>; KEYS_MAX],
    /// The place at which the search for a holder that must give up its key begins.
    next: usize,
}

/// A key, and the pages that have it.
struct Held {
    key: Key,
    by: Option<Pages>,
}

/// The pages of a sandbox: its stack, and its temporary heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages([(usize, usize); 2]);

impl Pages {
    /// Pages that are mapped, and that may be read and written, for as long as their [`Holder`] lives.
    pub fn new(pages: [(usize, usize); 2]) -> Self {
        Self(pages)
    }

    fn give(&self, key: Key) -> Result<(), Errno> {
        self.0.iter().try_for_each(|&(start, bytes)| {
            // SAFETY: the holder's pages are mapped to be read and written. The holder lives: it takes the ring's lock
            // before it ends.
            unsafe { key.give_to(start, bytes, READ_WRITE) }
        })
    }
}

/// A sandbox in its role as the holder of a key.
#[derive(Debug)]
pub(super) struct Holder {
    /// The sandbox's number. No other sandbox ever has it.
    number: u64,
    pages: Pages,
    /// Place and number of the key that the sandbox had last.
    place: AtomicUsize,
    key: AtomicU32,
}

impl Holder {
    /// Creates the holder for a sandbox with these pages. They are withheld from all trapped code until the sandbox has
    /// a key.
    pub fn new(pages: Pages) -> Result<Self, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        withheld().map_or(Ok(()), |key| pages.give(key))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < IN_TRAP, "as many sandboxes were never made");
        Ok(Self { number, pages, place: AtomicUsize::new(0), key: AtomicU32::new(0) })
    }

    /// Leases a key to the sandbox, for as long as the lease lives. Returns `None` if this machine has no keys.
    ///
    /// If all keys belong to sandboxes that are in a trap, it waits until one of them leaves its trap.
    #[inline]
    pub fn lease(&self) -> Result<Option<KeyLease>, Errno> {
        if withheld().is_none() {
            return Ok(None);
        }
        let place = self.place.load(Ordering::Relaxed);
        let (idle, busy) = (self.number, self.number | IN_TRAP);
        if HOLDERS[place].compare_exchange(idle, busy, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            // No other sandbox takes the key while it is busy, so the ring is not locked.
            let key = Key::numbered(self.key.load(Ordering::Relaxed));
            return Ok(Some(KeyLease { place, key, number: self.number }));
        }
        self.get_key()
    }

    #[cold]
    fn get_key(&self) -> Result<Option<KeyLease>, Errno> {
        let mut ring = lock();
        loop {
            if let Some(place) = ring.take_place(self.number | IN_TRAP) {
                let given = ring.hand_over(place, self.pages);
                drop(ring);
                // If the assignment failed, the next holder of the key has to do it again.
                let number = if given.is_ok() { self.number } else { NOBODY };
                let key = given.as_ref().map_or(Key::numbered(0), |key| *key);
                let lease = KeyLease { place, key, number };
                self.place.store(place, Ordering::Relaxed);
                self.key.store(key.number(), Ordering::Relaxed);
                return given.map(|_| Some(lease));
            }
            if ring.keys.iter().all(Option::is_none) {
                // Another part of the program has taken all keys.
                return Ok(None);
            }
            WAITING.fetch_add(1, Ordering::SeqCst);
            // A sandbox that left its trap before it saw a waiting thread has left its key to be found.
            if ring.are_all_in_traps() {
                ring = CHANGED.wait(ring).unwrap_or_else(PoisonError::into_inner);
            }
            WAITING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let place = self.place.load(Ordering::Relaxed);
        let mut ring = lock();
        let is_mine =
            HOLDERS[place].compare_exchange(self.number, NOBODY, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if is_mine && let Some(held) = &mut ring.keys[place] {
            // The pages are about to be unmapped.
            held.by = None;
        }
    }
}

/// A key in use. Dropping it leaves the key with the sandbox until another one needs it.
#[derive(Debug)]
pub(super) struct KeyLease {
    place: usize,
    pub key: Key,
    number: u64,
}

impl Drop for KeyLease {
    #[inline]
    fn drop(&mut self) {
        // In one order with the writes and reads of a waiting thread: one of the two sees the other.
        HOLDERS[self.place].store(self.number, Ordering::SeqCst);
        if WAITING.load(Ordering::SeqCst) > 0 {
            drop(lock());
            CHANGED.notify_all();
        }
    }
}

fn lock() -> MutexGuard<'static, Ring> {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ring {
    /// Takes the place of a key that is not in use at this moment, for a new holder.
    fn take_place(&mut self, holder: u64) -> Option<usize> {
        let take = |place: usize, from: u64| {
            HOLDERS[place].compare_exchange(from, holder, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let has_key = |ring: &Self, place: usize| ring.keys[place].is_some();
        if let Some(free) = (0..KEYS_MAX).find(|&place| has_key(self, place) && take(place, NOBODY)) {
            return Some(free);
        }
        if let Some(place) = (0..KEYS_MAX).find(|&place| !has_key(self, place))
            && let Some(key) = Key::allocate()
        {
            self.keys[place] = Some(Held { key, by: None });
            let is_taken = take(place, NOBODY);
            assert!(is_taken, "no process holds a key that did not exist");
            return Some(place);
        }
        let begin = self.next;
        let place = (0..KEYS_MAX).map(|step| (begin + step) % KEYS_MAX).find(|&place| {
            let idle = HOLDERS[place].load(Ordering::SeqCst);
            has_key(self, place) && idle & IN_TRAP == 0 && take(place, idle)
        })?;
        self.next = place + 1;
        Some(place)
    }

    fn are_all_in_traps(&self) -> bool {
        let is_idle = |place: usize| HOLDERS[place].load(Ordering::SeqCst) & IN_TRAP == 0;
        !(0..KEYS_MAX).any(|place| self.keys[place].is_some() && is_idle(place))
    }

    /// Takes the key at a place from the pages that had it, and assigns it to others.
    fn hand_over(&mut self, place: usize, pages: Pages) -> Result<Key, Errno> {
        let held = self.keys[place].as_mut().expect("a place that was taken has a key");
        if let (Some(former), Some(withheld)) = (held.by, withheld()) {
            former.give(withheld)?;
        }
        // The record is made even if only some of the pages get the key: the next holder takes it from all of them.
        held.by = Some(pages);
        pages.give(held.key).map(|()| held.key)
    }
}

//! Which sandbox has which key. There are fewer keys than there may be sandboxes: a sandbox keeps its key from one trap to the next,
//! until another one needs it (RPCool §5.2, «cached» sandboxes).

use crate::keys::{Key, READ_WRITE, withheld};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Keys for sandboxes: the processor has sixteen, of which one is everybody's and one is that of withheld memory.
pub(super) const KEYS_MAX: usize = 14;
/// No sandbox.
const NOBODY: u64 = 0;
/// The bit that says that a sandbox is in a trap, and keeps its key.
const IN_TRAP: u64 = 1 << 63;

/// Who has each key: the sandbox's number.
static HOLDERS: [AtomicU64; KEYS_MAX] = [const { AtomicU64::new(NOBODY) }; KEYS_MAX];
/// Whoever waits for a key.
static WAITING: AtomicU32 = AtomicU32::new(0);
static RING: Mutex<Ring> = Mutex::new(Ring { keys: [const { None }; KEYS_MAX], next: 0 });
static CHANGED: Condvar = Condvar::new();

/// What is looked at only where a key changes hands.
struct Ring {
    keys: [Option<Held>; KEYS_MAX],
    /// Where the search for a holder that gives its key up begins.
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
            // SAFETY: the holder's pages are mapped to be read and written. It lives: it takes the ring's lock before it ends.
            unsafe { key.give_to(start, bytes, READ_WRITE) }
        })
    }
}

/// A sandbox, as one that may have a key.
#[derive(Debug)]
pub(super) struct Holder {
    /// No other one had or will have it.
    number: u64,
    pages: Pages,
    /// Where the key is that it had last, and which one it was.
    place: AtomicUsize,
    key: AtomicU32,
}

impl Holder {
    /// For a sandbox with these pages. They are withheld from all trapped code until it has a key.
    pub fn new(pages: Pages) -> Result<Self, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        withheld().map_or(Ok(()), |key| pages.give(key))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < IN_TRAP, "as many sandboxes were never made");
        Ok(Self { number, pages, place: AtomicUsize::new(0), key: AtomicU32::new(0) })
    }

    /// Has a key for as long as the lease lives. `None`: this machine has none.
    ///
    /// Where all keys are those of sandboxes that are in a trap, it waits until one comes out of it.
    #[inline]
    pub fn lease(&self) -> Result<Option<KeyLease>, Errno> {
        if withheld().is_none() {
            return Ok(None);
        }
        let place = self.place.load(Ordering::Relaxed);
        let (idle, busy) = (self.number, self.number | IN_TRAP);
        if HOLDERS[place].compare_exchange(idle, busy, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            // Nobody takes it away while it is busy, so the ring is not asked.
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
                // What failed has to be done again by whoever has the key next.
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
            // Whoever came out of a trap before it saw that somebody waits has left its key to be found.
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
            // The pages are about to go.
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
        // In one order with what a waiting thread writes and reads: one of both sees the other.
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
    /// The place of a key that is in nobody's use at this moment, for a new holder.
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
            assert!(is_taken, "nobody holds a key that was not there");
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

    /// Takes the key at a place from the pages that had it, and gives it to others.
    fn hand_over(&mut self, place: usize, pages: Pages) -> Result<Key, Errno> {
        let held = self.keys[place].as_mut().expect("a place that was taken has a key");
        if let (Some(former), Some(withheld)) = (held.by, withheld()) {
            former.give(withheld)?;
        }
        // Also where only some of them get it: whoever has the key next takes it away from all.
        held.by = Some(pages);
        pages.give(held.key).map(|()| held.key)
    }
}

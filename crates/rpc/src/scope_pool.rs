//! Pools of scopes: pages that are used for one call after another (RPCool §5.1).
//!
//! A heap takes and frees pages one by one, each with a word that all processes see, and it uses other pages each time.
//! A pool uses the same pages again, which are still in the caches of both sides. Figures:
//! `examples/scope_pool_cost.rs`.

use crate::heap::Heap;
use crate::{HeapFull, Scope};

/// Scopes of one size that are kept between calls. Dropping the pool frees the scopes that it keeps.
///
/// A caller that takes a scope owns it. When the call has ended, the caller gives the scope back, drops it, or passes
/// it on like any other. Values in a scope stay in its pages until they are overwritten, so a later receiver may see
/// them, as it may see everything else in the heap.
///
/// A process that has the heap may free pages that the pool keeps. Then another process may get them too, and the two
/// overwrite each other's values, which is all that such a process can do in any case ([`Heap`]).
///
/// ```
/// use portcullis_rpc::{Boxed, Heap, HeapPlace, Owner, ScopePool};
///
/// let place = HeapPlace::new(portcullis_rpc::heap::HEAP_ADDRESSES.start, 1 << 20)?;
/// let heap = Heap::create(place, Owner(1))?;
/// let mut pool = ScopePool::new(&heap, 4096, 8, 32)?;
/// for call in 0..100_u64 {
///     let scope = pool.take()?;
///     let root = Boxed::new(&scope, call)?;
///     // Here the call would be.
///     assert_eq!(root.read(&heap)?, call);
///     pool.give_back(scope);
/// }
/// assert_eq!(pool.kept(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ScopePool {
    heap: Heap,
    /// Minimal number of bytes of each scope.
    bytes: u64,
    kept_max: usize,
    /// Scopes that are kept. The last one was used last, and is taken next.
    kept: Vec<Scope>,
}

impl ScopePool {
    /// Creates a pool of scopes of at least `bytes` each, and makes `ahead` of them. The pool never keeps more than
    /// `kept_max`.
    ///
    /// # Errors
    /// The heap has no room for the scopes that are made ahead. None of them stays allocated.
    pub fn new(heap: &Heap, bytes: u64, ahead: usize, kept_max: usize) -> Result<Self, HeapFull> {
        let kept: Result<Vec<Scope>, HeapFull> =
            (0..ahead.min(kept_max)).map(|_| heap.scope(bytes)).collect();
        Ok(Self { heap: heap.clone(), bytes, kept_max, kept: kept? })
    }

    /// Takes an empty scope: one that the pool keeps, or a new one.
    ///
    /// # Errors
    /// The pool keeps no scope, and the heap has no room.
    pub fn take(&mut self) -> Result<Scope, HeapFull> {
        self.kept.pop().map_or_else(|| self.heap.scope(self.bytes), Ok)
    }

    /// Takes a scope back, and empties it. If the pool is full, or the scope is too small or of another heap, its pages
    /// are freed.
    pub fn give_back(&mut self, mut scope: Scope) {
        if self.kept.len() < self.kept_max && scope.length() >= self.bytes && scope.is_of(&self.heap) {
            scope.reset();
            self.kept.push(scope);
        }
    }

    /// Frees the pages of kept scopes, the least recently used first, until `left` scopes are left.
    pub fn shrink_to(&mut self, left: usize) {
        self.kept.drain(..self.kept.len().saturating_sub(left));
    }

    /// Number of scopes that are kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::{HEAP_ADDRESSES, HeapPlace, Owner};
    use crate::{Boxed, Room};
    use proptest::prelude::*;

    fn heap(test: u64) -> Heap {
        let place = HeapPlace::new(HEAP_ADDRESSES.start + (11 << 40) + (test << 32), 1 << 20).unwrap();
        Heap::create(place, Owner(1)).unwrap()
    }

    #[test]
    fn scopes_are_used_again_empty_and_the_last_one_first() {
        let heap = heap(0);
        let free = heap.free_bytes();
        let mut pool = ScopePool::new(&heap, 8192, 2, 3).unwrap();
        assert_eq!((pool.kept(), free - heap.free_bytes()), (2, 4 * 4096));
        let scopes = [(); 4].map(|()| pool.take().unwrap());
        assert_eq!((pool.kept(), free - heap.free_bytes()), (0, 8 * 4096));
        let addresses = scopes.each_ref().map(Scope::address);
        for scope in scopes {
            Boxed::new(&scope, 7_u64).unwrap();
            pool.give_back(scope);
        }
        assert_eq!((pool.kept(), free - heap.free_bytes()), (3, 6 * 4096), "one is too many");
        let again = pool.take().unwrap();
        assert_eq!((again.address(), again.used()), (addresses[2], 0));
        pool.shrink_to(1);
        assert_eq!(pool.take().unwrap().address(), addresses[1], "the one that was used last stays");
        drop(again);
        drop(pool);
        assert_eq!(heap.free_bytes(), free);
    }

    #[test]
    fn what_is_not_the_pools_is_freed() {
        let (one, other) = (heap(1), heap(2));
        let free = (one.free_bytes(), other.free_bytes());
        let mut pool = ScopePool::new(&one, 8192, 0, 4).unwrap();
        pool.give_back(other.scope(8192).unwrap());
        pool.give_back(one.scope(4096).unwrap());
        assert_eq!((pool.kept(), one.free_bytes(), other.free_bytes()), (0, free.0, free.1));
        pool.give_back(one.scope(1 << 16).unwrap());
        assert_eq!(pool.take().unwrap().length(), 1 << 16, "a larger one will do");
        let passed_on = pool.take().unwrap().pass_on();
        drop(pool);
        assert_eq!(free.0 - one.free_bytes(), 8192);
        one.free(passed_on.address).unwrap();
    }

    #[test]
    fn a_pool_for_which_there_is_no_room_takes_none() {
        let heap = heap(3);
        let free = heap.free_bytes();
        assert!(ScopePool::new(&heap, 1 << 18, 8, 8).is_err());
        assert_eq!(heap.free_bytes(), free);
        assert!(ScopePool::new(&heap, 1 << 18, 8, 1).is_ok(), "no more are made than may be kept");
    }

    proptest! {
        /// A peer frees any pages of the heap, and takes pages itself.
        #[test]
        fn a_peer_that_frees_its_scopes_breaks_no_pool(steps in prop::collection::vec((0..4_u8, 0..16_u64), 1..200)) {
            let heap = heap(4);
            let peer = Heap::open(heap.file().try_clone_to_owned().unwrap(), heap.place(), Owner(2)).unwrap();
            let (mut pool, mut taken) = (ScopePool::new(&heap, 4096, 4, 6).unwrap(), Vec::new());
            for (step, number) in steps {
                match step {
                    0 => taken.extend(pool.take()),
                    1 => taken.pop().into_iter().for_each(|scope| pool.give_back(scope)),
                    2 => drop(peer.free(heap.place().start() + number * 4096)),
                    _ => drop(peer.reserve(8192, 8)),
                }
                for scope in &taken {
                    let value = Boxed::<u64>::at(scope.address());
                    heap.set(value, number).unwrap();
                    prop_assert_eq!(value.read(&heap).unwrap(), number);
                }
                prop_assert!(pool.kept() <= 6);
            }
        }
    }
}

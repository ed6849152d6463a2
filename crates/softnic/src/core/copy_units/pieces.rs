//! The queue of pieces between the NIC and one copy unit.

use portcullis_memory::Bytes;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// The most pieces that wait at a unit or are moved by it. Few, since a withdrawal waits for them; enough for the unit to
/// have work while the NIC visits other queue pairs.
pub const PIECES_MAX: usize = 4;

/// A part of a transfer: bytes that a unit copies from one memory to another.
#[derive(Clone, Debug)]
pub struct Piece<M> {
    /// The memory that is read, and the offset of the first byte.
    pub from: (M, u64),
    /// The memory that is written, and the offset of the first byte.
    pub to: (M, u64),
    /// Number of bytes.
    pub length: u64,
}

/// A count that one thread raises and another one reads. A model checker has its own.
pub trait Count {
    /// Returns the count. Everything that was done before the count was raised to this value is visible afterwards.
    fn load(&self) -> u64;
    /// Raises the count to `value`.
    fn raise(&self, value: u64);
}

impl Count for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn raise(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
}

/// The pieces of one unit, in the order in which the NIC has posted them.
///
/// The NIC posts, the unit moves, and both only raise a count of their own. A place is locked by the NIC while it is free
/// and by the unit while it is not: a lock is never waited for. The quiescent point of the unit is `finished`: once it has
/// reached the number of pieces that were posted at some moment, none of these moves any more.
pub struct Pieces<M, C = AtomicU64> {
    places: [Mutex<Option<Piece<M>>>; PIECES_MAX],
    posted: Aligned<C>,
    finished: Aligned<C>,
}

/// A value on a cache line of its own, since another thread writes its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Aligned<C>(C);

impl<M, C: Count> fmt::Debug for Pieces<M, C> {
    // The places are left out: a reader must not hold the lock of a place that the unit or the NIC uses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (posted, finished) = (self.posted.0.load(), self.finished.0.load());
        f.debug_struct("Pieces").field("posted", &posted).field("finished", &finished).finish_non_exhaustive()
    }
}

impl<M, C: Count + Default> Default for Pieces<M, C> {
    fn default() -> Self {
        let places = std::array::from_fn(|_| Mutex::new(None));
        Self { places, posted: Aligned::default(), finished: Aligned::default() }
    }
}

impl<M: Bytes, C: Count> Pieces<M, C> {
    /// Number of pieces that were posted so far.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted.0.load()
    }

    /// Number of pieces whose bytes have all been moved.
    #[inline]
    pub fn finished(&self) -> u64 {
        self.finished.0.load()
    }

    /// Whether there is a piece to move.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.posted() != self.finished()
    }

    /// Posts a piece. Only the NIC calls this. Returns whether there was room.
    pub fn post(&self, piece: impl FnOnce() -> Piece<M>) -> bool {
        let posted = self.posted();
        if posted - self.finished() >= PIECES_MAX as u64 {
            return false;
        }
        // The piece that was here before is dropped by the NIC, which alone counts the users of a memory.
        *self.place(posted) = Some(piece());
        self.posted.0.raise(posted + 1);
        true
    }

    /// Moves the next piece. Only the unit calls this. Returns the number of bytes moved; `None`: no piece waits.
    pub fn move_next(&self) -> Option<u64> {
        let finished = self.finished();
        if self.posted() == finished {
            return None;
        }
        let place = self.place(finished);
        let Piece { from: (from, at), to: (to, into), length } =
            place.as_ref().expect("a posted piece is in its place");
        from.copy(*at, to, *into, *length);
        let length = *length;
        drop(place);
        self.finished.0.raise(finished + 1);
        Some(length)
    }

    /// Releases the memories of pieces that were moved. Only the NIC calls this, while no piece waits.
    pub fn release_memories(&self) {
        assert!(!self.is_waiting(), "a piece still moves");
        (0..PIECES_MAX as u64).for_each(|number| *self.place(number) = None);
    }

    /// Locks the place of a piece, by the piece's number.
    fn place(&self, number: u64) -> MutexGuard<'_, Option<Piece<M>>> {
        let index = usize::try_from(number % PIECES_MAX as u64).expect("a remainder of a usize");
        match self.places[index].try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => panic!("the NIC and a copy unit use one place"),
        }
    }
}

//! Copy units: they move the bytes of long transfers, so that the NIC's thread only decides.
//!
//! The NIC checks a transfer and hands it over in pieces ([`Pieces`]). Each piece is posted right after a check of its key.
//! A transfer completes when all its pieces have been moved. An operation that ends accesses, such as the invalidation of
//! a window, takes effect at once, and completes when each unit has passed its quiescent point: no piece that was posted
//! before the operation still moves (Patronus §5.4 promises that no access follows a confirmed withdrawal). A chain that
//! ends accesses goes on when its operation completes (`quiescence`).
//!
//! Nothing here copies, sleeps or knows threads: the owner of the NIC provides the units ([`ThreadRunner`]), and calls
//! [`Pieces::move_next`] where it wants the bytes to be moved. A NIC without units moves all bytes itself.

mod pieces;

pub use pieces::{Count, PIECES_MAX, Piece, Pieces};

use super::runner::ThreadRunner;
use portcullis_memory::Bytes;
use portcullis_nic::QpId;
use portcullis_planted::planted;
use std::collections::VecDeque;
use std::sync::Arc;

/// The bytes of a piece. Small enough for a withdrawal that waits for some of them; large enough for the cost of handing
/// one over to be small beside the cost of its copy.
pub const PIECE_BYTES: u32 = 16 << 10;

/// The sizes from which and in which transfers are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceSizes {
    /// The shortest transfer that is handed over. Shorter ones may take less time to copy than to hand over (ADR 045).
    pub transfer_min: u32,
    /// The longest piece.
    pub piece_max: u32,
}

impl Default for PieceSizes {
    fn default() -> Self {
        Self { transfer_min: 4 << 10, piece_max: PIECE_BYTES }
    }
}

/// The NIC's side of one unit.
#[derive(Debug)]
struct Unit<M> {
    pieces: Arc<Pieces<M>>,
    /// The pieces that are not known to be moved: the queue pair of each, and its number in the sequence of all pieces.
    moving: VecDeque<(QpId, u64)>,
    /// Number of pieces that are known to be moved.
    reaped: u64,
    /// Bytes of all pieces that were posted.
    bytes: u64,
}

/// The work of a unit so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitLoad {
    /// Number of pieces that were posted.
    pub pieces: u64,
    /// Bytes of these pieces.
    pub bytes: u64,
    /// Number of these pieces that have not been moved yet.
    pub waiting: u64,
}

impl<M: Bytes> Unit<M> {
    /// Whether no piece with a number below `end` still moves.
    fn has_passed(&self, end: u64) -> bool {
        let moved = self.pieces.finished() - self.reaped;
        let is_asleep = moved == 0 && planted!(SleepingUnitNotAwaited);
        let next = self.moving.get(usize::try_from(moved).unwrap_or(usize::MAX));
        is_asleep || next.is_none_or(|&(_, number)| number >= end)
    }
}

/// The NIC's side of its copy units.
#[derive(Debug)]
pub(super) struct CopyUnits<M> {
    units: Vec<Unit<M>>,
    runner: Arc<dyn ThreadRunner>,
    pub sizes: PieceSizes,
    /// Number of pieces that were posted to all units.
    posted: u64,
    /// The turn in which pieces were last posted, and the clients that have posted some so far, or wanted to.
    turn: u64,
    clients_so_far: u32,
    /// Number of such clients in the turn before.
    clients: u32,
}

impl<M> Clone for CopyUnits<M> {
    /// # Panics
    /// Units are threads of the owner, and exist once.
    fn clone(&self) -> Self {
        panic!("a NIC with copy units has no clones")
    }
}

impl<M: Bytes> CopyUnits<M> {
    pub fn new(queues: Vec<Arc<Pieces<M>>>, runner: Arc<dyn ThreadRunner>, sizes: PieceSizes) -> Self {
        assert!(!queues.is_empty() && sizes.piece_max > 0, "a NIC without units has no `CopyUnits`");
        assert!(!queues.iter().any(|queue| queue.is_waiting()), "the queues are those of another NIC");
        let unit = |pieces: Arc<Pieces<M>>| Unit {
            reaped: pieces.finished(),
            pieces,
            moving: VecDeque::new(),
            bytes: 0,
        };
        Self {
            units: queues.into_iter().map(unit).collect(),
            runner,
            sizes,
            posted: 0,
            turn: 0,
            clients_so_far: 0,
            clients: 0,
        }
    }

    /// Notes that a client has pieces to post in this turn. `last` is the turn in which the client last had some. Returns
    /// the number of pieces that the client may have under way: its part of all places, of which each client that has
    /// pieces to post gets the same.
    pub fn share(&mut self, turn: u64, last: &mut u64) -> u32 {
        if self.turn != turn {
            (self.turn, self.clients, self.clients_so_far) = (turn, self.clients_so_far, 0);
        }
        if *last != turn {
            *last = turn;
            self.clients_so_far += 1;
        }
        let places = u32::try_from(self.units.len() * PIECES_MAX).unwrap_or(u32::MAX);
        places.div_ceil(self.clients.max(self.clients_so_far))
    }

    /// The work of each unit so far.
    pub fn loads(&self) -> Vec<UnitLoad> {
        let load = |unit: &Unit<M>| {
            let (posted, finished) = (unit.pieces.posted(), unit.pieces.finished());
            UnitLoad { pieces: posted, bytes: unit.bytes, waiting: posted - finished }
        };
        self.units.iter().map(load).collect()
    }

    /// Posts a piece of `length` bytes of a transfer of `queue_pair`. Returns whether a unit had room for it.
    pub fn post(&mut self, queue_pair: QpId, length: u64, piece: impl FnOnce() -> Piece<M>) -> bool {
        let Some(number) = self.unit_for_piece() else { return false };
        let unit = &mut self.units[number];
        let is_posted = unit.pieces.post(piece);
        assert!(is_posted, "a unit has moved no fewer pieces than is known");
        unit.moving.push_back((queue_pair, self.posted));
        unit.bytes += length;
        self.posted += 1;
        self.runner.wake(number);
        true
    }

    /// Returns the unit that gets the next piece, if one has room: one that is awake and has the fewest pieces. A unit
    /// with pieces is awake, or about to be. What the units have done since the last turn is left out: to look at it
    /// costs a line of another processor's cache for each unit.
    fn unit_for_piece(&self) -> Option<usize> {
        let has_room = |&(_, unit): &(usize, &Unit<M>)| unit.moving.len() < PIECES_MAX;
        let rank = |&(number, unit): &(usize, &Unit<M>)| {
            let sleeps = unit.moving.is_empty() && self.runner.sleeps(number);
            (sleeps, unit.moving.len())
        };
        let unit = self.units.iter().enumerate().filter(has_room).min_by_key(rank);
        unit.map(|(number, _)| number)
    }

    /// Calls `moved` with the queue pair of each piece that was moved since the last call.
    pub fn reap(&mut self, mut moved: impl FnMut(QpId)) {
        for unit in &mut self.units {
            let finished = unit.pieces.finished();
            while unit.reaped < finished {
                let (queue_pair, _) = unit.moving.pop_front().expect("each posted piece is noted");
                unit.reaped += 1;
                moved(queue_pair);
            }
        }
    }

    /// Number of pieces that were posted so far.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Whether a piece still moves.
    pub fn is_moving(&self) -> bool {
        self.units.iter().any(|unit| unit.pieces.is_waiting())
    }

    /// Whether none of the first `posted` pieces still moves.
    pub fn has_passed(&self, posted: u64) -> bool {
        let end = if planted!(LastPieceNotAwaited) { posted.saturating_sub(1) } else { posted };
        planted!(ConfirmedWhilePiecesMove) || self.units.iter().all(|unit| unit.has_passed(end))
    }

    pub fn wait(&self) {
        self.runner.wait();
    }

    /// Releases the memories that pieces named. Nothing moves any more ([`Core::settle`](super::objects::Core)).
    pub fn release_memories(&self) {
        self.units
            .iter()
            .filter(|unit| !unit.pieces.is_waiting())
            .for_each(|unit| unit.pieces.release_memories());
    }
}

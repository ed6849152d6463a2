//! The handover of long transfers to copy units ([`super::copy_units`]).
//!
//! A transfer of a queue pair is handed over piece by piece, each after a check of its key, and the queue pair's next
//! request begins when all pieces have been moved: the order of a queue pair's requests stays. Packets from the network and
//! the requests of chains are never handed over.
//!
//! A queue pair that is visited without a ring waits for its pieces at each visit, which then costs little. Requests whose
//! completions are held are the matter of `quiescence`.

use super::copy_units::{CopyUnits, Piece, PieceSizes, Pieces, UnitLoad};
use super::keys::Target;
use super::loopback::StepResult;
use super::objects::Core;
use super::queue_pair::{Current, QueuePair};
use super::runner::ThreadRunner;
use super::schedule::REQUEST_WORK;
use super::verbs::{Exchange, Progress, Verb};
use portcullis_memory::Bytes;
use portcullis_nic::{ChainRole, LocalSpan, QpId, QpState, Status};
use portcullis_planted::planted;
use std::sync::Arc;

/// The exchange of a transfer that is handed over: it only notes the responder's memory.
#[derive(Default)]
struct Noted {
    there: Option<Target>,
}

impl<M> Exchange<M> for Noted {
    fn fetch(&mut self, _: &Core<M>, from: Target, _: u32) -> Progress {
        self.there = Some(from);
        Progress::Partly
    }

    fn store(&mut self, _: &Core<M>, into: Target, _: u32) -> Progress {
        self.there = Some(into);
        Progress::Partly
    }

    fn put(&mut self, _: &Core<M>, _: Target, _: u32) {
        unreachable!("messages are not handed over")
    }

    fn fetch_word(&mut self, _: &Core<M>, _: u64) {
        unreachable!("atomics are not handed over")
    }
}

impl<M: Bytes> Core<M> {
    /// Gives the NIC copy units: one for each queue of pieces. The owner lets each unit call [`Pieces::move_next`].
    ///
    /// # Panics
    /// There are no queues, or the NIC has units already, or it has engines: they must know which transfers units move.
    pub fn set_copy_units(
        &mut self,
        queues: Vec<Arc<Pieces<M>>>,
        runner: Arc<dyn ThreadRunner>,
        sizes: PieceSizes,
    ) {
        assert!(self.copy_units.is_none(), "a NIC gets its copy units once");
        assert!(self.engines.is_none(), "a NIC gets its copy units before its engines");
        self.copy_units = Some(CopyUnits::new(queues, runner, sizes));
        self.has_threads = true;
    }

    /// Returns the length from which copy units move a transfer: more than any, if there are none.
    pub(super) fn long_transfer(&self) -> u32 {
        self.copy_units.as_ref().map_or(u32::MAX, |units| units.sizes.transfer_min)
    }

    /// The work of each copy unit so far, in the order of their numbers.
    #[must_use]
    pub fn copy_unit_loads(&self) -> Vec<UnitLoad> {
        self.copy_units.as_ref().map_or_else(Vec::new, CopyUnits::loads)
    }

    /// Notes which pieces have been moved.
    pub(super) fn reap_pieces(&mut self) {
        let Self { copy_units: Some(units), qps, cqs, .. } = self else { return };
        units.reap(|queue_pair| {
            let pair = qps.get_mut(queue_pair.0);
            let pair = pair.expect("a queue pair outlives its pieces, and is not lent while they move");
            pair.moving -= 1;
            cqs.get_mut(pair.send_cq).expect("a queue pair has its completion queues").moving -= 1;
        });
    }

    /// Completes the held requests of a queue pair whose wait is over. Returns whether the queue pair can do nothing
    /// before other threads have moved bytes.
    #[inline(never)]
    pub(super) fn waits_for_threads(&mut self, pair: &mut QueuePair<M>) -> bool {
        self.release_held(pair);
        if pair.moving == 0 {
            return false;
        }
        let is_handed_over =
            |current: &Current| current.transfer().is_some_and(|(_, local)| current.done == local.length);
        pair.current.as_ref().is_some_and(is_handed_over)
            || pair.state == QpState::Error
            || self.places(pair) == 0
    }

    /// Releases the memories that pieces named. Nothing moves: [`Core::settle`] was called.
    pub(super) fn release_piece_memories(&mut self) {
        if let Some(units) = &self.copy_units {
            units.release_memories();
        }
    }

    /// Takes one step of a request on a NIC with other threads. `None`: these have no part in it.
    #[inline(never)]
    pub(super) fn step_with_threads(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: &mut Current,
        work: &mut u32,
    ) -> Option<StepResult> {
        if let Some(engine) = &self.on_engine {
            // The NIC's thread takes the client home, and executes the request or hands it over.
            return (!engine.serves(current)).then(|| {
                self.send_home(pair.send_cq);
                StepResult::Moving
            });
        }
        // Only the ends of accesses are executed behind a request whose completion is held.
        let goes_on = pair.role != ChainRole::default() && planted!(ChainGoesOnWhilePiecesMove);
        if !pair.held.is_empty() && !current.ends_access(pair.role) && !goes_on {
            return Some(StepResult::Moving);
        }
        let (verb, local) = current.transfer()?;
        let is_long = local.length >= self.copy_units.as_ref()?.sizes.transfer_min;
        let is_handed_over = is_long
            && matches!(verb, Verb::Read { .. } | Verb::Write { .. })
            && pair.role == ChainRole::default();
        is_handed_over.then(|| self.hand_over(id, pair, current, (verb, local), work))
    }

    /// Takes a transfer one step further: posts as many pieces as its client may have under way.
    fn hand_over(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: &mut Current,
        (verb, local): (Verb, LocalSpan),
        work: &mut u32,
    ) -> StepResult {
        let length = local.length;
        if current.done == length {
            return if pair.moving == 0 { StepResult::Done } else { StepResult::Moving };
        }
        let mut places = self.places(pair);
        if places == 0 {
            return StepResult::Moving;
        }
        let here = match self.requester_end(pair.pd, verb, local) {
            Ok(here) => here,
            Err(status) => return StepResult::Local(status),
        };
        let Some(responder) = self.responder(id, pair) else {
            return StepResult::Local(Status::RetryExceededError);
        };
        let mut noted = Noted::default();
        let there = match self.execute(&responder, verb, &mut noted) {
            Ok(_) => noted.there.expect("a transfer of bytes names memory"),
            Err(status) => return StepResult::Refused(status),
        };
        let Some(units) = &mut self.copy_units else { unreachable!("there are copy units") };
        let Some(client) = self.cqs.get_mut(pair.send_cq) else { unreachable!("it has room") };
        while current.done < length && places > 0 && *work > 0 {
            let part = (length - current.done).min(units.sizes.piece_max);
            let at = |end: Target| (self.memories[end.memory].clone(), end.offset + u64::from(current.done));
            let piece = || {
                let (from, to) =
                    if verb.returns_bytes() { (at(there), at(here)) } else { (at(here), at(there)) };
                Piece { from, to, length: part.into() }
            };
            if !units.post(id, part.into(), piece) {
                break;
            }
            (client.moving, pair.moving) = (client.moving + 1, pair.moving + 1);
            // An engine would send it home with the next long transfer.
            client.visits_at_home = 0;
            places -= 1;
            current.done += part;
            *work = work.saturating_sub(REQUEST_WORK);
        }
        StepResult::Moving
    }

    /// Returns the number of pieces that the client of a queue pair with a transfer may post now. All queue pairs of a
    /// client have their pieces from one share.
    fn places(&mut self, pair: &QueuePair<M>) -> u32 {
        let (Some(units), Some(client)) = (&mut self.copy_units, self.cqs.get_mut(pair.send_cq)) else {
            return 0;
        };
        let share = units.share(self.schedule.turns(), &mut client.handed_over_in);
        share.saturating_sub(client.moving)
    }

    /// Waits until no piece of the peer of `pair` moves, since the queue pair is about to fail. Once its owner has the
    /// failed completion, or finds it in ERR, nothing accesses memory through it any more.
    pub(super) fn settle_peer(&mut self, pair: &QueuePair<M>) {
        let peer = pair.peer.and_then(|peer| self.qps.get(peer.0));
        if peer.is_some_and(|peer| peer.moving > 0) {
            self.settle();
        }
    }
}

//! The order in which queue pairs are visited, and the work that each may do in a visit.

use super::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{ChainRole, QpId};
use portcullis_protocol::Moment;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The most requests of one queue pair that are executed before the next has its turn.
pub const REQUESTS_PER_VISIT_MAX: u32 = 32;
/// The most and the least bytes that one queue pair may move before the next has its turn: fewer if many are busy. A
/// longer transfer continues at the next visit and its key is checked again, so that it is cut off if its permission
/// ended meanwhile.
pub const BYTES_PER_VISIT_MAX: u32 = 64 << 10;
const BYTES_PER_VISIT_MIN: u32 = 8 << 10;

/// The most work of all queue pairs in a turn, in bytes: the node's turn, and so all permissions, wait for it. A
/// request counts for as many bytes as could have been moved instead.
const WORK_PER_TURN_MAX: u64 = 256 << 10;
/// The most work of the queue pairs of chains in a turn, in bytes. Chains have this part of the turn to themselves, so
/// that long transfers do not delay a chain and an endless chain does not delay transfers.
const CHAIN_WORK_PER_TURN_MAX: u64 = 256 << 10;
/// The most visits to queue pairs of chains in a turn.
const CHAIN_VISITS_PER_TURN_MAX: u32 = 1024;
/// The bytes for which a request counts.
pub(super) const REQUEST_WORK: u32 = 1 << 10;

/// Turns without work after which a polled queue pair counts as cold.
const COLD_AFTER_TURNS: u32 = 4096;
/// Number of cold queue pairs for which one more of them is visited in each turn.
const COLD_PER_LOOK: usize = 128;
/// The most cold queue pairs visited in a turn.
const COLD_PER_TURN_MAX: usize = 16;

/// Visits in a row without work after which a queue pair that waits for its peer naps.
const BLOCKED_VISITS: u32 = 64;
/// The turns of a nap: of the first one, and of the longest. Each nap is twice as long as the one before.
const NAP_TURNS: (u64, u64) = (16, 4096);
/// The most naps that end in a turn.
const WOKEN_PER_TURN_MAX: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// The most requests of a queue pair that are executed in a visit.
    pub(super) requests_max: u32,
    /// Queue pairs that were rung, or that did not finish within their budget.
    ready: VecDeque<QpId>,
    /// The ready queue pairs of chains. One enables the next, so within a turn they are served until none is left: a
    /// chain that had to wait for a turn of the node at each of its waits would depend on the node's processor.
    chains: VecDeque<QpId>,
    /// Queue pairs that wait for their peers, by the turn of their next visit.
    napping: BinaryHeap<Reverse<(u64, u32)>>,
    turns: u64,
    /// The work that this turn may still do.
    work_left: u64,
    /// The bytes that a client may move before the next client has its turn.
    pub(super) quantum: u32,
    /// Number of times that all hot queue pairs have had their turn.
    pub(super) rounds: u64,
    /// Number of hot queue pairs when `quantum` was set.
    sharers: usize,
    hot: Vec<Polled>,
    /// The place at which the last turn stopped and the next turn continues.
    next_hot: usize,
    cold: VecDeque<QpId>,
    pub(super) visits: u64,
}

/// The place in the schedule of a queue pair whose poster does not ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polling {
    /// The queue pair is among the hot or the cold ones.
    Watched,
    /// The queue pair is left alone for a while, and is then among the ready ones.
    Napping,
}

#[derive(Debug, Clone, Copy)]
struct Polled {
    qp: QpId,
    idle: u32,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            requests_max: REQUESTS_PER_VISIT_MAX,
            ready: VecDeque::new(),
            chains: VecDeque::new(),
            napping: BinaryHeap::new(),
            turns: 0,
            work_left: 0,
            quantum: BYTES_PER_VISIT_MAX,
            sharers: 0,
            rounds: 0,
            hot: Vec::new(),
            next_hot: 0,
            cold: VecDeque::new(),
            visits: 0,
        }
    }
}

impl Schedule {
    /// Subtracts the work of a visit from the work that the turn may still do.
    pub fn charge(&mut self, work: u32) {
        self.work_left = self.work_left.saturating_sub(work.into());
    }

    /// Number of turns so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    fn begin_turn(&mut self) {
        self.turns += 1;
        self.work_left = WORK_PER_TURN_MAX;
        if self.hot.len() != self.sharers {
            self.share_out();
        }
    }

    /// Divides the work of a turn among the hot queue pairs.
    #[cold]
    fn share_out(&mut self) {
        self.sharers = self.hot.len();
        let share = WORK_PER_TURN_MAX / (self.sharers.max(1) as u64);
        let share = u32::try_from(share).unwrap_or(BYTES_PER_VISIT_MAX);
        self.quantum = share.clamp(BYTES_PER_VISIT_MIN, BYTES_PER_VISIT_MAX);
    }

    pub fn push(&mut self, qp: QpId, role: ChainRole) {
        let queue = if role == ChainRole::default() { &mut self.ready } else { &mut self.chains };
        queue.push_back(qp);
    }

    pub fn add_polled(&mut self, qp: QpId) {
        self.cold.push_back(qp);
    }

    /// Adds a queue pair that is visited without being rung, and is probably busy.
    pub fn add_hot(&mut self, qp: QpId) {
        self.hot.push(Polled { qp, idle: 0 });
    }

    /// Schedules a queue pair that could do nothing for `blocked` visits: the more visits, the later the next one.
    fn come_again(&mut self, qp: QpId, blocked: u32) {
        let Some(naps) = blocked.checked_sub(BLOCKED_VISITS) else { return self.ready.push_back(qp) };
        let (first, longest) = NAP_TURNS;
        let turns = first.checked_shl(naps).filter(|&turns| turns > 0).unwrap_or(longest).min(longest);
        self.napping.push(Reverse((self.turns + turns, qp.0)));
    }

    /// Ends up to `most` naps that are over.
    #[inline]
    fn wake(&mut self, most: usize) {
        for _ in 0..most.min(self.napping.len()) {
            match self.napping.peek() {
                Some(&Reverse((turn, qp))) if turn <= self.turns => {
                    self.napping.pop();
                    self.ready.push_back(QpId(qp));
                }
                _ => return,
            }
        }
    }

    /// Ends the nap of a queue pair, since it has something else to do now.
    pub fn rouse(&mut self, qp: QpId) {
        let before = self.napping.len();
        self.napping.retain(|&Reverse((_, other))| other != qp.0);
        if self.napping.len() < before {
            self.ready.push_back(qp);
        }
    }

    /// Ends all naps.
    fn wake_all(&mut self) {
        self.ready.extend(self.napping.drain().map(|Reverse((_, qp))| QpId(qp)));
    }

    pub fn remove(&mut self, qp: QpId) {
        self.remove_all(|other| other == qp);
    }

    /// Removes the queue pairs for which `is_gone` holds.
    pub fn remove_all(&mut self, is_gone: impl Fn(QpId) -> bool) {
        self.napping.retain(|&Reverse((_, qp))| !is_gone(QpId(qp)));
        self.ready.retain(|&qp| !is_gone(qp));
        self.chains.retain(|&qp| !is_gone(qp));
        self.hot.retain(|polled| !is_gone(polled.qp));
        self.cold.retain(|&qp| !is_gone(qp));
    }
}

/// The outcome of a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    /// There was nothing to do.
    Idle,
    /// Requests were executed, and no request is left.
    Done,
    /// The budget is used up.
    Again,
    /// The queue pair waits for copy units: for pieces of its transfer, or for accesses that its held requests have
    /// ended.
    Moving,
    /// No progress was possible: the next request waits for its peer's receive, or for room for its completion.
    Blocked,
}

impl Visit {
    fn worked(self) -> bool {
        matches!(self, Self::Done | Self::Again | Self::Moving)
    }
}

impl<M: Bytes> Core<M> {
    /// Gives every queue pair that may have work one visit. Returns whether anything was done.
    ///
    /// # Panics
    /// This function does not panic: any bytes that peers write are refused or flushed.
    pub fn turn(&mut self, now: Moment) -> bool {
        self.look_after_wire(now);
        // A queue pair with held requests is left alone until units have moved bytes, which the owner must not sleep
        // through.
        let mut worked = self.has_threads && self.look_after_threads();
        self.schedule.begin_turn();
        self.schedule.wake(WOKEN_PER_TURN_MAX);
        for _ in 0..self.schedule.ready.len() {
            if self.schedule.work_left == 0 {
                break;
            }
            let Some(qp) = self.schedule.ready.pop_front() else { break };
            worked |= self.visit_ready(qp, now);
        }
        worked |= self.visit_hot(now);
        let cold = 1 + self.schedule.cold.len() / COLD_PER_LOOK;
        worked |= self.visit_cold(now, cold.min(COLD_PER_TURN_MAX));
        worked | self.turn_chains(now)
    }

    /// Visits a queue pair that was rung, and schedules its next visit.
    fn visit_ready(&mut self, qp: QpId, now: Moment) -> bool {
        let visit = self.visit(qp, now);
        let Some(pair) = self.qps.get_mut(qp.0) else { return visit.worked() };
        match (visit, pair.polled) {
            // The queue pair is also among the hot or cold ones; it was in this list only because it was rung.
            (_, Some(Polling::Watched)) => pair.scheduled = false,
            // The peer may stay unready for long, and does not ring. Queue pairs that wait for the network are woken by
            // packets.
            (Visit::Blocked, _) if pair.connection.is_none() => {
                pair.blocked = pair.blocked.saturating_add(1);
                self.schedule.come_again(qp, pair.blocked);
            }
            (_, Some(Polling::Napping)) => {
                (pair.blocked, pair.scheduled, pair.polled) = (0, false, Some(Polling::Watched));
                self.schedule.hot.push(Polled { qp, idle: 0 });
            }
            // The queue pair is rung when no access that its requests have ended moves bytes.
            (Visit::Moving, None) if !pair.held.is_empty() => (pair.blocked, pair.scheduled) = (0, false),
            (Visit::Again | Visit::Blocked | Visit::Moving, None) => {
                pair.blocked = 0;
                self.schedule.push(qp, pair.role);
            }
            (Visit::Idle | Visit::Done, None) => (pair.blocked, pair.scheduled) = (0, false),
        }
        visit.worked()
    }

    /// Serves chains as far as their part of the turn allows.
    fn turn_chains(&mut self, now: Moment) -> bool {
        let mut worked = false;
        self.schedule.work_left = CHAIN_WORK_PER_TURN_MAX;
        for _ in 0..CHAIN_VISITS_PER_TURN_MAX {
            if self.schedule.work_left == 0 {
                break;
            }
            let Some(qp) = self.schedule.chains.pop_front() else { break };
            worked |= self.visit_ready(qp, now);
        }
        worked
    }

    /// Visits every queue pair once, cold ones included. An engine does this before it sleeps.
    pub fn turn_all(&mut self, now: Moment) -> bool {
        let cold = self.schedule.cold.len();
        self.schedule.wake_all();
        let worked = self.turn(now);
        self.visit_cold(now, cold) || worked
    }

    /// Executes one request of a queue pair, whether it was rung or not: for exploration of chosen orders of steps.
    /// Returns whether a request was executed, or flushed.
    pub fn execute_one(&mut self, qp: QpId, now: Moment) -> bool {
        let most = std::mem::replace(&mut self.schedule.requests_max, 1);
        let visit = self.visit(qp, now);
        self.schedule.requests_max = most;
        visit.worked()
    }

    /// Whether a request waits for time, or for a peer that does not ring.
    #[must_use]
    pub fn waits_for_time(&self) -> bool {
        let Schedule { ready, chains, napping, .. } = &self.schedule;
        !(ready.is_empty() && chains.is_empty() && napping.is_empty())
    }

    /// Number of visits to queue pairs since the NIC was made: a measure of the cost of its turns.
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.schedule.visits
    }

    fn visit_hot(&mut self, now: Moment) -> bool {
        let mut worked = false;
        let mut index = self.schedule.next_hot;
        if index == 0 {
            self.schedule.rounds += 1;
        }
        for _ in 0..self.schedule.hot.len() {
            if self.schedule.work_left == 0 {
                break;
            }
            if index >= self.schedule.hot.len() {
                index = 0;
                self.schedule.rounds += 1;
            }
            let Polled { qp, idle } = self.schedule.hot[index];
            let visit = self.visit(qp, now);
            if visit.worked() {
                worked = true;
                self.schedule.hot[index].idle = 0;
            } else if visit == Visit::Blocked && idle >= BLOCKED_VISITS && self.nap(qp) {
                self.schedule.hot.swap_remove(index);
                continue;
            } else if idle >= COLD_AFTER_TURNS {
                self.schedule.hot.swap_remove(index);
                self.schedule.cold.push_back(qp);
                continue;
            } else {
                self.schedule.hot[index].idle += 1;
            }
            index += 1;
        }
        // If this turn reached the end of the list, the next turn starts a new round.
        self.schedule.next_hot = if index >= self.schedule.hot.len() { 0 } else { index };
        worked
    }

    fn visit_cold(&mut self, now: Moment, most: usize) -> bool {
        let mut worked = false;
        for _ in 0..most.min(self.schedule.cold.len()) {
            let Some(qp) = self.schedule.cold.pop_front() else { break };
            match self.visit(qp, now) {
                Visit::Again | Visit::Moving | Visit::Done => {
                    worked = true;
                    self.schedule.hot.push(Polled { qp, idle: 0 });
                }
                Visit::Blocked if self.nap(qp) => {}
                Visit::Blocked | Visit::Idle => self.schedule.cold.push_back(qp),
            }
        }
        worked
    }

    /// Makes a polled queue pair that waits for its peer nap, so that it is visited less often than even the cold ones.
    /// Returns whether it naps from now on: a queue pair that was rung, or that waits for the network, does not.
    fn nap(&mut self, qp: QpId) -> bool {
        let Some(pair) = self.qps.get_mut(qp.0) else { return false };
        if pair.scheduled || pair.connection.is_some() {
            return false;
        }
        (pair.blocked, pair.scheduled, pair.polled) = (BLOCKED_VISITS, true, Some(Polling::Napping));
        self.schedule.come_again(qp, pair.blocked);
        true
    }
}

//! The checkers, which are independent of the checked code. They see every packet, every access to a node's memory,
//! and the reports of client libraries, but nothing of the node's tables.

mod chunks;
mod frees;
mod memory_model;
mod network;
mod node_model;
mod objects;
mod one_shots;
mod operations;
mod permission;
mod promise;
mod requests;
mod shares;
mod standing;
#[cfg(test)]
mod tests;

pub(crate) use chunks::{Allocations, WorkerOf};
pub(crate) use network::Arrival;
pub(crate) use one_shots::{ONE_SHOT, key_of};
pub(crate) use operations::Kind;
pub(crate) use permission::QueuePairOf;
pub use promise::{Failure, Promise};

use crate::clock::Nanos;
use crate::memory::{SimMemory, Touch};
use node_model::NodeModel;
use one_shots::OneShots;
use operations::OperationChecker;
use permission::{Known, Wanted};
use portcullis_client::Error;
use portcullis_protocol::{Lifetime, Moment, PermissionId};
use portcullis_softnic::core::WireRequest;
use standing::Bar;
use std::collections::{HashMap, HashSet};

/// The number of a client's stay with a node. Numbers are not reused.
pub(crate) type SessionId = usize;

/// How long an unexplained access waits for a grant that allows it: a sibling that guessed the key may have been faster
/// than the grant's message.
const SUSPICION: Nanos = 5 * crate::clock::MILLISECOND;

/// The most failures that are kept of one run.
const FAILURES_MAX: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Session {
    node: usize,
    tenant: usize,
    /// Whether the client breaks rules on purpose.
    hostile: bool,
    refusals: u64,
    /// Refused accesses with a key that the session never had.
    guesses: u64,
    /// Refused accesses with a key of its own, for something that the key never allowed.
    strays: u64,
    /// Whether the node has barred the session, but not its tenant.
    barred: bool,
    /// Refusals that the node had not yet audited when it ended.
    uncharged: u64,
    /// Refusals that may have been for copies of a packet, which is charged once.
    copies: u64,
}

/// A successful access that no known permission allows.
#[derive(Debug)]
struct Suspect {
    at: Nanos,
    node: usize,
    tenant: usize,
    wanted: Wanted,
    failure: Failure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Accesses that reached a memory and were executed.
    pub accesses: u64,
    /// Accesses that no live permission covered.
    pub violations_tried: u64,
    /// Accesses without a live permission that were refused.
    pub violations_refused: u64,
    /// Accesses under a permission that had just ended, over memory that no other client had been given since.
    pub late_and_harmless: u64,
    /// Grants that left a node.
    pub grants: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    nodes: Vec<Option<NodeModel>>,
    sessions: Vec<Session>,
    operations: OperationChecker,
    one_shots: OneShots,
    suspects: Vec<Suspect>,
    failures: Vec<Failure>,
    tally: Tally,
    /// Violations in the nodes' audit logs, by session.
    audited: HashMap<SessionId, u64>,
    /// The last bar of each tenant, by node and tenant.
    barred: HashMap<(usize, usize), Bar>,
    /// Sessions whose tenant was barred. They outlive their node, because they explain errors that arrive later.
    were_barred: HashSet<SessionId>,
    /// Permissions that may have ended before their time. They outlive their node for the same reason.
    may_have_ended_early: HashSet<(SessionId, PermissionId)>,
    /// The longest lifetime that the nodes are configured to grant.
    longest: Lifetime,
    /// Whether violations cost nothing in this run: the nodes may not pause or bar any client.
    pub forgiving: bool,
    /// The number of guesses below which no tenant may be barred.
    pub bar_after: u32,
}

impl Oracle {
    /// Records that a node starts, with a pool of zeros.
    pub fn node_started(&mut self, node: usize, pool_bytes: u64, linger: Lifetime, longest: Lifetime) {
        self.longest = longest;
        if self.nodes.len() <= node {
            self.nodes.resize_with(node + 1, || None);
        }
        self.suspects.retain(|suspect| suspect.node != node);
        self.another_life(node);
        self.nodes[node] = Some(NodeModel::new(pool_bytes, linger));
    }

    /// Records that a node has admitted a client.
    pub fn session_began(
        &mut self,
        node: usize,
        tenant: usize,
        hostile: bool,
        node_now: Moment,
    ) -> SessionId {
        if self.barred.get(&(node, tenant)).is_some_and(|bar| node_now < bar.until) {
            self.fail(
                Promise::Isolation,
                0,
                format!("a client of tenant {tenant}, which is barred, was let in"),
            );
        }
        let session = Session {
            node,
            tenant,
            hostile,
            refusals: 0,
            guesses: 0,
            strays: 0,
            barred: false,
            uncharged: 0,
            copies: 0,
        };
        self.sessions.push(session);
        self.sessions.len() - 1
    }

    /// Records that the node has detached a client. All its permissions are over.
    pub fn session_ended(&mut self, session: SessionId, now: Moment) {
        let node = self.sessions[session].node;
        if let Some(model) = &mut self.nodes[node] {
            model.for_session(session, |known| known.is_over(now));
            model.lets_go(self.sessions[session].tenant, now);
            model.requests.forget(session);
            if let Some(chunks) = &mut model.chunks {
                chunks.session_ended(session);
            }
        }
    }

    /// Records that a node has stopped. Everything on it is over.
    pub fn node_stopped(&mut self, node: usize) {
        if let Some(model) = self.nodes[node].take() {
            self.may_have_ended_early.extend(model.may_end_early());
            let of = (0..self.sessions.len()).filter(|&session| model.knows(session));
            let barred =
                of.filter(|&session| self.barred.contains_key(&(node, self.sessions[session].tenant)));
            self.were_barred.extend(barred);
        }
        self.barred.retain(|&(its, _), _| its != node);
    }

    /// Records that the node has stopped, and will not audit the rest of this session's refusals.
    pub fn node_forgot(&mut self, session: SessionId) {
        let audited = self.audited.get(&session).copied().unwrap_or(0);
        let charged = &mut self.sessions[session];
        charged.uncharged = charged.refusals.saturating_sub(audited);
    }

    /// Records that the client's side of a session is over and reports nothing any more.
    pub fn client_ended(&mut self, session: SessionId) {
        self.operations.forget(session);
    }

    /// Records that the node stands still for this time on its clock, which shows `now`.
    pub fn node_stood_still(&mut self, node: usize, time: Lifetime, now: Moment) {
        if let Some(model) = &mut self.nodes[node] {
            model.requests.stood_still(time, now);
        }
    }

    /// Records that the node's audit log has a violation of this session.
    pub fn violation_audited(&mut self, session: SessionId) {
        *self.audited.entry(session).or_default() += 1;
    }

    pub(crate) fn fail(&mut self, promise: Promise, at_ns: Nanos, what: String) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(Failure { promise, at_ns, what });
        }
    }

    fn note(&mut self, failure: Option<Failure>) {
        if let Some(Failure { promise, at_ns, what }) = failure {
            self.fail(promise, at_ns, what);
        }
    }

    /// Whether a promise was broken.
    pub fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Whether a permission may end before its time: a client of the tenant has spoilt its lifetime word, or wanted all
    /// permissions over its object to end.
    pub fn may_end_early(&self, session: SessionId, id: PermissionId) -> bool {
        if self.may_have_ended_early.contains(&(session, id)) {
            return true;
        }
        let node = &self.nodes[self.sessions[session].node];
        node.as_ref().and_then(|model| model.get(id)).is_some_and(Known::may_end_early)
    }

    /// Returns the failures and the counts.
    pub fn verdict(self) -> (Vec<Failure>, Tally) {
        (self.failures, self.tally)
    }
}

/// Events at nodes and clients.
impl Oracle {
    /// Records that a node's processor has had a turn.
    pub fn node_turned(&mut self, node: usize, node_now: Moment) {
        if let Some(model) = &mut self.nodes[node] {
            model.turned(node_now);
        }
    }

    /// Checks the accesses of a node's processor to its pool.
    pub fn node_touched(&mut self, node: usize, touches: &[Touch], now: Nanos, node_now: Moment) {
        let Some(model) = &mut self.nodes[node] else { return };
        let mut failure = None;
        for touch in touches {
            let span = match touch {
                Touch::Read { .. } => continue,
                Touch::Write { offset, bytes } => *offset..*offset + bytes.len() as u64,
                Touch::Zero { offset, length } => *offset..*offset + *length,
                Touch::Change { offset, .. } => *offset..*offset + 8,
            };
            let base = portcullis_node::POOL_BASE.0;
            if let Touch::Write { offset, bytes } = touch
                && bytes[..] == [0; 8]
                && let Some((id, object, bytes)) = model.notice(base + offset, node_now)
                && !model.requests.wanted(object, &bytes)
            {
                failure = Some((Promise::Service, format!("{id:?} had its notice though no client waits")));
            }
            if let Some(id) = model.written_by_node(&(base + span.start..base + span.end), node_now) {
                failure = Some((
                    Promise::Memory,
                    format!("the node wrote {span:x?} of its pool, which {id:?} holds"),
                ));
            }
            model.memory.node_touched(touch);
        }
        if let Some((promise, what)) = failure {
            self.fail(promise, now, what);
        }
    }

    /// Records that a client library began an operation.
    pub fn begun(
        &mut self,
        now: Nanos,
        operation: (SessionId, u64),
        kind: Kind,
        intended: Option<WireRequest>,
    ) {
        let failure = self.operations.begun(now, operation, kind, intended);
        self.note(failure);
    }

    /// Records that an operation that has begun may be executed only if another one is, `before`.
    pub fn linked(&mut self, session: SessionId, id: u64, before: u64) {
        self.operations.linked(session, id, before);
    }

    /// Records how an operation ended, as a client library reports it.
    pub fn ended(&mut self, now: Nanos, session: SessionId, id: u64, result: Result<&[u8], Error>) {
        let failure = self.operations.ended(now, session, id, result);
        self.note(failure);
    }

    /// Checks conditions that only show with time. `nodes` are the pools and clocks of the running nodes.
    pub fn look(&mut self, now: Nanos, nodes: &[Option<(SimMemory, Moment)>], whole: bool) {
        let (old, young) = std::mem::take(&mut self.suspects)
            .into_iter()
            .partition(|it: &Suspect| it.at + SUSPICION < now || whole);
        self.suspects = young;
        let old: Vec<Suspect> = old;
        for suspect in old {
            self.note(Some(suspect.failure));
        }
        for (number, node) in nodes.iter().enumerate() {
            let (Some((memory, node_now)), Some(model)) = (node, &self.nodes[number]) else { continue };
            let overdue = model.requests.overdue(*node_now);
            let differs = if whole { model.memory.first_difference(memory) } else { None };
            if let Some((session, asked)) = overdue {
                let what = format!(
                    "session {session} has no answer to {asked:?} at {} µs of node {number}'s time",
                    node_now.0
                );
                self.fail(Promise::Progress, now, what);
            }
            if let Some(at) = differs {
                self.fail(
                    Promise::Memory,
                    now,
                    format!("node {number}'s memory is not the model's at {at:#x}"),
                );
            }
        }
        self.look_at_chunks(now);
    }

    /// Checks that nothing is left at the end of a run.
    pub fn at_rest(&mut self, now: Nanos) {
        self.chunks_at_rest(now);
        if let Some((session, id)) = self.operations.unended() {
            self.fail(Promise::Truth, now, format!("operation {id:#x} of session {session} never ended"));
        }
        let unanswered: usize = self.nodes.iter().flatten().map(|model| model.requests.len()).sum();
        if unanswered > 0 {
            self.fail(Promise::Progress, now, format!("{unanswered} requests were never answered"));
        }
        for session in 0..self.sessions.len() {
            let Session { refusals, uncharged, copies, .. } = self.sessions[session];
            let (refused, audited) = (refusals - uncharged, self.audited.get(&session).copied().unwrap_or(0));
            if !(refused.saturating_sub(copies)..=refused).contains(&audited) {
                let what = format!(
                    "session {session} was refused {refused} times, {copies} of them perhaps for copies, and charged with \
                     {audited} violations"
                );
                self.fail(Promise::Isolation, now, what);
            }
        }
    }
}

/// The longest that an object stays after its tenant's last client has left, as configured in the simulated nodes.
pub(crate) const LONGEST_KEEP: Lifetime = Lifetime::millis(4);

/// The longest that a request may wait, as configured in the simulated nodes.
pub(crate) const LONGEST_WAIT: Lifetime = Lifetime::millis(40);

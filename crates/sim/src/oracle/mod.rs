//! The checkers: independent of the code they check, they see every packet, every access at a node's memory and what
//! client libraries say, and know nothing of the node's tables.

mod ledger;
mod memory_model;
mod network;
mod node_model;
mod objects;
mod permission;
mod promise;
mod requests;
mod standing;
#[cfg(test)]
mod tests;

pub(crate) use ledger::Kind;
pub(crate) use network::Arrival;
pub use promise::{Failure, Promise};

use crate::clock::Nanos;
use crate::memory::{SimMemory, Touch};
use ledger::Ledger;
use node_model::NodeModel;
use permission::Wanted;
use portcullis_client::Error;
use portcullis_protocol::{Lifetime, Moment, PermissionId};
use portcullis_softnic::core::WireRequest;
use standing::Bar;
use std::collections::{HashMap, HashSet};

/// A client's stay with a node. Numbers are not used again.
pub(crate) type SessionId = usize;

/// How long an access that nothing allows waits for the grant that does: a sibling that guessed the key may have been
/// quicker than the grant's message.
const SUSPICION: Nanos = 5 * crate::clock::MILLISECOND;

/// Failures that are kept of one run.
const FAILURES_MAX: usize = 16;

/// What the checkers know of a session.
#[derive(Clone, Copy, Debug)]
struct Session {
    node: usize,
    tenant: usize,
    /// It breaks rules on purpose.
    hostile: bool,
    refusals: u64,
    /// Those of them that showed a key that was never the session's own.
    guesses: u64,
    /// Those of them that showed a key of its own, for what the key was never for.
    strays: u64,
    /// The node has barred this client alone.
    barred: bool,
    /// Refusals that the node had not told of when it ended.
    uncharged: u64,
}

/// An access that succeeded and that nothing seems to allow.
#[derive(Debug)]
struct Suspect {
    at: Nanos,
    node: usize,
    tenant: usize,
    wanted: Wanted,
    failure: Failure,
}

/// What the checkers have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Accesses that reached a memory and were carried out.
    pub accesses: u64,
    /// Accesses that no live permission covered.
    pub violations_tried: u64,
    /// Those of them that were refused.
    pub violations_refused: u64,
    /// Accesses under a permission that had just ended, over memory that nobody had been given since.
    pub late_and_harmless: u64,
    /// Grants that went out.
    pub grants: u64,
}

/// All checkers of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    nodes: Vec<Option<NodeModel>>,
    sessions: Vec<Session>,
    ledger: Ledger,
    suspects: Vec<Suspect>,
    failures: Vec<Failure>,
    tally: Tally,
    /// Violations that nodes have audited, by session.
    audited: HashMap<SessionId, u64>,
    /// Tenants that were barred, by node: since when, and until when, the last time.
    barred: HashMap<(usize, usize), Bar>,
    /// What lives of nodes that are over leave to explain: an error that was on its way then is told later. Sessions
    /// whose tenant was barred,
    were_barred: HashSet<SessionId>,
    /// and permissions whose lifetime word was spoilt.
    were_vandalised: HashSet<(SessionId, PermissionId)>,
    /// The longest lifetime that the nodes are told to grant.
    longest: Lifetime,
    /// Violations cost nothing in this run: nobody may be paused or barred.
    pub forgiving: bool,
    /// Guesses without which no tenant may be barred.
    pub bar_after: u32,
}

impl Oracle {
    /// A node begins a life, with a pool of zeros.
    pub fn node_started(&mut self, node: usize, pool_bytes: u64, linger: Lifetime, longest: Lifetime) {
        self.longest = longest;
        if self.nodes.len() <= node {
            self.nodes.resize_with(node + 1, || None);
        }
        self.suspects.retain(|suspect| suspect.node != node);
        self.nodes[node] = Some(NodeModel::new(pool_bytes, linger));
    }

    /// A client has been let in.
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
        };
        self.sessions.push(session);
        self.sessions.len() - 1
    }

    /// The node has let go of a client: nothing of it lives any more.
    pub fn session_ended(&mut self, session: SessionId, now: Moment) {
        let node = self.sessions[session].node;
        if let Some(model) = &mut self.nodes[node] {
            model.for_session(session, |known| known.is_over(now));
            model.requests.forget(session);
        }
    }

    /// A node's life is over, and with it everything on it.
    pub fn node_stopped(&mut self, node: usize) {
        if let Some(model) = self.nodes[node].take() {
            self.were_vandalised.extend(model.vandalised());
            let of = (0..self.sessions.len()).filter(|&session| model.knows(session));
            let barred =
                of.filter(|&session| self.barred.contains_key(&(node, self.sessions[session].tenant)));
            self.were_barred.extend(barred);
        }
        self.barred.retain(|&(its, _), _| its != node);
    }

    /// The node has ended, and nothing that it had not told is told any more.
    pub fn node_forgot(&mut self, session: SessionId) {
        let audited = self.audited.get(&session).copied().unwrap_or(0);
        let charged = &mut self.sessions[session];
        charged.uncharged = charged.refusals.saturating_sub(audited);
    }

    /// The client's side of a session is over: it says nothing any more.
    pub fn client_ended(&mut self, session: SessionId) {
        self.ledger.forget(session);
    }

    /// The node stood still for so long by its clock.
    pub fn node_stood_still(&mut self, node: usize, time: Lifetime) {
        if let Some(model) = &mut self.nodes[node] {
            model.requests.stood_still(time);
        }
    }

    /// The node's audit log tells of a violation of this session.
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

    /// Whether a promise has been found broken.
    pub fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Whether somebody of the tenant has spoilt a permission's lifetime word.
    pub fn is_vandalised(&self, session: SessionId, id: PermissionId) -> bool {
        if self.were_vandalised.contains(&(session, id)) {
            return true;
        }
        let node = &self.nodes[self.sessions[session].node];
        node.as_ref().and_then(|model| model.get(id)).is_some_and(|known| known.vandalised)
    }

    /// What has been found, and what has been counted.
    pub fn verdict(self) -> (Vec<Failure>, Tally) {
        (self.failures, self.tally)
    }
}

/// What nodes and clients show.
impl Oracle {
    /// A node's processor has had a turn.
    pub fn node_turned(&mut self, node: usize, node_now: Moment) {
        if let Some(model) = &mut self.nodes[node] {
            model.turned(node_now);
        }
    }

    /// A node's processor has touched its pool.
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
                failure = Some((Promise::Service, format!("{id:?} had its notice though nobody waits")));
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

    /// A client library has begun an operation.
    pub fn begun(
        &mut self,
        now: Nanos,
        operation: (SessionId, u64),
        kind: Kind,
        intended: Option<WireRequest>,
    ) {
        let failure = self.ledger.begun(now, operation, kind, intended);
        self.note(failure);
    }

    /// A client library says how an operation ended.
    pub fn ended(&mut self, now: Nanos, session: SessionId, id: u64, result: Result<&[u8], Error>) {
        let failure = self.ledger.ended(now, session, id, result);
        self.note(failure);
    }

    /// Looks at what only time shows. `memories` are the pools of the nodes that live, with their clocks.
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
    }

    /// Everything is quiet and everybody has left.
    pub fn at_rest(&mut self, now: Nanos) {
        if let Some((session, id)) = self.ledger.unended() {
            self.fail(Promise::Truth, now, format!("operation {id:#x} of session {session} never ended"));
        }
        let unanswered: usize = self.nodes.iter().flatten().map(|model| model.requests.len()).sum();
        if unanswered > 0 {
            self.fail(Promise::Progress, now, format!("{unanswered} requests were never answered"));
        }
        for session in 0..self.sessions.len() {
            let Session { refusals, uncharged, .. } = self.sessions[session];
            let (refused, audited) = (refusals - uncharged, self.audited.get(&session).copied().unwrap_or(0));
            if refused != audited {
                let what = format!(
                    "session {session} was refused {refused} times, and charged with {audited} violations"
                );
                self.fail(Promise::Isolation, now, what);
            }
        }
    }
}

/// The longest that an object stays after its tenant's last client has gone: what the simulated nodes are told.
pub(crate) const LONGEST_KEEP: Lifetime = Lifetime::millis(4);

/// The longest that a node lets a request wait: what the simulated nodes are told.
pub(crate) const LONGEST_WAIT: Lifetime = Lifetime::millis(40);

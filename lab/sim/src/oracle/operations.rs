//! The checks of operations: their beginnings, executions and ends. Each operation ends once, with the truth.

use super::{Failure, Promise, SessionId};
use crate::clock::Nanos;
use portcullis_client::Error;
use portcullis_softnic::core::WireRequest;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    intended: Option<WireRequest>,
    /// The operation's place in the order in which all operations were begun.
    place: u64,
    /// The operation without which this one must not be executed.
    behind: Option<u64>,
    executed: u32,
    /// The results of each execution of a read or an atomic. A read may be posted again while its first packet is still
    /// on its way; both answers are correct.
    brought: Vec<Vec<u8>>,
    /// Whether the library has reported that the operation did not happen, or is over with an unknown result. From
    /// then on it must not happen.
    settled: bool,
    ended: bool,
}

/// All operations of all sessions that are under way or must not happen any more.
#[derive(Debug, Default)]
pub(super) struct OperationChecker {
    entries: HashMap<(SessionId, u64), Entry>,
    begun: u64,
    /// For each session, the place of the last executed operation that is no read.
    last: HashMap<SessionId, u64>,
    /// Sessions whose operations have no order among each other.
    without_order: HashSet<SessionId>,
    /// Operations that are done and must not be executed again.
    over: HashSet<(SessionId, u64)>,
}

fn wrong(at_ns: Nanos, what: String) -> Option<Failure> {
    Some(Failure { promise: Promise::Truth, at_ns, what })
}

impl OperationChecker {
    /// Records the beginning of an operation. `intended` is the request that must arrive at the node, if the caller
    /// knows it.
    pub fn begun(
        &mut self,
        now: Nanos,
        (session, id): (SessionId, u64),
        kind: Kind,
        intended: Option<WireRequest>,
    ) -> Option<Failure> {
        self.begun += 1;
        let place = self.begun;
        let entry = Entry {
            kind,
            intended,
            place,
            behind: None,
            executed: 0,
            brought: Vec::new(),
            settled: false,
            ended: false,
        };
        match self.entries.insert((session, id), entry) {
            Some(Entry { ended: false, .. }) => {
                wrong(now, format!("operation {id:#x} of session {session} began twice"))
            }
            _ => None,
        }
    }

    /// Records that an operation that has begun may be executed only if another one is, `before`.
    pub fn linked(&mut self, session: SessionId, id: u64, before: u64) {
        if let Some(entry) = self.entries.get_mut(&(session, id)) {
            entry.behind = Some(before);
        }
    }

    /// Records that the operations of a session have no order among each other.
    pub fn has_no_order(&mut self, session: SessionId) {
        self.without_order.insert(session);
    }

    /// Records that the node's NIC has executed a request with this number. `may_repeat`: its client may send it
    /// again.
    pub fn executed(
        &mut self,
        now: Nanos,
        (session, id): (SessionId, u64),
        request: &WireRequest,
        (brought, may_repeat): (Vec<u8>, bool),
    ) -> Option<Failure> {
        if self.over.contains(&(session, id)) {
            return wrong(
                now,
                format!("operation {id:#x} of session {session} was executed again after its end"),
            );
        }
        let behind = self.entries.get(&(session, id))?.behind;
        // An operation that is over was executed.
        let is_missing = |before| self.entries.get(&(session, before)).is_some_and(|it| it.executed == 0);
        if let Some(before) = behind.filter(|&before| is_missing(before)) {
            return wrong(
                now,
                format!(
                    "operation {id:#x} of session {session} was executed, and {before:#x} before it was not"
                ),
            );
        }
        let entry = self.entries.get_mut(&(session, id))?;
        if let Some(intended) = entry.intended.as_ref().filter(|&intended| intended != request) {
            return wrong(
                now,
                format!(
                    "operation {id:#x} of session {session} began as {intended:x?} and arrived as {request:x?}"
                ),
            );
        }
        let has_order = !self.without_order.contains(&session);
        if entry.kind != Kind::Read && has_order {
            let last = self.last.entry(session).or_insert(0);
            if std::mem::replace(last, entry.place) >= entry.place {
                return wrong(
                    now,
                    format!("operation {id:#x} of session {session} was executed after one begun later"),
                );
            }
        }
        entry.executed += 1;
        entry.brought.push(brought);
        // A late read changes nothing.
        if entry.settled && entry.kind != Kind::Read {
            return wrong(
                now,
                format!("operation {id:#x} of session {session} was executed after it was reported as over"),
            );
        }
        if entry.executed > 1 && entry.kind != Kind::Read && !may_repeat {
            let promise = if has_order { Promise::Truth } else { Promise::Once };
            let what = format!("{:?} {id:#x} of session {session} was executed twice", entry.kind);
            return Some(Failure { promise, at_ns: now, what });
        }
        None
    }

    /// Records an operation's end, as the library reports it. `result` contains what the operation returned.
    pub fn ended(
        &mut self,
        now: Nanos,
        session: SessionId,
        id: u64,
        result: Result<&[u8], Error>,
    ) -> Option<Failure> {
        let Some(entry) = self.entries.get_mut(&(session, id)) else {
            return wrong(now, format!("operation {id:#x} of session {session} ended, and never began"));
        };
        if std::mem::replace(&mut entry.ended, true) {
            return wrong(now, format!("operation {id:#x} of session {session} ended twice"));
        }
        let (executed, kind) = (entry.executed, entry.kind);
        match result {
            Ok(_) if executed == 0 => {
                wrong(now, format!("{kind:?} {id:#x} of session {session} is reported as done, and is not"))
            }
            Ok(brought) if kind != Kind::Write && !entry.brought.iter().any(|it| it == brought) => wrong(
                now,
                format!("{kind:?} {id:#x} of session {session} brought other bytes than the memory gave"),
            ),
            Ok(_) => {
                self.entries.remove(&(session, id));
                if kind != Kind::Read {
                    self.over.insert((session, id));
                }
                None
            }
            // The result is open until the node has detached the client.
            Err(Error::NodeGone | Error::SessionLost) => None,
            // This leaves the past open, not the future: an old write must not overwrite a new one.
            Err(Error::Interrupted) => {
                entry.settled = true;
                None
            }
            Err(error) if executed > 0 && kind != Kind::Read => wrong(
                now,
                format!(
                    "{kind:?} {id:#x} of session {session} is reported as failed ({error}), and was executed"
                ),
            ),
            Err(_) => {
                entry.settled = true;
                None
            }
        }
    }

    /// Records that a session is over. Its pending operations will have no outcome.
    pub fn forget(&mut self, session: SessionId) {
        self.entries.retain(|&(its, _), entry| its != session || entry.settled);
    }

    /// Returns an operation that never ended.
    pub fn unended(&self) -> Option<(SessionId, u64)> {
        self.entries.iter().filter(|(_, entry)| !entry.ended).map(|(&key, _)| key).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_nic::{RemoteAddress, RemoteSpan, Rkey};

    const SESSION: SessionId = 3;

    fn request() -> WireRequest {
        let remote = RemoteSpan { address: RemoteAddress(64), rkey: Rkey(0x100) };
        WireRequest::Write { remote, bytes: vec![1] }
    }

    /// Whether a write may not arrive after such an end.
    fn is_wrong_after(told: Error) -> bool {
        let mut operations = OperationChecker::default();
        assert_eq!(operations.begun(0, (SESSION, 1), Kind::Write, None), None);
        assert_eq!(operations.ended(1, SESSION, 1, Err(told)), None);
        operations.executed(2, (SESSION, 1), &request(), (Vec::new(), false)).is_some()
    }

    #[test]
    fn what_was_told_to_be_over_must_not_happen_any_more_and_what_was_left_open_may() {
        for told in [Error::Interrupted, Error::Expired, Error::Revoked] {
            assert!(is_wrong_after(told), "{told}");
        }
        for told in [Error::SessionLost, Error::NodeGone] {
            assert!(!is_wrong_after(told), "{told}");
        }
    }

    #[test]
    fn what_happened_before_it_was_interrupted_is_right() {
        let mut operations = OperationChecker::default();
        assert_eq!(operations.begun(0, (SESSION, 1), Kind::Write, None), None);
        assert_eq!(operations.executed(1, (SESSION, 1), &request(), (Vec::new(), false)), None);
        assert_eq!(operations.ended(2, SESSION, 1, Err(Error::Interrupted)), None);
    }

    #[test]
    fn writes_are_executed_in_the_order_in_which_they_were_begun() {
        let mut operations = OperationChecker::default();
        for id in [1, 2] {
            assert_eq!(operations.begun(0, (SESSION, id), Kind::Write, None), None);
        }
        assert_eq!(operations.executed(1, (SESSION, 2), &request(), (Vec::new(), false)), None);
        assert!(operations.executed(2, (SESSION, 1), &request(), (Vec::new(), false)).is_some());
    }
}

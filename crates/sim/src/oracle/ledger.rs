//! Operations: begun, executed at the memory, ended. Each ends once, with the truth.

use super::{Failure, Promise, SessionId};
use crate::clock::Nanos;
use portcullis_client::Error;
use std::collections::HashMap;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    executed: u32,
    /// What each execution of a read or an atomic brought: a read may be posted again while its first packet is still
    /// on its way, and either answer is true.
    brought: Vec<Vec<u8>>,
    /// It was said not to have happened.
    denied: bool,
    ended: bool,
}

/// All operations under way, and those said not to have happened, of all sessions.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: HashMap<(SessionId, u64), Entry>,
}

fn wrong(at_ns: Nanos, what: String) -> Option<Failure> {
    Some(Failure { promise: Promise::Truth, at_ns, what })
}

impl Ledger {
    pub fn begun(&mut self, now: Nanos, session: SessionId, id: u64, kind: Kind) -> Option<Failure> {
        let entry = Entry { kind, executed: 0, brought: Vec::new(), denied: false, ended: false };
        match self.entries.insert((session, id), entry) {
            Some(Entry { ended: false, .. }) => {
                wrong(now, format!("operation {id:#x} of session {session} began twice"))
            }
            _ => None,
        }
    }

    /// The node's NIC has executed a request of this number.
    pub fn executed(&mut self, now: Nanos, session: SessionId, id: u64, brought: Vec<u8>) -> Option<Failure> {
        let entry = self.entries.get_mut(&(session, id))?;
        entry.executed += 1;
        entry.brought.push(brought);
        if entry.denied {
            return wrong(
                now,
                format!(
                    "operation {id:#x} of session {session} was executed after it was said not to have been"
                ),
            );
        }
        if entry.executed > 1 && entry.kind != Kind::Read {
            return wrong(now, format!("{:?} {id:#x} of session {session} was executed twice", entry.kind));
        }
        None
    }

    /// The client library said how an operation ended. `brought` is what it says it brought.
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
                wrong(now, format!("{kind:?} {id:#x} of session {session} is said to be done, and is not"))
            }
            Ok(brought) if kind != Kind::Write && !entry.brought.iter().any(|it| it == brought) => wrong(
                now,
                format!("{kind:?} {id:#x} of session {session} brought other bytes than the memory gave"),
            ),
            Ok(_) => {
                self.entries.remove(&(session, id));
                None
            }
            // They leave open what happened.
            Err(Error::Interrupted | Error::NodeGone | Error::SessionLost) => None,
            Err(error) if executed > 0 && kind != Kind::Read => wrong(
                now,
                format!(
                    "{kind:?} {id:#x} of session {session} is said to have failed ({error}), and was executed"
                ),
            ),
            Err(_) => {
                entry.denied = true;
                None
            }
        }
    }

    /// A session is over: what it still had under way has no outcome to come.
    pub fn forget(&mut self, session: SessionId) {
        self.entries.retain(|&(its, _), entry| its != session || entry.denied);
    }

    /// An operation that never ended.
    pub fn unended(&self) -> Option<(SessionId, u64)> {
        self.entries.iter().filter(|(_, entry)| !entry.ended).map(|(&key, _)| key).min()
    }
}

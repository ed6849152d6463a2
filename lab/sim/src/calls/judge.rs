//! Requests, executions and answers, as the simulator sees them, and the promises that they must keep. The judge
//! calls no code that it judges.

use super::methods::{self, Content};
use crate::clock::Nanos;
use crate::oracle::{Failure, Promise};
use portcullis_rpc::channel::CallError;
use std::collections::BTreeMap;

/// The most failures that are kept of one run.
const FAILURES_MAX: usize = 16;

/// A call of an honest client.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub method: u32,
    pub content: Content,
    /// Number of bytes of its scope.
    pub bytes: u64,
    pub deadline: Option<Nanos>,
    /// Whether its caller has cancelled it.
    pub is_cancelled: bool,
    /// Whether its request was cancelled when the server took it.
    pub was_cancelled: bool,
    /// How often its method began.
    pub runs: u32,
    pub has_ended: bool,
}

/// How a call has ended, as its caller sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// A word, and the numbers of the result if there are any.
    Done(u64, Option<Vec<u64>>),
    Error(CallError),
}

/// The record of kept and broken promises.
#[derive(Debug, Default)]
pub(super) struct Judge {
    pub failures: Vec<Failure>,
    pub asked: BTreeMap<u64, Asked>,
    /// The scopes in use, by address: the length of each, and the connection that has it.
    scopes: BTreeMap<u64, (u64, u64)>,
    pub now: Nanos,
    /// Number of calls that ended with a result.
    pub answered: u64,
    pub under_way_peak: u64,
}

impl Judge {
    pub fn fail(&mut self, promise: Promise, what: String) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(Failure { promise, at_ns: self.now, what });
        }
    }

    pub fn check(&mut self, promise: Promise, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(promise, what());
        }
    }

    /// Returns the connection that uses a scope in which one of these bytes lies.
    pub fn user_of(&self, address: u64, length: u64) -> Option<u64> {
        let (&other, &(bytes, of)) = self.scopes.range(..address + length).next_back()?;
        (other + bytes > address).then_some(of)
    }

    /// Records that a connection uses a scope from here on.
    pub fn scope_taken(&mut self, address: u64, length: u64, socket: u64) {
        if let Some(other) = self.user_of(address, length) {
            let what =
                format!("a scope of connection {socket} at {address:#x} lies in one of connection {other}");
            self.fail(Promise::Places, what);
        }
        self.scopes.insert(address, (length, socket));
    }

    /// Records that a scope was freed.
    pub fn scope_freed(&mut self, address: u64) {
        self.scopes.remove(&address);
    }

    /// Records that a client no longer has a connection, nor scopes of it.
    pub fn connection_ended(&mut self, socket: u64) {
        self.scopes.retain(|_, &mut (_, of)| of != socket);
    }

    /// Records that a server has taken a request.
    pub fn taken(&mut self, id: u64) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.was_cancelled = asked.is_cancelled;
        }
    }

    /// Records that a method has begun for a call, and has read `content`.
    pub fn ran(&mut self, id: u64, method: u32, content: Content, at: Nanos) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return self.fail(
                Promise::Answer,
                format!("method {method} ran for call {id}, which no caller waits for"),
            );
        };
        asked.runs += 1;
        let (runs, was_cancelled, deadline) = (asked.runs, asked.was_cancelled, asked.deadline);
        let is_what_was_sent = asked.content == content && asked.method == method;
        let sent = (asked.method, asked.content);
        self.check(Promise::Answer, runs == 1, || format!("method {method} ran {runs} times for call {id}"));
        self.check(Promise::Arguments, is_what_was_sent, || {
            format!("method {method} has read {content:?} for call {id}, which sent {sent:?}")
        });
        self.check(Promise::Beginning, !was_cancelled, || {
            format!("method {method} began for call {id}, which had been cancelled")
        });
        self.check(Promise::Beginning, deadline.is_none_or(|deadline| at < deadline), || {
            format!("method {method} began at {at} for call {id}, whose deadline was {deadline:?}")
        });
    }

    /// Records that a call has ended at its caller. `is_gone`: the caller knows that its server is gone.
    pub fn answered(&mut self, id: u64, ending: &Ending, is_gone: bool) {
        let now = self.now;
        let Some(asked) = self.asked.get_mut(&id) else {
            return self.fail(Promise::Answer, format!("call {id} ended twice"));
        };
        let is_again = std::mem::replace(&mut asked.has_ended, true);
        let is_over = asked.deadline.is_some_and(|deadline| now >= deadline);
        let (runs, method, is_cancelled) = (asked.runs, asked.method, asked.is_cancelled);
        let is_right = match ending {
            Ending::Error(CallError::Late) => is_over,
            Ending::Error(CallError::Cancelled) => is_cancelled && runs == 0,
            Ending::Error(CallError::ServerGone) => is_gone,
            ending => methods::is_right(id, asked, ending),
        };
        if matches!(ending, Ending::Done(..)) {
            self.answered += 1;
        }
        self.check(Promise::Answer, !is_again, || format!("call {id} ended twice"));
        self.check(Promise::Answer, is_right, || {
            format!("call {id} of method {method}, which ran {runs} times, ended with {ending:?}")
        });
    }
}

//! The outcome of a call: its answer, or the reason of its failure.

use super::DEPTH;
use super::words::{ReplyLine, Status};
use crate::heap::Heap;
use crate::plain::Plain;
use crate::{Boxed, PointerError, ScopeRef, Text};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_planted::planted;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of the longest text with the reason of a failure.
const REASON_MAX: u64 = 64 << 10;

/// The heap of a client's results.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub heap: Heap,
    /// `None`: the server allocates in the same memory, and the client frees the results there.
    pub returned: Option<Returned>,
}

impl Results {
    fn free(&self, address: u64) {
        match &self.returned {
            Some(returned) => returned.put(address),
            // The server may have named an address at which no allocation begins.
            None => drop(self.heap.free(address)),
        }
    }
}

/// Scopes of results that a client does not need any more and has not given back to the server yet. Clones share one
/// list.
#[derive(Clone, Debug, Default)]
pub struct Returned(Arc<Mutex<Vec<u64>>>);

impl Returned {
    fn put(&self, address: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    /// Takes as many of the addresses as there is room for. The rest of `into` stays as it is.
    pub fn take(&self, into: &mut [u64]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = all.len().saturating_sub(into.len());
        into.iter_mut().zip(all.drain(left..)).for_each(|(place, address)| *place = address);
    }
}

/// The answer to a call. Dropping it frees the result's scope.
pub struct Answer {
    results: Results,
    pub(super) word: u64,
    pub(super) root: u64,
    pub(super) scope: ScopeRef,
}

impl Answer {
    /// Reads the answer from a reply. A hostile server may have written any bytes there.
    pub(super) fn of(results: &Results, reply: &ReplyLine) -> Self {
        let ReplyLine { word, root, scope, .. } = *reply;
        Self { results: results.clone(), word, root, scope }
    }

    /// The word that the method answered with.
    #[must_use]
    pub fn word(&self) -> u64 {
        self.word
    }

    /// The pointer that the method answered with.
    #[must_use]
    pub fn root<T>(&self) -> Boxed<T> {
        Boxed::at(self.root)
    }

    /// Bytes of the result's scope, as the server reports them.
    pub(in crate::channel) fn length(&self) -> u64 {
        self.scope.length
    }

    /// A copy of the value that the method answered with.
    ///
    /// # Errors
    /// The pointer leads out of the heap.
    pub fn read<T: Plain>(&self) -> Result<T, PointerError> {
        self.root().read(&self.results.heap)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, root, scope, .. } = self;
        write!(f, "Answer {{ word: {word}, root: {root:#x}, scope: {scope:x?} }}")
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.scope.address != 0 && !planted!(ResultKept) {
            self.results.free(self.scope.address);
        }
    }
}

/// Reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server has no such method.
    #[error("the server has no method {0}")]
    NoSuchMethod(u32),
    /// The server could not use the scope: it is larger than the method accepts.
    #[error("the server does not take arguments of that size")]
    ArgumentsTooLong,
    /// The method found a pointer among the arguments that cannot be followed, or malformed bytes.
    #[error("the arguments are wrong: {0}")]
    WildPointer(String),
    /// The method panicked: its code has a mistake.
    #[error("the method panicked")]
    Panicked,
    /// The method failed for a reason of its own.
    #[error("the method failed with {number}: {text}")]
    Failed {
        /// The method's own number for the reason.
        number: u32,
        /// The method's text for the reason.
        text: String,
    },
    /// The deadline passed. The method may still run.
    #[error(
        "the deadline of the call has passed: the server is busy or stands still, and the method may still run; give the call more \
         time (call_within)"
    )]
    Late,
    /// The call was cancelled before the method began.
    #[error("the call was cancelled")]
    Cancelled,
    /// The connection's heap has no room for the result.
    #[error("no room for the result: {0}")]
    NoRoom(String),
    /// The method has used up its sandbox's stack: the arguments lead too deep.
    #[error("the method has used up its stack: the arguments lead too deep")]
    StackOverflow,
    /// The method has accessed memory that it may not access. The server goes on, whatever the method did to itself.
    #[error("the method has touched memory that it may not, {0}")]
    Fault(String),
    /// The method took longer than the server allows.
    #[error("the method took longer than the server allows")]
    OverBudget,
    /// The server's machine refuses the method's sandbox.
    #[error("the server has no sandbox for the method: {0}")]
    NoSandbox(String),
    /// The method reads sealed scopes, and the call named no scope that the server has found sealed in this connection.
    #[error("the method reads sealed scopes alone, and the call passed none: see Connection::one_shot")]
    NotSealed,
    /// The passed scope is sealed, but the method copies its arguments or trusts the sender with them.
    #[error("the method does not read sealed scopes: pass it one of the heap's (Connection::scope)")]
    NoSealedWanted,
    /// The scope cannot be guarded ([`ConnectionOptions::guarded`](crate::channel::ConnectionOptions::guarded)). The
    /// call was not begun.
    #[error("the scope cannot be guarded: {0}")]
    NotGuarded(String),
    /// The result is longer than this client copies.
    #[error("a result of {length} bytes, but the client accepts {most}: see ConnectionOptions::results_max")]
    ResultTooLong {
        /// The bytes of the result, as the server reports them.
        length: u64,
        /// The most bytes that this client copies.
        most: u64,
    },
    /// The server has ended. The method may have run.
    #[error("the server is gone")]
    ServerGone,
    /// The connection has as many calls as it may have that were begun and not waited for.
    #[error("{DEPTH} calls were begun already: wait for one of them")]
    TooMany,
    /// The call is not under way: its answer was taken before.
    #[error("there is no such call under way")]
    NoSuchCall,
    /// The server's reply is invalid.
    #[error("the server's reply is malformed")]
    Nonsense,
}

impl Coded for CallError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoSuchMethod(_) => ErrorCode::NoSuchMethod,
            Self::ArgumentsTooLong => ErrorCode::ArgumentsTooLong,
            Self::WildPointer(_) => ErrorCode::WildPointer,
            Self::Panicked => ErrorCode::MethodPanicked,
            Self::Failed { .. } => ErrorCode::MethodFailed,
            Self::Late => ErrorCode::CallLate,
            Self::Cancelled => ErrorCode::CallCancelled,
            Self::NoRoom(_) => ErrorCode::HeapFull,
            Self::StackOverflow => ErrorCode::SandboxStack,
            Self::Fault(_) => ErrorCode::SandboxFault,
            Self::OverBudget => ErrorCode::SandboxBudget,
            Self::NoSandbox(_) => ErrorCode::NoSandbox,
            Self::NotSealed => ErrorCode::NotSealed,
            Self::NoSealedWanted => ErrorCode::NoSealedWanted,
            Self::NotGuarded(_) => ErrorCode::Mapping,
            Self::ResultTooLong { .. } => ErrorCode::ResultTooLong,
            Self::ServerGone => ErrorCode::ServerGone,
            Self::TooMany => ErrorCode::TooManyCalls,
            Self::NoSuchCall => ErrorCode::NoSuchCall,
            Self::Nonsense => ErrorCode::NonsenseReply,
        }
    }
}

/// Converts a reply into the outcome for the caller of a method.
pub(super) fn understand(results: &Results, method: u32, reply: &ReplyLine) -> Result<Answer, CallError> {
    let answer = Answer::of(results, reply);
    let Some(status) = Status::read(reply.status) else { return Err(CallError::Nonsense) };
    let reason = || {
        let text = answer.read::<Text>().ok().filter(|text| text.len() <= REASON_MAX);
        text.and_then(|text| text.read(&results.heap).ok()).unwrap_or_default()
    };
    Err(match status {
        Status::Done => return Ok(answer),
        Status::NoSuchMethod => CallError::NoSuchMethod(method),
        Status::NoArguments => CallError::ArgumentsTooLong,
        Status::WildPointer => CallError::WildPointer(reason()),
        Status::Panicked => CallError::Panicked,
        Status::Failed => {
            CallError::Failed { number: u32::try_from(answer.word).unwrap_or(u32::MAX), text: reason() }
        }
        Status::Late => CallError::Late,
        Status::Cancelled => CallError::Cancelled,
        Status::NoRoom => CallError::NoRoom(reason()),
        Status::StackOverflow => CallError::StackOverflow,
        Status::Fault => CallError::Fault(reason()),
        Status::OverBudget => CallError::OverBudget,
        Status::NoSandbox => CallError::NoSandbox(reason()),
        Status::NotSealed => CallError::NotSealed,
        Status::NoSealedWanted => CallError::NoSealedWanted,
    })
}

//! Meaning of the words of a line.

use crate::ScopeRef;

/// Status with which a reply begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Status {
    /// The method has succeeded.
    Done = 0,
    /// The server has no such method.
    NoSuchMethod = 1,
    /// The request's scope is not in the heap, or is larger than the method accepts.
    NoArguments = 2,
    /// A pointer of the arguments cannot be followed, or its target is malformed.
    WildPointer = 3,
    /// The method panicked.
    Panicked = 4,
    /// The method failed for a reason of its own.
    Failed = 5,
    /// The deadline had passed before the call began.
    Late = 6,
    /// The call was cancelled before it began.
    Cancelled = 7,
    /// There is no room in the heap for the result.
    NoRoom = 8,
    /// The method has used up its stack.
    StackOverflow = 9,
    /// The method has accessed memory in a trap that it may not access.
    Fault = 10,
    /// The method took longer in a trap than it may.
    OverBudget = 11,
    /// The server's machine refuses a sandbox.
    NoSandbox = 12,
    /// The method reads sealed scopes, and the request names no scope that the server has found sealed.
    NotSealed = 13,
    /// The method does not read sealed scopes.
    NoSealedWanted = 14,
}

impl Status {
    const ALL: [Self; 15] = [
        Self::Done,
        Self::NoSuchMethod,
        Self::NoArguments,
        Self::WildPointer,
        Self::Panicked,
        Self::Failed,
        Self::Late,
        Self::Cancelled,
        Self::NoRoom,
        Self::StackOverflow,
        Self::Fault,
        Self::OverBudget,
        Self::NoSandbox,
        Self::NotSealed,
        Self::NoSealedWanted,
    ];

    /// Decodes the status of a reply. `None`: no status has that number.
    #[must_use]
    pub fn read(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A request, as its line contains it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLine {
    /// The method's number.
    pub method: u32,
    /// The call's number, which its reply repeats.
    pub call: u64,
    /// The address of the arguments' root.
    pub root: u64,
    /// The scope that the arguments are in.
    pub scope: ScopeRef,
    /// The deadline, in nanoseconds of a clock that both ends have. Zero: no deadline.
    pub deadline: u64,
    /// The word that is passed beside the root.
    pub word: u64,
}

/// A reply, as its line contains it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyLine {
    /// A [`Status`], if the server obeys the protocol.
    pub status: u32,
    /// The call's number.
    pub call: u64,
    /// The address of the result's root.
    pub root: u64,
    /// The scope that the result is in.
    pub scope: ScopeRef,
    /// The word that is returned beside the root.
    pub word: u64,
}

impl RequestLine {
    /// Encodes the words of the request's line.
    #[must_use]
    pub fn words(self) -> [u64; 6] {
        [self.call, self.root, self.scope.address, self.scope.length, self.deadline, self.word]
    }

    /// Decodes a request from the head and the words of its line.
    #[must_use]
    pub fn read(method: u32, [call, root, address, length, deadline, word]: [u64; 6]) -> Self {
        Self { method, call, root, scope: ScopeRef { address, length }, deadline, word }
    }
}

impl ReplyLine {
    /// Encodes the words of the reply's line.
    #[must_use]
    pub fn words(self) -> [u64; 6] {
        [self.call, self.root, self.scope.address, self.scope.length, self.word, 0]
    }

    /// Decodes a reply from the head and the words of its line.
    #[must_use]
    pub fn read(status: u32, [call, root, address, length, word, _]: [u64; 6]) -> Self {
        Self { status, call, root, scope: ScopeRef { address, length }, word }
    }
}

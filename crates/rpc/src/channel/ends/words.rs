//! What the words of a line mean.

use crate::ScopeRef;

/// What a reply begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Status {
    /// The method has done what it was to do.
    Done = 0,
    /// The server has no such method.
    NoSuchMethod = 1,
    /// The request's scope is not one of the heap's, or is larger than the method takes.
    NoArguments = 2,
    /// The method followed a pointer that it should not have.
    WildPointer = 3,
    /// The method panicked.
    Panicked = 4,
    /// The method says that it failed.
    Failed = 5,
    /// The deadline had passed before the call began.
    Late = 6,
    /// The call was cancelled before it began.
    Cancelled = 7,
    /// There is no room in the heap for the result.
    NoRoom = 8,
    /// The method has used up its stack.
    StackOverflow = 9,
    /// The method has touched memory that it may not, in a trap.
    Fault = 10,
    /// The method took longer in a trap than it may.
    OverBudget = 11,
    /// The server's machine refuses a sandbox.
    NoSandbox = 12,
    /// The method reads sealed scopes, and the request names none that the server has found sealed.
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

    /// The status that a reply says. `None`: there is none with that number.
    #[must_use]
    pub fn read(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A request, as its line says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLine {
    /// The method's number.
    pub method: u32,
    /// The call's number, which its reply repeats.
    pub call: u64,
    /// The address of the arguments' root.
    pub root: u64,
    /// The scope that they are in.
    pub scope: ScopeRef,
    /// In nanoseconds of a clock that both ends have. Zero: there is none.
    pub deadline: u64,
    /// What is passed beside the root.
    pub word: u64,
}

/// A reply, as its line says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyLine {
    /// A [`Status`], if the server keeps to the rules.
    pub status: u32,
    /// The call's number.
    pub call: u64,
    /// The address of the result's root.
    pub root: u64,
    /// The scope that it is in.
    pub scope: ScopeRef,
    /// What is answered beside the root.
    pub word: u64,
}

impl RequestLine {
    /// The words of its line.
    #[must_use]
    pub fn words(self) -> [u64; 6] {
        [self.call, self.root, self.scope.address, self.scope.length, self.deadline, self.word]
    }

    /// What a line with that head and these words says.
    #[must_use]
    pub fn read(method: u32, [call, root, address, length, deadline, word]: [u64; 6]) -> Self {
        Self { method, call, root, scope: ScopeRef { address, length }, deadline, word }
    }
}

impl ReplyLine {
    /// The words of its line.
    #[must_use]
    pub fn words(self) -> [u64; 6] {
        [self.call, self.root, self.scope.address, self.scope.length, self.word, 0]
    }

    /// What a line with that head and these words says.
    #[must_use]
    pub fn read(status: u32, [call, root, address, length, word, _]: [u64; 6]) -> Self {
        Self { status, call, root, scope: ScopeRef { address, length }, word }
    }
}

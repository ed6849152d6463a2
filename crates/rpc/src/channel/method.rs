//! Methods: the code that a server runs for a call, and the form in which it receives the arguments.

use super::ends::{Clock, Status};
use crate::heap::Heap;
use crate::plain::Plain;
use crate::{Boxed, HeapFull, PointerError, Scope, ScopeRef, Text, View};
use portcullis_memory::sandbox::{ArenaFull, Trapped};
use std::fmt;
use std::time::Duration;

/// Arguments that were copied before the method began: no process changes them while the method reads them. Sound
/// against any sender.
#[derive(Debug)]
pub struct Copied<'a, T> {
    view: View<'a>,
    root: Boxed<T>,
    word: u64,
}

impl<'a, T: Plain> Copied<'a, T> {
    pub(super) fn new(view: View<'a>, root: u64, word: u64) -> Self {
        Self { view, root: Boxed::at(root), word }
    }

    /// The value that the call's pointer leads to.
    ///
    /// # Errors
    /// The pointer leads out of the scope that was passed.
    pub fn get(&self) -> Result<&'a T, PointerError> {
        self.root.get(&self.view)
    }

    /// The call's pointer. A method that keeps the passed value gives it to [`copy_from`](crate::copy_from).
    #[must_use]
    pub fn root(&self) -> Boxed<T> {
        self.root
    }

    /// The scope that was passed, as the view through which its pointers are followed.
    #[must_use]
    pub fn view(&self) -> &View<'a> {
        &self.view
    }

    /// The word that was passed beside the pointer.
    #[must_use]
    pub fn word(&self) -> u64 {
        self.word
    }
}

/// Arguments in the sender's memory. The sender may change them at any time, so they are read by value. This form is
/// for senders that are trusted not to do that, or for values that are used as they are at the moment of reading.
/// Pointers may lead anywhere in the heap.
#[derive(Debug)]
pub struct Trusted<'a, T> {
    heap: &'a Heap,
    root: Boxed<T>,
    scope: ScopeRef,
    word: u64,
}

impl<'a, T: Plain> Trusted<'a, T> {
    pub(super) fn new(heap: &'a Heap, root: u64, scope: ScopeRef, word: u64) -> Self {
        Self { heap, root: Boxed::at(root), scope, word }
    }

    /// Returns a copy of the value that the call's pointer leads to.
    ///
    /// # Errors
    /// The pointer leads out of the heap.
    pub fn read(&self) -> Result<T, PointerError> {
        self.root.read(self.heap)
    }

    /// The call's pointer.
    #[must_use]
    pub fn root(&self) -> Boxed<T> {
        self.root
    }

    /// The heap that the arguments are in: the connection's, or that of all clients.
    #[must_use]
    pub fn heap(&self) -> &'a Heap {
        self.heap
    }

    /// The scope that was passed, as the sender names it.
    #[must_use]
    pub fn scope(&self) -> ScopeRef {
        self.scope
    }

    /// The word that was passed beside the pointer.
    #[must_use]
    pub fn word(&self) -> u64 {
        self.word
    }
}

/// The answer of a method: a word, and a value in a scope of its own.
pub struct Reply<'a> {
    heap: &'a Heap,
    /// Time until which the caller waits. `None`: the caller has set no deadline.
    deadline: Option<u64>,
    clock: Clock<'a>,
    pub(super) word: u64,
    pub(super) root: u64,
    pub(super) scope: Option<Scope>,
}

impl<'a> Reply<'a> {
    pub(super) fn new(heap: &'a Heap, deadline: Option<u64>, clock: Clock<'a>) -> Self {
        Self { heap, deadline, clock, word: 0, root: 0, scope: None }
    }

    /// Sets the word of the answer.
    pub fn set_word(&mut self, word: u64) {
        self.word = word;
    }

    /// Takes a scope for the result, which the caller frees. A second scope replaces the first.
    ///
    /// # Errors
    /// The connection's heap has no room.
    pub fn scope(&mut self, bytes: u64) -> Result<&Scope, HeapFull> {
        Ok(self.scope.insert(self.heap.scope(bytes)?))
    }

    /// Sets the pointer of the answer, which leads into the scope.
    pub fn set_root<T>(&mut self, root: Boxed<T>) {
        self.root = root.address();
    }

    /// Sets the answer to one value that has no pointers.
    ///
    /// # Errors
    /// The connection's heap has no room.
    pub fn set<T: Plain>(&mut self, value: T) -> Result<(), HeapFull> {
        let scope = self.scope(size_of::<T>() as u64)?;
        let root = Boxed::new(scope, value)?;
        self.set_root(root);
        Ok(())
    }

    /// How long the caller will still wait. `None`: the caller has set no deadline.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub((self.clock)())))
    }

    /// Sets the answer to the reason of a failure. If there is no room for the text, the caller gets the status alone.
    pub(super) fn explain(&mut self, number: u32, text: &str) {
        self.word = number.into();
        self.root = 0;
        let length = (text.len() + size_of::<Text>()) as u64;
        let Ok(scope) = self.scope(length) else { return };
        let text = Text::new(scope, text).and_then(|text| Boxed::new(scope, text));
        if let Ok(root) = text {
            self.set_root(root);
        }
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deadline, word, root, scope, .. } = self;
        f.debug_struct("Reply")
            .field("deadline", deadline)
            .field("word", word)
            .field("root", root)
            .field("scope", scope)
            .finish_non_exhaustive()
    }
}

/// Reason why a method failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A pointer of the caller's arguments cannot be followed, or its target is malformed.
    Arguments(PointerError),
    /// The connection's heap has no room for the result.
    NoRoom(HeapFull),
    /// A reason of the method's own: a number and a text for the caller.
    Reason(u32, String),
    /// Code in a trap of the method's sandbox did not end normally.
    Trapped(Trapped),
    /// The machine refuses a sandbox.
    NoSandbox(String),
}

impl Failure {
    /// A reason of the method's own.
    #[must_use]
    pub fn new(number: u32, text: impl fmt::Display) -> Self {
        Self::Reason(number, text.to_string())
    }

    pub(super) fn tell(&self, reply: &mut Reply<'_>) -> Status {
        match self {
            Self::Arguments(PointerError::TooDeep) | Self::Trapped(Trapped::StackOverflow) => {
                Status::StackOverflow
            }
            Self::Arguments(error) => {
                reply.explain(0, &error.to_string());
                Status::WildPointer
            }
            Self::Trapped(Trapped::Fault { address, .. }) => {
                // The addresses of the server's own memory are not disclosed.
                let told = address.filter(|&it| reply.heap.place().offset(it, 1).is_some());
                let place = told.map_or("outside the heap".to_owned(), |it| format!("at {it:#x}"));
                reply.explain(0, &place);
                Status::Fault
            }
            Self::Trapped(Trapped::OverBudget(_)) => Status::OverBudget,
            Self::Trapped(Trapped::Panicked) => Status::Panicked,
            Self::Trapped(error) => {
                reply.explain(0, &error.to_string());
                Status::NoSandbox
            }
            Self::NoSandbox(text) => {
                reply.explain(0, text);
                Status::NoSandbox
            }
            Self::NoRoom(error) => {
                reply.scope = None;
                reply.explain(0, &error.to_string());
                Status::NoRoom
            }
            Self::Reason(number, text) => {
                reply.explain(*number, text);
                Status::Failed
            }
        }
    }
}

impl From<PointerError> for Failure {
    fn from(error: PointerError) -> Self {
        Self::Arguments(error)
    }
}

impl From<HeapFull> for Failure {
    fn from(error: HeapFull) -> Self {
        Self::NoRoom(error)
    }
}

impl From<Trapped> for Failure {
    fn from(error: Trapped) -> Self {
        Self::Trapped(error)
    }
}

impl From<ArenaFull> for Failure {
    fn from(error: ArenaFull) -> Self {
        let ArenaFull { wanted, length } = error;
        Self::NoRoom(HeapFull { wanted, place: "sandbox's temporary heap", length })
    }
}

impl From<crate::GrowError> for Failure {
    fn from(error: crate::GrowError) -> Self {
        match error {
            crate::GrowError::Full(error) => Self::NoRoom(error),
            crate::GrowError::Elsewhere(error) => Self::Arguments(error),
        }
    }
}

/// A method's code, by the form in which it gets the arguments.
pub(super) enum Method {
    Copied { most: u64, code: Box<ViewCode> },
    OneShot(Box<ViewCode>),
    Trusted(Box<TrustedCode>),
}

/// Code of a method that reads its arguments in place. Its parameters are the copy or the sealed bytes, the root and
/// the word.
pub(super) type ViewCode = dyn Fn(View<'_>, u64, u64, &mut Reply<'_>) -> Result<(), Failure>
    + Send
    + Sync
    + std::panic::RefUnwindSafe;
/// Code of a method that trusts its callers. Its parameters are the heap, the root, the scope and the word.
pub(super) type TrustedCode = dyn Fn(&Heap, u64, ScopeRef, u64, &mut Reply<'_>) -> Result<(), Failure>
    + Send
    + Sync
    + std::panic::RefUnwindSafe;

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copied { most, .. } => write!(f, "copied, up to {most} bytes"),
            Self::OneShot(_) => f.write_str("one-shot"),
            Self::Trusted(_) => f.write_str("trusted"),
        }
    }
}

//! Methods: what a server does for a call, and in which form it gets the arguments.

use super::Status;
use crate::heap::Heap;
use crate::plain::Plain;
use crate::{Boxed, HeapFull, PointerError, Scope, ScopeRef, Text, View};
use std::fmt;
use std::time::{Duration, Instant};

/// Arguments that were copied before the method began: nobody changes them while it looks at them. Sound against any sender.
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

    /// What the call's pointer leads to.
    ///
    /// # Errors
    /// It leads out of the scope that was passed.
    pub fn get(&self) -> Result<&'a T, PointerError> {
        self.root.get(&self.view)
    }

    /// The scope that was passed. Pointers from it are followed with this.
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

/// Arguments where the sender has them, who may change them at any time: they are read by value. For senders that are trusted not
/// to, or for values of which each is taken as it comes. Pointers may lead anywhere in the heap.
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

    /// A copy of what the call's pointer leads to.
    ///
    /// # Errors
    /// It leads out of the heap.
    pub fn read(&self) -> Result<T, PointerError> {
        self.root.read(self.heap)
    }

    /// The call's pointer.
    #[must_use]
    pub fn root(&self) -> Boxed<T> {
        self.root
    }

    /// The connection's heap.
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

/// What a method answers: a word, and a value in a scope of its own.
#[derive(Debug)]
pub struct Reply<'a> {
    heap: &'a Heap,
    until: Option<Instant>,
    pub(super) word: u64,
    pub(super) root: u64,
    pub(super) scope: Option<Scope>,
}

impl<'a> Reply<'a> {
    pub(super) fn new(heap: &'a Heap, until: Option<Instant>) -> Self {
        Self { heap, until, word: 0, root: 0, scope: None }
    }

    /// Answers with a word.
    pub fn set_word(&mut self, word: u64) {
        self.word = word;
    }

    /// A scope for the result, which the caller frees. A second one replaces the first.
    ///
    /// # Errors
    /// The connection's heap has no room.
    pub fn scope(&mut self, bytes: u64) -> Result<&Scope, HeapFull> {
        Ok(self.scope.insert(self.heap.scope(bytes)?))
    }

    /// Answers with a pointer into the scope.
    pub fn set_root<T>(&mut self, root: Boxed<T>) {
        self.root = root.address();
    }

    /// Answers with one value that has no pointers.
    ///
    /// # Errors
    /// The connection's heap has no room.
    pub fn set<T: Plain>(&mut self, value: T) -> Result<(), HeapFull> {
        let scope = self.scope(size_of::<T>() as u64)?;
        let root = Boxed::new(scope, value)?;
        self.set_root(root);
        Ok(())
    }

    /// How long the caller will wait. `None`: it has not said.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Answers with a text that says why the call failed. Without room for it the caller has the status alone.
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

/// Why a method did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The caller's arguments lead nowhere.
    Arguments(PointerError),
    /// The connection's heap has no room for the result.
    NoRoom(HeapFull),
    /// A reason of the method's own: a number and a text for the caller.
    Reason(u32, String),
}

impl Failure {
    /// A reason of the method's own.
    #[must_use]
    pub fn new(number: u32, text: impl fmt::Display) -> Self {
        Self::Reason(number, text.to_string())
    }

    pub(super) fn tell(&self, reply: &mut Reply<'_>) -> Status {
        match self {
            Self::Arguments(error) => {
                reply.explain(0, &error.to_string());
                Status::WildPointer
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
    Copied { most: u64, code: Box<CopiedCode> },
    Trusted(Box<TrustedCode>),
}

/// What a method that has its arguments copied is called with: the copy, the root and the word.
pub(super) type CopiedCode = dyn Fn(View<'_>, u64, u64, &mut Reply<'_>) -> Result<(), Failure>
    + Send
    + Sync
    + std::panic::RefUnwindSafe;
/// What a method that trusts its callers is called with: the heap, the root, the scope and the word.
pub(super) type TrustedCode = dyn Fn(&Heap, u64, ScopeRef, u64, &mut Reply<'_>) -> Result<(), Failure>
    + Send
    + Sync
    + std::panic::RefUnwindSafe;

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copied { most, .. } => write!(f, "copied, up to {most} bytes"),
            Self::Trusted(_) => f.write_str("trusted"),
        }
    }
}

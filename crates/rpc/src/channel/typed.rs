//! Typed clients and servers: the code that [`service`](crate::service) generates from a trait uses these types.
//!
//! The forms of arguments are types with [`Isolation`], and the return types of methods implement [`Returned`]. A new
//! form is added with one line of `forms!`.

use super::{
    Answer, CallError, CallId, Channel, Connection, Copied, Failure, OneShot, Reply, Sandboxed, Sealed,
    Trusted,
};
use crate::plain::Plain;
use crate::{Boxed, PointerError, Scope, ScopeRef};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::RefUnwindSafe;

/// A form in which a method receives its arguments. The receiver chooses it for each method in the method's signature
/// (RPCool §5.1).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a form in which a method gets its arguments",
    label = "a value that can lie in a heap (`Plain`) comes as `Copied<'_, T>` or `Trusted<'_, T>`"
)]
pub trait Isolation {
    /// Type of the value that the call's pointer leads to.
    type Root: Plain;
    /// The scope that the client passes.
    type Passed: Passed;
    /// The form with the lifetime of a call.
    type Given<'a>;

    /// Adds a method that receives its arguments in this form.
    #[must_use]
    fn add<F>(channel: Channel, number: u32, code: F) -> Channel
    where
        F: Fn(Self::Given<'_>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static;

    /// The word that was passed beside the pointer.
    fn word(given: &Self::Given<'_>) -> u64;
}

/// A scope that a client passes to a method.
pub trait Passed {
    /// The reference by which a call names the scope.
    fn reference(&self) -> ScopeRef;
}

impl Passed for Scope {
    fn reference(&self) -> ScopeRef {
        self.reference()
    }
}

impl Passed for Sealed {
    fn reference(&self) -> ScopeRef {
        self.reference()
    }
}

/// Implements [`Isolation`] for forms: names the type that the client passes, and the method of [`Channel`] that adds
/// methods of the form.
macro_rules! forms {
    ($($form:ident of $passed:ident by $add:ident;)*) => {$(
        impl<T: Plain> Isolation for $form<'_, T> {
            type Root = T;
            type Passed = $passed;
            type Given<'a> = $form<'a, T>;

            fn add<F>(channel: Channel, number: u32, code: F) -> Channel
            where
                F: Fn($form<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
            {
                channel.$add(number, code)
            }

            fn word(given: &$form<'_, T>) -> u64 {
                given.word()
            }
        }
    )*};
}

forms! {
    Copied of Scope by copied;
    OneShot of Sealed by one_shot;
    Sandboxed of Scope by sandboxed;
    Trusted of Scope by trusted;
}

/// Return type of a [`service`](crate::service)'s method: a `Result` of a [`MethodResult`] and of an error that
/// converts into a [`Failure`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type that a method returns",
    label = "`Result<R, Failure>`, where `R` is `()`, `u64` or `Boxed<T>`"
)]
pub trait Returned {
    /// The result of a method that succeeds.
    type MethodResult: MethodResult;

    /// Writes the result into the reply.
    ///
    /// # Errors
    /// The method failed.
    fn tell(self, reply: &mut Reply<'_>) -> Result<(), Failure>;
}

impl<O: MethodResult, E: Into<Failure>> Returned for Result<O, E> {
    type MethodResult = O;

    fn tell(self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        self.map(|result| result.tell(reply)).map_err(Into::into)
    }
}

/// Result of a method: nothing, a word, or a pointer to a value in the reply's scope.
#[diagnostic::on_unimplemented(
    message = "a method does not bring `{Self}`",
    label = "a method brings `()`, `u64`, or `Boxed<T>` into the scope of its reply"
)]
pub trait MethodResult {
    /// The client's type of the result.
    type Answer;

    /// Writes the result into the reply.
    fn tell(self, reply: &mut Reply<'_>);

    /// Reads the result from an answer. A hostile server may have written any bytes there.
    fn hear(answer: Answer) -> Self::Answer;
}

impl MethodResult for () {
    type Answer = ();

    fn tell(self, _: &mut Reply<'_>) {}

    fn hear(_: Answer) {}
}

impl MethodResult for u64 {
    type Answer = Self;

    fn tell(self, reply: &mut Reply<'_>) {
        reply.set_word(self);
    }

    fn hear(answer: Answer) -> Self {
        answer.word()
    }
}

impl<R: Plain> MethodResult for Boxed<R> {
    type Answer = Answered<R>;

    fn tell(self, reply: &mut Reply<'_>) {
        reply.set_root(self);
    }

    fn hear(answer: Answer) -> Answered<R> {
        Answered { answer, of: PhantomData }
    }
}

/// An answer whose pointer leads to an `R`. Dropping it frees the result's scope.
pub struct Answered<R> {
    answer: Answer,
    of: PhantomData<fn() -> R>,
}

impl<R: Plain> Answered<R> {
    /// The pointer that the method answered with.
    #[must_use]
    pub fn root(&self) -> Boxed<R> {
        self.answer.root()
    }

    /// A copy of the value that the method answered with.
    ///
    /// # Errors
    /// The pointer leads out of the heap.
    pub fn read(&self) -> Result<R, PointerError> {
        self.answer.read()
    }

    /// Copies the result's scope, so that the server cannot change it any more. Returns the copy. `connection` is that
    /// of the call.
    ///
    /// # Errors
    /// See [`Connection::look`].
    pub fn look<'a>(&self, connection: &'a mut Connection) -> Result<Copied<'a, R>, CallError> {
        connection.look(&self.answer)
    }
}

impl<R> fmt::Debug for Answered<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.answer.fmt(f)
    }
}

/// A call that is under way and whose result is an `O`.
pub struct TypedCall<O> {
    id: CallId,
    of: PhantomData<fn() -> O>,
}

impl<O: MethodResult> TypedCall<O> {
    /// Wraps the call `id`, whose method is known to return an `O`.
    #[must_use]
    pub fn new(id: CallId) -> Self {
        Self { id, of: PhantomData }
    }

    /// Waits for the answer, over the connection of the call.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(self, connection: &mut Connection) -> Result<O::Answer, CallError> {
        connection.wait(self.id).map(O::hear)
    }
}

/// The call's number, which [`Connection::cancel`] and [`Connection::has_ended`] take.
impl<O> Deref for TypedCall<O> {
    type Target = CallId;

    fn deref(&self) -> &CallId {
        &self.id
    }
}

impl<O> fmt::Debug for TypedCall<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

/// Methods that are added to a channel together. [`service`](crate::service) generates them from a trait.
pub trait Service {
    /// Adds the methods to a channel.
    #[must_use]
    fn add_to(self, channel: Channel) -> Channel;
}

impl Channel {
    /// Adds the methods of a service. Several services may have one channel, if no two methods have one number.
    #[must_use]
    pub fn service(self, service: impl Service) -> Self {
        service.add_to(self)
    }
}

//! A request, as a future.

use super::Pipeline;
use super::buffers::Buffers;
use super::requests::Done;
use portcullis::{
    BarePermission, Buffer, ChunkTerms, Clock, Entry, Error, Memory, Operation, Outcome, VerbsEndpoint,
};
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A result that a request can have.
pub trait Yield<M: Memory>: Sized {
    /// Converts the result of a request. `None`: the request has a result of another kind.
    #[doc(hidden)]
    fn of(done: Done<M>, buffers: &mut Buffers<M>) -> Option<Self>;

    /// Converts the result of a successful access: its buffer, or the old value of its word.
    #[doc(hidden)]
    #[inline]
    fn of_access(buffer: Option<Buffer<M>>, word: u64, buffers: &mut Buffers<M>) -> Option<Self> {
        Self::of(buffer.map_or(Done::Word(word), Done::Buffer), buffers)
    }
}

impl<M: Memory> Yield<M> for Buffer<M> {
    #[inline]
    fn of(done: Done<M>, _: &mut Buffers<M>) -> Option<Self> {
        if let Done::Buffer(buffer) = done { Some(buffer) } else { None }
    }

    // A result that is converted twice is moved through memory twice: most accesses are reads.
    #[inline]
    fn of_access(buffer: Option<Buffer<M>>, _: u64, _: &mut Buffers<M>) -> Option<Self> {
        buffer
    }
}

impl<M: Memory> Yield<M> for () {
    #[inline]
    fn of(done: Done<M>, buffers: &mut Buffers<M>) -> Option<Self> {
        match done {
            Done::Ended => Some(()),
            Done::Buffer(buffer) => {
                buffers.give_back(buffer);
                Some(())
            }
            _ => None,
        }
    }
}

impl<M: Memory> Yield<M> for u64 {
    #[inline]
    fn of(done: Done<M>, _: &mut Buffers<M>) -> Option<Self> {
        if let Done::Word(word) = done { Some(word) } else { None }
    }
}

impl<M: Memory> Yield<M> for BarePermission {
    #[inline]
    fn of(done: Done<M>, _: &mut Buffers<M>) -> Option<Self> {
        if let Done::Granted(permission) = done { Some(permission) } else { None }
    }
}

impl<M: Memory> Yield<M> for Entry {
    #[inline]
    fn of(done: Done<M>, _: &mut Buffers<M>) -> Option<Self> {
        if let Done::Entry(entry) = done { Some(entry) } else { None }
    }
}

impl<M: Memory> Yield<M> for ChunkTerms {
    #[inline]
    fn of(done: Done<M>, _: &mut Buffers<M>) -> Option<Self> {
        if let Done::Chunks(terms) = done { Some(terms) } else { None }
    }
}

/// The place of a request and its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// An access that is posted, or will be at the end of this round.
    Begun(Operation),
    /// The request or its result is in an entry of this number.
    Entered(u64),
    /// The future has returned the result.
    Taken,
}

/// A request that was made: [`Pipeline`] carries it out, and the future returns its result. If the future is dropped,
/// the request is carried out all the same.
#[must_use = "the result says whether the request was carried out"]
pub struct Awaited<'p, E: VerbsEndpoint, C: Clock, T: Yield<E::Memory>> {
    pipeline: &'p Pipeline<E, C>,
    asked: Asked,
    result: PhantomData<fn() -> T>,
}

/// A write, and the swap behind it if that has begun.
pub(crate) type WriteAndSwap<'p, E, C> = (Awaited<'p, E, C, ()>, Option<Awaited<'p, E, C, u64>>);

impl<E: VerbsEndpoint, C: Clock, T: Yield<E::Memory>> fmt::Debug for Awaited<'_, E, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl<'p, E: VerbsEndpoint, C: Clock, T: Yield<E::Memory>> Awaited<'p, E, C, T> {
    #[inline]
    pub(super) fn new(pipeline: &'p Pipeline<E, C>, asked: Asked) -> Self {
        Self { pipeline, asked, result: PhantomData }
    }
}

impl<E: VerbsEndpoint, C: Clock, T: Yield<E::Memory>> Future for Awaited<'_, E, C, T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let core = &mut *self.pipeline.core.borrow_mut();
        if let Asked::Begun(operation) = self.asked
            && let Some((buffer, word)) = core.take_success(operation)
        {
            self.asked = Asked::Taken;
            return Poll::Ready(T::of_access(buffer, word, &mut core.buffers).ok_or(Error::SessionLost));
        }
        let done = match self.asked {
            Asked::Begun(operation) => core.take_outcome(operation).map(done_of),
            Asked::Entered(entry) => core.take_entry(entry),
            Asked::Taken => unreachable!("a future is polled until it is ready"),
        };
        let Some(done) = done else { return Poll::Pending };
        self.asked = Asked::Taken;
        Poll::Ready(done.and_then(|done| T::of(done, &mut core.buffers).ok_or(Error::SessionLost)))
    }
}

/// Converts the outcome of an access.
#[inline]
pub(super) fn done_of<M: Memory>(Outcome { buffer, result }: Outcome<M>) -> Result<Done<M>, Error> {
    result.map(|word| buffer.map_or(Done::Word(word), Done::Buffer))
}

impl<E: VerbsEndpoint, C: Clock, T: Yield<E::Memory>> Drop for Awaited<'_, E, C, T> {
    #[inline]
    fn drop(&mut self) {
        match self.asked {
            Asked::Begun(operation) => self.pipeline.core.borrow_mut().forget_outcome(operation),
            Asked::Entered(entry) => self.pipeline.core.borrow_mut().forget_entry(entry),
            Asked::Taken => {}
        }
    }
}

//! A limit for an operation as a whole, however many requests it makes and however often it begins again.

use super::Pipeline;
use pin_project_lite::pin_project;
use portcullis::{Clock, Effect, Error, Lifetime, Moment, VerbsEndpoint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Number of times that the limits are checked while one lasts. So an operation ends at most this part of the limit too
/// late.
pub(super) const LOOKS: u64 = 16;

/// The time since when an operation has made no progress.
#[derive(Clone, Copy)]
struct Standing {
    since: Moment,
    /// Number of steps that the operation had noted then.
    steps: u64,
}

pin_project! {
    /// An operation that ends with [`Error::TimedOut`] if it makes no progress for the limit of its session.
    pub(super) struct Limited<'p, E: VerbsEndpoint, C: Clock, F> {
        pipeline: &'p Pipeline<E, C>,
        what: &'static str,
        effect: Effect,
        standing: Option<Standing>,
        #[pin]
        operation: F,
    }
}

impl<'p, E: VerbsEndpoint, C: Clock, F> Limited<'p, E, C, F> {
    pub fn new(pipeline: &'p Pipeline<E, C>, (what, effect): (&'static str, Effect), operation: F) -> Self {
        Self { pipeline, what, effect, standing: None, operation }
    }
}

impl<E, C, T, X, F> Future for Limited<'_, E, C, F>
where
    E: VerbsEndpoint,
    C: Clock,
    X: From<Error>,
    F: Future<Output = Result<T, X>>,
{
    type Output = Result<T, X>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.operation.poll(context) {
            return Poll::Ready(done);
        }
        match this.pipeline.stands_too_long(this.standing) {
            None => Poll::Pending,
            Some(within) => {
                Poll::Ready(Err(Error::TimedOut { what: this.what, effect: *this.effect, within }.into()))
            }
        }
    }
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Returns the limit of the session, if the present task has made no progress for as long.
    #[inline]
    fn stands_too_long(&self, standing: &mut Option<Standing>) -> Option<Lifetime> {
        let core = self.core.borrow();
        let within = core.session.within()?;
        let steps = core.steps_of(core.current);
        match standing {
            Some(standing) if standing.steps == steps => {
                (core.now.since(standing.since) >= within).then_some(within)
            }
            _ => {
                *standing = Some(Standing { since: core.now, steps });
                None
            }
        }
    }
}

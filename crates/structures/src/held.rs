//! A permission that many operations share (Patronus §6.1).
//!
//! Such a permission is never extended. A new one replaces it in time. So each access that a client began under a
//! permission has ended, with or without success, soon after that permission's grant.

use crate::Pipeline;
use portcullis::{BarePermission, Clock, Moment, VerbsEndpoint};
use std::rc::Rc;

/// The permission of a handle on one part of a structure.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub permission: Option<Rc<BarePermission>>,
    /// Time from which a new permission is to be acquired.
    renew_at: Moment,
    /// Time from which no access begins under the permission.
    pub useless_at: Moment,
    /// Whether an operation of this pipeline is acquiring a new permission.
    pub acquiring: bool,
}

impl Held {
    /// Returns the permission, if it can still be used and need not be replaced yet.
    #[inline]
    pub fn fresh(&self, now: Moment) -> Option<Rc<BarePermission>> {
        let until = if self.acquiring { self.useless_at } else { self.renew_at };
        self.permission.as_ref().filter(|_| now < until).map(Rc::clone)
    }

    /// Whether there is a permission that no operation uses, and none is being acquired.
    pub fn is_idle(&self) -> bool {
        !self.acquiring && self.permission.as_ref().is_some_and(|it| Rc::strong_count(it) == 1)
    }

    /// Keeps a permission for further operations.
    pub fn keep(&mut self, permission: &Rc<BarePermission>) {
        let lease = permission.lease();
        let (deadline, lifetime) = (lease.deadline(), lease.lifetime());
        let before = |time: u64| Moment(deadline.0.saturating_sub(time));
        let (renew_at, useless_at) = (before(lifetime.0 / 2), before(lifetime.0 / 8));
        *self = Self { permission: Some(Rc::clone(permission)), renew_at, useless_at, acquiring: false };
    }
}

/// Guard that calls `act` when an operation is done with something, also if the operation is dropped midway. Then it
/// wakes the tasks that wait for that.
pub(crate) struct AtEnd<'p, E: VerbsEndpoint, C: Clock, F: FnMut()> {
    pipeline: &'p Pipeline<E, C>,
    act: F,
}

impl<'p, E: VerbsEndpoint, C: Clock, F: FnMut()> AtEnd<'p, E, C, F> {
    pub fn new(pipeline: &'p Pipeline<E, C>, act: F) -> Self {
        Self { pipeline, act }
    }
}

impl<E: VerbsEndpoint, C: Clock, F: FnMut()> Drop for AtEnd<'_, E, C, F> {
    fn drop(&mut self) {
        (self.act)();
        self.pipeline.wake_waiting();
    }
}

//! Faults that a test plants to see that a checker finds them.
//!
//! Without the feature `planted`, which nothing but the simulator's own test turns on, [`is`] is always false and
//! the code that asks is gone. With it, one fault at a time is on, for one thread.

/// A mistake that the real code does not make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A window is bound again under the key it had.
    KeyNotAdvanced,
    /// Memory is free before its window is known to be unbound.
    ReusedBeforeUnbind,
    /// Leases are never looked at.
    ExpiryNotScanned,
    /// Windows that linger stay bound for good.
    LingerForever,
    /// Windows go from tenant to tenant, and so a key opens in every tenant's domain.
    HandoverAcrossTenants,
    /// A permission's start is not compared: a late revoke ends its successor.
    StartNotChecked,
    /// A request that may have been executed is posted again.
    ExecutedReplayed,
    /// A permission that was revoked goes on while its lifetime word says so.
    WordTrustedOverUnbind,
    /// Memory goes to another tenant with the bytes of the last.
    ScrubSkipped,
    /// An exclusive permission is granted beside shared ones.
    ExclusiveBesideShared,
    /// A violation is charged to the tenant that came first.
    ViolationToWrongTenant,
    /// A client's queue pairs are put into another tenant's domain.
    QueuePairInWrongDomain,
    /// A header goes to another permission while its window is still bound.
    HeaderReusedWhileBound,
    /// The holder of one right gets all of them.
    RightsNotNarrowed,
    /// A window reaches a byte too far.
    RangeOneByteLong,
    /// The NIC does not compare the key's low byte.
    KeyNotCompared,
    /// A queue pair serves on after a refusal: what is flushed is executed.
    ServesInError,
    /// A request that waits is never let in.
    WaiterForgotten,
    /// Requests that a turn had no time to let in are not let in by the next.
    PutOffForgotten,
    /// A client's permissions are not ended when it leaves.
    DepartedKeepHolding,
    /// What a turn had no time to end of what a client held that has left is not ended by the next.
    RestOfDepartedForgotten,
    /// An extension is believed although its deadline had passed when it was confirmed.
    LateExtensionBelieved,
    /// A reference is taken for whatever object lies at its address.
    BirthNotCompared,
    /// An access that came too late is charged to its tenant, as a guess is.
    LatenessChargedToTenant,
    /// After a request without an answer others go on over a spare, while it may still arrive.
    DoubtNotAwaited,
    /// A session that waits judges what comes in by a time that it read up to 64 looks ago.
    WaitJudgesByOldTime,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::KeyNotAdvanced,
        Self::ReusedBeforeUnbind,
        Self::ExpiryNotScanned,
        Self::LingerForever,
        Self::HandoverAcrossTenants,
        Self::StartNotChecked,
        Self::ExecutedReplayed,
        Self::WordTrustedOverUnbind,
        Self::ScrubSkipped,
        Self::ExclusiveBesideShared,
        Self::ViolationToWrongTenant,
        Self::QueuePairInWrongDomain,
        Self::HeaderReusedWhileBound,
        Self::RightsNotNarrowed,
        Self::RangeOneByteLong,
        Self::KeyNotCompared,
        Self::ServesInError,
        Self::WaiterForgotten,
        Self::PutOffForgotten,
        Self::DepartedKeepHolding,
        Self::RestOfDepartedForgotten,
        Self::LateExtensionBelieved,
        Self::BirthNotCompared,
        Self::LatenessChargedToTenant,
        Self::DoubtNotAwaited,
        Self::WaitJudgesByOldTime,
    ];
}

#[cfg(feature = "planted")]
mod switch {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault on this thread, or takes it out.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// What plants the same fault on another thread.
    pub fn for_another_thread() -> impl FnOnce() + Send + 'static {
        let planted = PLANTED.get();
        move || PLANTED.set(planted)
    }

    /// Whether this fault is planted on this thread.
    #[must_use]
    pub fn is(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    use super::Fault;

    /// What plants the same fault on another thread: nothing.
    pub fn for_another_thread() -> impl FnOnce() + Send + 'static {
        || ()
    }

    /// Whether this fault is planted: never.
    #[must_use]
    #[inline]
    pub const fn is(_: Fault) -> bool {
        false
    }
}

pub use switch::*;

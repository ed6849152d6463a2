//! Single accesses, told apart by what they show: one that must be refused breaks a guarantee by going through; one
//! that must work and does not shows nothing about guarantees.

use super::setback::Setback;
use crate::bench::{Bench, End, Held, HeldObject, Holder, Pair};
use crate::check::Stop;
use portcullis_nic::{Access, Nic, Operation, QpState, Status};

/// How a NIC refuses an access. A queue pair without the right may call it malformed instead.
const REFUSALS: [Status; 3] =
    [Status::RemoteAccessError, Status::RemoteInvalidRequestError, Status::RemoteOperationError];

/// One key after the other on one pair of queue pairs: each refusal costs that a recovery, which is cheaper than a new
/// pair on every device.
pub(super) struct Subject {
    pub(super) pair: Pair,
    holder: Holder,
    held: Option<Held>,
}

impl Subject {
    pub(super) fn new<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Result<Self, Setback> {
        if let Holder::Window(kind) = holder {
            bench.require_window(kind)?;
        }
        Ok(Self { pair: bench.pair()?, holder, held: None })
    }

    /// A new key over the range under test, through queue pairs in service. The one before is gone.
    pub(super) fn key<N: Nic>(&mut self, bench: &mut Bench<N>, access: Access) -> Result<Held, Setback> {
        if let Some(before) = self.held.take() {
            // What becomes of a type-2 bind when its queue pair is reset is not promised.
            match before.object {
                HeldObject::Window(window) => bench.nic.deallocate_window(window)?,
                HeldObject::Region(region) => bench.nic.deregister_region(region)?,
            }
            bench.recover(self.pair)?;
        }
        let held = bench.key(self.pair, self.holder, access)?;
        self.held = Some(held);
        Ok(held)
    }
}

/// An access that must be refused, and must move no byte. The queue pairs are in error afterwards.
pub(super) fn refused<N: Nic>(
    bench: &mut Bench<N>,
    pair: Pair,
    operation: Operation,
    what: &str,
) -> Result<(), Setback> {
    let before = bench.bytes();
    let status = bench.execute(pair.client, operation)?;
    if status == Status::Success {
        return Err(Setback::Broken(format!("{what} went through")));
    }
    if let Err(Stop::Broken(moved)) = bench.expect_bytes(&before) {
        return Err(Setback::Broken(format!("{what} was refused and moved bytes all the same: {moved}")));
    }
    if REFUSALS.contains(&status) {
        return Ok(());
    }
    Err(Setback::Failed(format!("{what} was to be refused, and ended with {status}")))
}

/// An access that must work, so that a refusal beside it means something.
pub(super) fn works<N: Nic>(
    bench: &mut Bench<N>,
    pair: Pair,
    operation: Operation,
    what: &str,
) -> Result<(), Setback> {
    match bench.execute(pair.client, operation)? {
        Status::Success => Ok(()),
        status => Err(Setback::Failed(format!("{what} is allowed, and ended with {status}"))),
    }
}

/// After a refusal elsewhere: where that broke this queue pair too, what it does next shows nothing.
pub(super) fn undisturbed<N: Nic>(bench: &Bench<N>, end: End) -> Result<(), Setback> {
    match bench.nic.qp_state(end.qp)? {
        QpState::ReadyToSend => Ok(()),
        state => Err(Setback::Failed(format!("a violation on another queue pair took this one to {state}"))),
    }
}

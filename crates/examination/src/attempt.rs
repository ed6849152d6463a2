//! Single accesses, and what their outcomes prove. An access that must be refused breaks a guarantee by succeeding. If
//! an access that must work fails, that proves nothing about guarantees.

use super::setback::Setback;
use crate::bench::{Bench, End, Held, HeldObject, Holder, Pair};
use crate::check::Stop;
use portcullis_nic::{Access, Nic, Operation, QpState, Status};

/// How a NIC refuses an access. A queue pair without the right may report a malformed request instead.
const REFUSALS: [Status; 3] =
    [Status::RemoteAccessError, Status::RemoteInvalidRequestError, Status::RemoteOperationError];

/// Uses one key after another on one pair of queue pairs. Each refusal costs a recovery of the pair, which is cheaper
/// than a new pair on every device.
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

    /// Makes a new key over the range under test, on a pair in service, and destroys the previous key.
    pub(super) fn key<N: Nic>(&mut self, bench: &mut Bench<N>, access: Access) -> Result<Held, Setback> {
        if let Some(before) = self.held.take() {
            // No promise covers a type-2 bind when its queue pair is reset.
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

/// Executes an access that must be refused and must not move a byte. The queue pairs are in ERR afterwards.
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

/// Executes an access that must work, so that a refusal beside it has a meaning.
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

/// Checks that a refusal on another pair left this queue pair in service. A queue pair that it broke too proves nothing
/// by its next accesses.
pub(super) fn undisturbed<N: Nic>(bench: &Bench<N>, end: End) -> Result<(), Setback> {
    match bench.nic.qp_state(end.qp)? {
        QpState::ReadyToSend => Ok(()),
        state => Err(Setback::Failed(format!("a violation on another queue pair took this one to {state}"))),
    }
}

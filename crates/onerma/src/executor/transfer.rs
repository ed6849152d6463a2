//! A transfer: its parts in progress, its parts to repeat, and its outcome so far.

use crate::OPERATION_MAX;
use crate::initiator::{Action, Command, Completion, Destination, ServiceClass};
use crate::keys::OperationType;
use crate::status::Status;
use std::net::SocketAddr;
use std::time::Duration;

/// A read or a write of any length, or one atomic or rekey.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The action to perform. Reads and writes may have any length but 0.
    pub action: Action,
    /// The destination.
    pub to: Destination,
    /// The address of the first byte, from the start of the region.
    pub address: u64,
    /// The class of service.
    pub class: ServiceClass,
    /// Whether a part of a write may be written again when its answer was lost. That is safe only if no other client
    /// writes these bytes meanwhile: otherwise its bytes could be overwritten. Reads, and operations that have
    /// certainly not happened, are repeated in any case.
    pub may_repeat: bool,
}

/// Identifier of a transfer in progress.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TransferId(pub u64);

/// The end of a transfer. None of its operations is in progress any more.
#[derive(Clone, Debug)]
pub struct TransferEnd {
    /// The transfer that has ended.
    pub id: TransferId,
    /// `OK` if all of it was performed, otherwise the status of the first part that failed.
    pub status: Status,
    /// Whether a change that has not succeeded, or a part of it, may have happened.
    pub is_uncertain: bool,
    /// The former word, if an atomic has succeeded.
    pub before: Option<u64>,
    /// Number of operations that it took, including repeated ones.
    pub operations: u64,
}

/// The bytes of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub offset: usize,
    pub length: usize,
    /// Number of operations on these bytes that got no answer.
    pub lost: u32,
}

#[derive(Debug)]
pub(super) struct UnderWay {
    transfer: Transfer,
    /// Number of bytes that have been begun once, from the first on.
    begun: usize,
    /// Parts to be begun again.
    repeats: Vec<Part>,
    under_way: u32,
    operations: u64,
    /// Time at which the transfer's time is over, unless one of its operations succeeds before.
    until: Duration,
    /// Reason for which the transfer fails. No further operation of it begins.
    failure: Option<Status>,
    /// Status of the latest operation that must be repeated.
    latest: Option<Status>,
    /// Whether the transfer's time is over: no further operation of it begins.
    is_over: bool,
    /// Whether a part of the transfer has, or may have, happened.
    has_effect: bool,
    before: Option<u64>,
}

impl Transfer {
    pub(super) fn is_empty(&self) -> bool {
        self.action.length() == 0
    }
}

impl UnderWay {
    pub fn new(transfer: Transfer, until: Duration) -> Self {
        Self {
            transfer,
            begun: 0,
            repeats: Vec::new(),
            under_way: 0,
            operations: 0,
            until,
            failure: None,
            latest: None,
            is_over: false,
            has_effect: false,
            before: None,
        }
    }

    /// Returns the destination and direction of the transfer.
    pub fn flow(&self) -> (SocketAddr, OperationType) {
        (self.transfer.to.address, self.transfer.action.operation())
    }

    pub fn class(&self) -> ServiceClass {
        self.transfer.class
    }

    /// Whether there is a part to begin.
    pub fn has_more(&self) -> bool {
        self.failure.is_none() && (self.begun < self.transfer.action.length() || !self.repeats.is_empty())
    }

    pub fn is_done(&self) -> bool {
        self.under_way == 0 && !self.has_more()
    }

    /// Begins a part.
    pub fn next_command(&mut self) -> (Part, Command) {
        assert!(self.has_more(), "the caller has checked that there is a part");
        let part = self.repeats.pop().unwrap_or_else(|| {
            let left = self.transfer.action.length() - self.begun;
            Part { offset: self.begun, length: left.min(OPERATION_MAX as usize), lost: 0 }
        });
        self.begun = self.begun.max(part.offset + part.length);
        self.under_way += 1;
        self.operations += 1;
        let Transfer { action, to, address, class, .. } = &self.transfer;
        let action = match action {
            Action::Read(_) => Action::Read(part.length),
            Action::Write(bytes) => Action::Write(bytes[part.offset..][..part.length].to_vec()),
            whole @ (Action::Atomic(_) | Action::Rekey(_)) => whole.clone(),
        };
        // The node refuses an address beyond all regions, like any address outside a region.
        let address = address.saturating_add(part.offset as u64);
        (part, Command { action, to: to.clone(), address, class: *class })
    }

    /// Time at which the transfer's time is over.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// Extends the transfer's time by time that does not count.
    pub fn excuse(&mut self, time: Duration) {
        self.until += time;
    }

    /// Extends the transfer's time after one of its operations has succeeded.
    pub fn succeeded(&mut self, until: Duration) {
        self.until = self.until.max(until);
    }

    /// Handles the end of a part.
    pub fn take(&mut self, part: Part, completion: Completion) {
        self.under_way -= 1;
        self.has_effect |= completion.status == Status::Ok || completion.is_uncertain;
        if completion.status == Status::Ok {
            self.before = completion.before;
        } else if self.may_repeat(&completion) && !self.is_over {
            self.latest = Some(completion.status);
            let lost = part.lost + u32::from(completion.status == Status::Timeout);
            self.repeats.push(Part { lost, ..part });
        } else {
            self.failure.get_or_insert(completion.status);
        }
    }

    /// Whether an operation that has failed may be begun again without harm.
    fn may_repeat(&self, completion: &Completion) -> bool {
        let is_write = matches!(self.transfer.action, Action::Write(_));
        match completion.status {
            Status::Ok | Status::RemoteAuthenticationFailure => false,
            // The operation was not performed.
            Status::Nack | Status::DispatchTimeout => true,
            Status::Timeout => !completion.is_uncertain || is_write && self.transfer.may_repeat,
        }
    }

    /// Handles the end of the transfer's time: the transfer begins no further operations.
    pub fn give_up(&mut self) {
        self.is_over = true;
        if self.has_more() {
            // A transfer that never had a turn has waited on this host.
            self.failure = Some(self.latest.unwrap_or(Status::DispatchTimeout));
        }
    }

    pub fn into_end(self, id: TransferId) -> TransferEnd {
        let is_change = self.transfer.action.operation().is_change();
        let status = self.failure.unwrap_or(Status::Ok);
        let is_uncertain = status != Status::Ok && is_change && self.has_effect;
        let (before, operations) = (self.before, self.operations);
        TransferEnd { id, status, is_uncertain, before, operations }
    }
}

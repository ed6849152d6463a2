//! A transfer: what of it is under way, what is to be repeated, and how it has gone so far.

use crate::OPERATION_MAX;
use crate::initiator::{Action, Command, Completion, Destination, ServiceClass};
use crate::keys::OperationType;
use crate::status::Status;
use std::net::SocketAddr;
use std::time::Duration;

/// A read or a write of any length, or one atomic or rekey.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// What is to be done. Buffers may have any length but 0.
    pub action: Action,
    /// Where.
    pub to: Destination,
    /// The first byte, from the start of the region.
    pub address: u64,
    /// Its class.
    pub class: ServiceClass,
    /// Whether a part of a write may be written again when its answer was lost. Only where nobody else writes these bytes
    /// meanwhile: otherwise their bytes could be overwritten. Reads, and whatever surely has not happened, are repeated in
    /// any case.
    pub may_repeat: bool,
}

/// A transfer that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TransferId(pub u64);

/// The end of a transfer. None of its operations is under way any more.
#[derive(Clone, Debug)]
pub struct TransferEnd {
    /// Which transfer.
    pub id: TransferId,
    /// `OK` if all of it was done, otherwise why the first part that failed did.
    pub status: Status,
    /// Whether a change that has not succeeded may have happened, or a part of it.
    pub is_uncertain: bool,
    /// The word that was there before an atomic that has succeeded.
    pub before: Option<u64>,
    /// Whether it was a read.
    pub is_read: bool,
    /// The buffer of a read or a write. A read that has not succeeded leaves no promise about its bytes.
    pub buffer: Vec<u8>,
    /// Operations that it took, those that were repeated included.
    pub operations: u64,
}

/// The bytes of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    offset: usize,
    pub length: usize,
    /// How often an operation with these bytes has got no answer.
    pub lost: u32,
}

#[derive(Debug)]
pub(super) struct UnderWay {
    transfer: Transfer,
    /// Bytes that have been begun once, from the first on.
    begun: usize,
    /// Parts to be begun again.
    repeats: Vec<Part>,
    under_way: u32,
    operations: u64,
    /// When its time is over, unless one of its operations succeeds before.
    until: Duration,
    /// Why it fails. Nothing more of it begins.
    failure: Option<Status>,
    /// How the latest operation that is to be repeated ended.
    latest: Option<Status>,
    /// Whether its time is over: nothing of it begins any more.
    is_over: bool,
    /// Whether a part of it has, or may have, happened.
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

    /// Which destination and direction it is of.
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
        assert!(self.has_more(), "whoever begins a part has asked whether there is one");
        let part = self.repeats.pop().unwrap_or_else(|| {
            let left = self.transfer.action.length() - self.begun;
            Part { offset: self.begun, length: left.min(OPERATION_MAX as usize), lost: 0 }
        });
        self.begun = self.begun.max(part.offset + part.length);
        self.under_way += 1;
        self.operations += 1;
        let Transfer { action, to, address, class, .. } = &self.transfer;
        let action = match action {
            Action::Read(_) => Action::Read(vec![0; part.length]),
            Action::Write(bytes) => Action::Write(bytes[part.offset..][..part.length].to_vec()),
            whole @ (Action::Atomic(_) | Action::Rekey(_)) => whole.clone(),
        };
        // An address beyond all regions is refused by the node, as others that do not exist.
        let address = address.saturating_add(part.offset as u64);
        (part, Command { action, to: to.clone(), address, class: *class })
    }

    /// When its time is over.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// Gives the transfer time back that does not count.
    pub fn excuse(&mut self, time: Duration) {
        self.until += time;
    }

    /// One of its operations has succeeded, so its time is over later.
    pub fn succeeded(&mut self, until: Duration) {
        self.until = self.until.max(until);
    }

    /// A part has ended.
    pub fn take(&mut self, part: Part, completion: Completion) {
        self.under_way -= 1;
        self.has_effect |= completion.status == Status::Ok || completion.is_uncertain;
        if completion.status == Status::Ok {
            self.before = completion.before;
            if let Action::Read(buffer) = &mut self.transfer.action {
                buffer[part.offset..][..part.length].copy_from_slice(&completion.buffer);
            }
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
            // Nothing was done.
            Status::Nack | Status::DispatchTimeout => true,
            Status::Timeout => !completion.is_uncertain || is_write && self.transfer.may_repeat,
        }
    }

    /// Its time is over: what it has not begun it does not begin.
    pub fn give_up(&mut self) {
        self.is_over = true;
        if self.has_more() {
            // What never had its turn has waited on this host.
            self.failure = Some(self.latest.unwrap_or(Status::DispatchTimeout));
        }
    }

    pub fn into_end(self, id: TransferId) -> TransferEnd {
        let is_change = self.transfer.action.operation().is_change();
        let is_read = matches!(self.transfer.action, Action::Read(_));
        let buffer = match self.transfer.action {
            Action::Read(buffer) | Action::Write(buffer) => buffer,
            Action::Atomic(_) | Action::Rekey(_) => Vec::new(),
        };
        let status = self.failure.unwrap_or(Status::Ok);
        let is_uncertain = status != Status::Ok && is_change && self.has_effect;
        let (before, operations) = (self.before, self.operations);
        TransferEnd { id, status, is_uncertain, before, is_read, buffer, operations }
    }
}

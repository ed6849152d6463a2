//! Conversion of a client's requests into transfers, and of a transfer's end into the status of a completion.

use crate::atomic::Atomic;
use crate::executor::{Transfer, TransferEnd, TransferId};
use crate::initiator::{Action, Destination, ReadData, ServiceClass};
use crate::keys::OperationType;
use crate::status::Status as Ended;
use portcullis_memory::Memory;
use portcullis_nic::{LocalSpan, OneShotRequest, OneShotVerb, Status};
use portcullis_planted::planted;

/// Size in bytes up to which transfers count as small. Small transfers are served before large ones.
const LATENCY_BYTES_MAX: u32 = 4096;

impl From<OneShotVerb> for OperationType {
    fn from(verb: OneShotVerb) -> Self {
        match verb {
            OneShotVerb::Read => Self::Read,
            OneShotVerb::Write { .. } => Self::Write,
            OneShotVerb::CompareAndSwap { .. } | OneShotVerb::FetchAndAdd { .. } => Self::Atomic,
        }
    }
}

impl Transfer {
    /// Creates the transfer of a request. Reads the bytes of a write from the arena.
    #[must_use]
    pub fn of_request<M: Memory>(request: &OneShotRequest, to: Destination, arena: &M) -> Self {
        let OneShotRequest { address, local, verb, .. } = *request;
        let length = local.length as usize;
        let (action, may_repeat) = match verb {
            OneShotVerb::Read => (Action::Read(length), true),
            OneShotVerb::Write { may_repeat } => {
                let mut bytes = vec![0; length];
                arena.read(local.address, &mut bytes);
                (Action::Write(bytes), may_repeat)
            }
            OneShotVerb::CompareAndSwap { compare, swap } => {
                (Action::Atomic(Atomic::CompareAndSwap { expected: compare, new: swap }), false)
            }
            OneShotVerb::FetchAndAdd { add } => (Action::Atomic(Atomic::FetchAndAdd { add }), false),
        };
        let class =
            if local.length <= LATENCY_BYTES_MAX { ServiceClass::Latency } else { ServiceClass::Bulk };
        Self { action, to, address: address.0, class, may_repeat }
    }
}

impl TransferEnd {
    /// Returns the status of the request's completion.
    #[must_use]
    pub fn verbs_status(&self) -> Status {
        match self.status {
            Ended::Ok => Status::Success,
            // A part of the request, or an earlier try, may have happened before its permission ended.
            Ended::RemoteAuthenticationFailure if self.is_uncertain && !planted!(RefusedAfterEffect) => {
                Status::RetryExceededError
            }
            Ended::RemoteAuthenticationFailure => Status::RemoteAccessError,
            Ended::Nack | Ended::Timeout | Ended::DispatchTimeout if self.is_uncertain => {
                Status::RetryExceededError
            }
            // A read changes nothing, and an operation that has certainly not happened can be tried again.
            Ended::Nack | Ended::Timeout | Ended::DispatchTimeout => Status::RnrRetryExceededError,
        }
    }

    /// Stores the result of a successful transfer in the arena. The data of a read is there already
    /// ([`ReadData::store`]).
    pub fn store<M: Memory>(&self, local: LocalSpan, arena: &M) {
        if let Some(before) = self.before {
            arena.store(local.address, before);
        }
    }
}

impl ReadData<'_, TransferId> {
    /// Stores the data in the arena.
    pub fn store<M: Memory>(&self, local: LocalSpan, arena: &M) {
        arena.write(local.address + self.offset as u64, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first try of a write has happened and its answer was lost. The second try is refused because the permission
    /// has ended.
    #[test]
    fn what_may_have_happened_is_not_said_to_have_been_refused() {
        let end = |is_uncertain| end(Ended::RemoteAuthenticationFailure, is_uncertain);
        assert_eq!(end(true).verbs_status(), Status::RetryExceededError);
        assert_eq!(end(false).verbs_status(), Status::RemoteAccessError);
    }

    #[test]
    fn what_has_surely_not_happened_is_not_said_to_be_doubtful() {
        for status in [Ended::Nack, Ended::Timeout, Ended::DispatchTimeout] {
            assert_eq!(end(status, true).verbs_status(), Status::RetryExceededError, "{status}");
            assert_eq!(end(status, false).verbs_status(), Status::RnrRetryExceededError, "{status}");
        }
    }

    fn end(status: Ended, is_uncertain: bool) -> TransferEnd {
        TransferEnd { id: TransferId(0), status, is_uncertain, before: None, operations: 2 }
    }
}

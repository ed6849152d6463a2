//! The reports of a NIC about requests that have ended.

use crate::QpId;
use portcullis_protocol::Rkey;
use std::fmt;

/// The outcome of a request, with the names of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// The request succeeded.
    Success = 0,
    /// A local buffer is too short for the bytes that arrived.
    LocalLengthError = 1,
    /// The work request itself makes no sense.
    LocalQpOperationError = 2,
    /// A local buffer's key or range is wrong.
    LocalProtectionError = 4,
    /// The request was flushed without being executed: the queue pair went to ERR before it reached this request.
    FlushError = 5,
    /// A bind failed: the window, the region or the range is wrong.
    WindowBindError = 6,
    /// The peer found the request malformed.
    RemoteInvalidRequestError = 9,
    /// The peer's NIC refused the access: key, range, right, domain or queue pair.
    RemoteAccessError = 10,
    /// The peer's NIC could not carry the request out.
    RemoteOperationError = 11,
    /// The peer's NIC did not answer.
    RetryExceededError = 12,
    /// The peer had no receive posted for too long.
    RnrRetryExceededError = 13,
}

impl Status {
    /// The status with this number, for NICs that report statuses as numbers.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Success,
            1 => Self::LocalLengthError,
            2 => Self::LocalQpOperationError,
            4 => Self::LocalProtectionError,
            5 => Self::FlushError,
            6 => Self::WindowBindError,
            9 => Self::RemoteInvalidRequestError,
            10 => Self::RemoteAccessError,
            11 => Self::RemoteOperationError,
            12 => Self::RetryExceededError,
            13 => Self::RnrRetryExceededError,
            _ => return None,
        })
    }

    /// Whether a request with this status took its queue pair to ERR: the requests behind it are flushed.
    #[must_use]
    pub fn breaks(self) -> bool {
        !matches!(self, Self::Success | Self::FlushError)
    }

    /// The name in verbs, without its prefix.
    #[must_use]
    pub fn verbs_name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::LocalLengthError => "LOC_LEN_ERR",
            Self::LocalQpOperationError => "LOC_QP_OP_ERR",
            Self::LocalProtectionError => "LOC_PROT_ERR",
            Self::FlushError => "WR_FLUSH_ERR",
            Self::WindowBindError => "MW_BIND_ERR",
            Self::RemoteInvalidRequestError => "REM_INV_REQ_ERR",
            Self::RemoteAccessError => "REM_ACCESS_ERR",
            Self::RemoteOperationError => "REM_OP_ERR",
            Self::RetryExceededError => "RETRY_EXC_ERR",
            Self::RnrRetryExceededError => "RNR_RETRY_EXC_ERR",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verbs_name())
    }
}

/// The kind of request that ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompletionKind {
    /// A request of the send queue.
    Send,
    /// A receive: `length` bytes arrived. If the peer requested it, the window key `invalidated` was invalidated.
    Receive {
        /// Bytes that arrived.
        length: u32,
        /// The window key that the message invalidated.
        invalidated: Option<Rkey>,
    },
}

/// One entry of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's number.
    pub request: u64,
    /// The queue pair that the request was posted to.
    pub queue_pair: QpId,
    /// The outcome of the request.
    pub status: Status,
    /// The kind of queue that the request was in.
    pub kind: CompletionKind,
}

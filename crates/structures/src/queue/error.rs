//! The errors of a queue.

use super::ENTRY_BYTES_MAX;
use portcullis::{Error, Refusal};
use portcullis_errors::{Coded, ErrorCode};

/// The reason why an operation on a queue did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The session failed, or the node refused. A push may or may not have happened.
    #[error(transparent)]
    Session(#[from] Error),
    /// The object is something else, or a queue of another version.
    #[error("the object is not a queue of this version")]
    NotAQueue,
    /// An option of a new queue is out of its range.
    #[error("{what} of a queue is {least} to {most}, not {value}")]
    Option {
        /// The name of the option.
        what: &'static str,
        /// The value that was requested.
        value: u64,
        /// The least allowed value.
        least: u64,
        /// The greatest allowed value.
        most: u64,
    },
    /// A queue cannot be made without being kept.
    #[error(
        "a queue is always kept: no client holds a permission on it in a pause that is longer than its \
         lease, and without keep its memory and entries would be freed in the first one. Keep it until the \
         tenant's last client goes (the default), for a time after that, or for ever, and destroy it when it \
         is not needed any more"
    )]
    NotKept,
    /// The value of an option is not a multiple of its step. This is the caller's mistake: nothing was sent.
    #[error("the queue's {what} is {value}: give a multiple of {step}")]
    Step {
        /// The name of the option.
        what: &'static str,
        /// The value that was requested.
        value: u64,
        /// The step of which the value must be a multiple.
        step: u64,
    },
    /// The entry is too long for this queue. This is the caller's mistake: nothing was sent.
    #[error(
        "an entry of this queue has at most {most} bytes, not {bytes}: make a queue of larger or more cells (any entry has at most {ENTRY_BYTES_MAX})"
    )]
    EntryTooLong {
        /// Bytes of the entry.
        bytes: u64,
        /// Largest number of bytes that fits into one of this queue's segments.
        most: u64,
    },
    /// No client may push any more and, if this is the error of a pop, all entries were taken.
    #[error("the queue is closed")]
    Closed,
    /// The queue has as many segments as it can have.
    #[error("the queue is full: wait for consumers, or make one with a greater segments_max")]
    Full,
    /// The claim's lease was over, and the entry was delivered to another consumer, or is acknowledged.
    #[error("the claim has ended: its lease was over, and the entry was delivered again")]
    ClaimEnded,
    /// Entries of this queue are popped, not claimed. This is the caller's mistake: nothing was sent.
    #[error(
        "entries of this queue are popped: make a queue with the option `claims` to claim and acknowledge them"
    )]
    NoClaims,
    /// Entries of this queue are claimed, not popped. This is the caller's mistake: nothing was sent.
    #[error("entries of this queue are claimed and acknowledged, and not popped")]
    OnlyClaims,
    /// The queue's memory is invalid: another program of the tenant has written over it.
    #[error("the queue's memory is damaged at segment {segment}, slot {slot}")]
    Damaged {
        /// The segment.
        segment: u64,
        /// The slot in the segment.
        slot: u64,
    },
}

impl Coded for QueueError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Session(error) => error.code(),
            Self::NotAQueue => ErrorCode::NotAQueue,
            Self::Option { .. } | Self::Step { .. } | Self::NotKept => ErrorCode::QueueOption,
            Self::EntryTooLong { .. } => ErrorCode::EntryTooLong,
            Self::Closed => ErrorCode::QueueClosed,
            Self::Full => ErrorCode::NoRoomInQueue,
            Self::ClaimEnded => ErrorCode::ClaimEnded,
            Self::NoClaims | Self::OnlyClaims => ErrorCode::QueueDelivery,
            Self::Damaged { .. } => ErrorCode::QueueDamaged,
        }
    }
}

impl QueueError {
    /// The error of a segment that is consumed, and whose memory the node has again.
    pub(super) const SEGMENT_GONE: Self = Self::Session(Error::Refused(Refusal::Gone));

    /// Whether the access was refused because its permission has ended. Such an access had no effect.
    pub(super) fn wants_permission(&self) -> bool {
        matches!(self, Self::Session(Error::Expired | Error::Revoked))
    }

    /// Whether an object is gone: a segment that is consumed, or one that was never kept.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Session(Error::Refused(Refusal::Gone)))
    }

    /// Whether other clients hold what was requested.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Session(Error::Refused(Refusal::Conflict)))
    }
}

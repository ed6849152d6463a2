//! The errors of verbs calls that are not work requests.

use crate::QpState;
use portcullis_errors::{Coded, ErrorCode};

/// A verbs call was refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The caller's fault: no object has this id.
    #[error("no such {what}")]
    NoSuch {
        /// The kind of object.
        what: &'static str,
    },
    /// The caller's fault: other objects still use it. Windows are destroyed first, then queue pairs, regions, domains.
    #[error("the {what} is still in use by a {by}: tear that down first")]
    Busy {
        /// The object that was to be destroyed.
        what: &'static str,
        /// The kind of object that uses it.
        by: &'static str,
    },
    /// The caller's fault: the arguments contradict each other or the object.
    #[error("{0}")]
    Invalid(&'static str),
    /// The caller's fault: the queue pair is in the wrong state for this call.
    #[error("a queue pair in state {from} cannot do that")]
    State {
        /// The state of the queue pair.
        from: QpState,
    },
    /// The device cannot make more objects of this kind.
    #[error("the device's limit of {limit} {what} is reached")]
    Exhausted {
        /// The kind of object that ran out.
        what: &'static str,
        /// The number of such objects that exist.
        limit: u64,
    },
    /// The device does not support this call at all.
    #[error("this device has no {0}")]
    Unsupported(&'static str),
    /// The machine refused (memory, descriptors, permissions).
    #[error("the machine refused: {0}")]
    Machine(String),
}

impl Coded for VerbsError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoSuch { .. } => ErrorCode::NoSuchHandle,
            Self::Busy { .. } => ErrorCode::Busy,
            Self::Invalid(_) => ErrorCode::InvalidArgument,
            Self::State { .. } => ErrorCode::WrongState,
            Self::Exhausted { .. } => ErrorCode::Exhausted,
            Self::Unsupported(_) => ErrorCode::Unsupported,
            Self::Machine(_) => ErrorCode::DeviceFailed,
        }
    }
}

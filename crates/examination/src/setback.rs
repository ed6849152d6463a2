//! Why a guarantee was not found to hold: the device does not keep it, or it could not be tried.

use crate::check::Stop;
use portcullis_nic::VerbsError;

/// The reason why a probe did not find that a guarantee holds.
#[derive(Debug)]
pub(super) enum Setback {
    /// The device was seen not to keep the guarantee.
    Broken(String),
    /// The device has nothing that the guarantee is about, or does not survive the trial.
    Absent(String),
    /// Something else went wrong during the trial.
    Failed(String),
}

impl Setback {
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}

/// The bench calls every failure «broken». Only an access that must be refused, and was not, breaks a guarantee; any
/// other failure means that the guarantee could not be tried.
impl From<Stop> for Setback {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Broken(detail) => Self::Failed(detail),
            Stop::Skipped(reason) => Self::Absent(reason.to_owned()),
        }
    }
}

impl From<VerbsError> for Setback {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::Unsupported(_) => Self::Absent(error.to_string()),
            other => Self::Failed(format!("a call that must work was refused: {other}")),
        }
    }
}

//! Why a guarantee was not found to hold: because it does not, or because it could not be tried.

use crate::check::Stop;
use portcullis_nic::VerbsError;

/// What kept a probe from saying that a guarantee holds.
#[derive(Debug)]
pub(super) enum Setback {
    /// The device was seen not to keep it.
    Broken(String),
    /// The device has nothing that it is about, or does not survive the trial.
    Absent(String),
    /// Something else went wrong on the way there.
    Failed(String),
}

impl Setback {
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}

/// The bench says «broken» of whatever did not work. Only an access that must be refused, and was not, breaks a
/// guarantee; the rest kept it from being tried.
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

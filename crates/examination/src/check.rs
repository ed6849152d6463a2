//! The outcome of a check of a device.

use portcullis_nic::VerbsError;

/// The reason why a check did not reach its end.
#[derive(Debug)]
pub enum Stop {
    /// The device breaks the promise.
    Broken(String),
    /// The device reports that it lacks the feature that the promise is about.
    Skipped(&'static str),
}

/// The outcome of a check.
pub type Check = Result<(), Stop>;

impl From<VerbsError> for Stop {
    fn from(error: VerbsError) -> Self {
        Self::Broken(format!("a call that must work was refused: {error}"))
    }
}

/// Ends a check as broken unless the condition holds. The other arguments describe what was seen instead.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($said:tt)+) => {
        if !$condition {
            return Err($crate::check::Stop::Broken(format!($($said)+)));
        }
    };
}

//! The outcome of a command that was carried out, and its exit code.

use std::process::ExitCode;

/// The outcome of a command that has found what it works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandOutcome {
    AsAsked,
    /// Something was missing, or was left out. A message has reported it.
    NotAll,
}

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> Self {
        match outcome {
            CommandOutcome::AsAsked => Self::SUCCESS,
            CommandOutcome::NotAll => Self::FAILURE,
        }
    }
}

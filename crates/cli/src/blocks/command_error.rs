//! Reasons why a command of `portcullis blocks` failed, and whether the caller is at fault.

use portcullis::IdentityError;
use portcullis_blocks::spread_store::SpreadError;
use std::io;
use std::path::Path;

/// A reason why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum BlocksCommandError {
    #[error(transparent)]
    Spread(#[from] SpreadError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The caller's mistake.
    #[error("{0}")]
    Call(String),
    /// The content of a file makes no sense.
    #[error("{place}: {why}")]
    Input { place: String, why: String },
    #[error("{what}: {error}")]
    File { what: String, error: io::Error },
}

impl BlocksCommandError {
    /// An error of a file or folder.
    pub fn of_file(verb: &str, path: &Path) -> impl Fn(io::Error) -> Self {
        let what = format!("cannot {verb} {}", path.display());
        move |error| Self::File { what: what.clone(), error }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Call(_) | Self::Input { .. } | Self::Identity(_) => 2,
            Self::Spread(SpreadError::NoNodes | SpreadError::Twice(_) | SpreadError::SmallArena { .. }) => 2,
            Self::Spread(SpreadError::Find(error)) if error.is_callers() => 2,
            Self::Spread(_) | Self::File { .. } => 3,
        }
    }
}

//! The accesses that a permission allows, and the other permissions that may exist beside it.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::str::FromStr;

bitflags::bitflags! {
    /// The accesses that the holder of a permission may make to its bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Rights: u8 {
        /// READ.
        const READ = 1;
        /// WRITE.
        const WRITE = 2;
        /// COMPARE_AND_SWAP and FETCH_AND_ADD.
        const ATOMIC = 4;
    }
}

impl Rights {
    /// The letters `r`, `w` and `a` of the rights in the set, as the audit log and the error texts spell them.
    #[must_use]
    pub fn letters(self) -> String {
        [(Self::READ, 'r'), (Self::WRITE, 'w'), (Self::ATOMIC, 'a')]
            .into_iter()
            .filter(|(right, _)| self.contains(*right))
            .map(|(_, letter)| letter)
            .collect()
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.letters())
    }
}

/// The text is not a list of rights.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} are no rights: write r, w and a for what is held, each once, for example rw")]
pub struct UnknownRights(String);

impl Coded for UnknownRights {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownRights
    }
}

impl FromStr for Rights {
    type Err = UnknownRights;

    fn from_str(text: &str) -> Result<Self, UnknownRights> {
        let mut rights = Self::empty();
        for letter in text.chars() {
            let right = match letter {
                'r' => Self::READ,
                'w' => Self::WRITE,
                'a' => Self::ATOMIC,
                _ => return Err(UnknownRights(text.to_owned())),
            };
            if rights.contains(right) {
                return Err(UnknownRights(text.to_owned()));
            }
            rights |= right;
        }
        Ok(rights)
    }
}

/// Whether others may hold a permission over the same object at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Sharing {
    /// No other holder is allowed.
    #[default]
    Exclusive,
    /// Any number of holders is allowed, all of them shared.
    Shared,
}

impl Sharing {
    /// The name: `exclusive` or `shared`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is neither `exclusive` nor `shared`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no kind of sharing: use exclusive or shared")]
pub struct UnknownSharing(String);

impl Coded for UnknownSharing {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownSharing
    }
}

impl FromStr for Sharing {
    type Err = UnknownSharing;

    fn from_str(name: &str) -> Result<Self, UnknownSharing> {
        let known = [Self::Exclusive, Self::Shared].into_iter().find(|sharing| sharing.name() == name);
        known.ok_or_else(|| UnknownSharing(name.to_owned()))
    }
}

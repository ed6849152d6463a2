//! The number of the software NIC's copy units.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::str::FromStr;
use std::thread::available_parallelism;

/// The most copy units of a node.
const UNITS_MAX: u32 = 64;
/// The most units that a node takes by itself: one thread hands pieces to all of them.
const UNITS_BY_ITSELF_MAX: u32 = 8;
/// The processors that a node without a setting leaves to its own thread and to others.
const PROCESSORS_LEFT: u32 = 3;

/// The number of copy units: threads that move the bytes of long transfers while the node's thread checks others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyUnitCount {
    /// As many as the machine has processors to spare: none on up to four processors, since units would take them from
    /// clients. Units without work sleep.
    #[default]
    Auto,
    /// This many. With none, the node's thread moves all bytes.
    Fixed(u32),
}

impl CopyUnitCount {
    /// Returns the number of units on this machine.
    #[must_use]
    pub fn on_this_machine(self) -> u32 {
        let processors = available_parallelism().map_or(1, usize::from);
        self.on(u32::try_from(processors).unwrap_or(u32::MAX))
    }

    fn on(self, processors: u32) -> u32 {
        match self {
            Self::Auto => (processors.saturating_sub(PROCESSORS_LEFT) / 2).min(UNITS_BY_ITSELF_MAX),
            Self::Fixed(count) => count,
        }
    }
}

impl fmt::Display for CopyUnitCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(count) => count.fmt(f),
        }
    }
}

/// Error: a text is no number of copy units.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no number of copy units: give `auto`, or a number from 0 to {UNITS_MAX}")]
pub struct NoCopyUnitCount(String);

impl Coded for NoCopyUnitCount {
    fn code(&self) -> ErrorCode {
        ErrorCode::Configuration
    }
}

impl FromStr for CopyUnitCount {
    type Err = NoCopyUnitCount;

    fn from_str(text: &str) -> Result<Self, NoCopyUnitCount> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let count = text.parse().ok().filter(|&count: &u32| count <= UNITS_MAX);
        count.map(Self::Fixed).ok_or_else(|| NoCopyUnitCount(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_taken_only_from_processors_to_spare() {
        let by_processors = [1, 2, 4, 5, 8, 16, 64].map(|processors| CopyUnitCount::Auto.on(processors));
        assert_eq!(by_processors, [0, 0, 0, 1, 2, 6, 8]);
        assert_eq!(CopyUnitCount::Fixed(3).on(2), 3);
    }

    #[test]
    fn a_count_is_written_as_it_is_read() {
        for text in ["auto", "0", "64"] {
            assert_eq!(text.parse::<CopyUnitCount>().map(|count| count.to_string()), Ok(text.to_owned()));
        }
        for text in ["65", "-1", "", "Auto", "4294967296"] {
            assert!(text.parse::<CopyUnitCount>().is_err(), "{text}");
        }
    }
}

//! The numbers of a node's threads: copy units, engines and lanes.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::str::FromStr;

/// The most threads of one kind.
const THREADS_MAX: u32 = 64;
/// The most copy units that a node takes by itself: one thread hands pieces to all of them.
const COPY_UNITS_BY_ITSELF_MAX: u32 = 8;
/// The most engines that a node takes by itself.
const ENGINES_BY_ITSELF_MAX: u32 = 4;
/// The most lanes that a node takes by itself.
#[cfg(any(feature = "udp", test))]
const LANES_BY_ITSELF_MAX: u32 = 4;

/// The number of a node's threads of one kind, beside the node's own thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadCount {
    /// Some of the processors to spare, which are those of the list but the first, or those of the machine beyond the fourth: for
    /// copy units one in two, at most 8, and for engines and lanes one in four each, at most 4. Threads without work sleep.
    /// Without a list, engines serve no clients while more threads want to run than the machine has processors, and there are
    /// none where the node may use only a part of the machine's processors.
    #[default]
    Auto,
    /// This many, up to 64. With none, the node's thread does their work.
    Fixed(u32),
}

impl ThreadCount {
    /// Returns the number of copy units on this many processors to spare.
    pub(crate) fn copy_units_on(self, spare: u32) -> u32 {
        self.on(spare, 2, COPY_UNITS_BY_ITSELF_MAX)
    }

    /// Returns the number of engines on this many processors to spare, of which other threads have `taken` some. An engine that
    /// shared its processor would keep the NIC's thread waiting.
    pub(crate) fn engines_on(self, spare: u32, taken: u32) -> u32 {
        match self {
            Self::Auto => (spare / 4).min(ENGINES_BY_ITSELF_MAX).min(spare.saturating_sub(taken)),
            Self::Fixed(_) => self.on(spare, 1, THREADS_MAX),
        }
    }

    /// Returns the number of lanes on this many processors to spare.
    #[cfg(any(feature = "udp", test))]
    pub(crate) fn lanes_on(self, spare: u32) -> u32 {
        self.on(spare, 4, LANES_BY_ITSELF_MAX)
    }

    /// Returns one in `part` of the processors, but one if there are any, and at most `most`.
    fn on(self, spare: u32, part: u32, most: u32) -> u32 {
        match self {
            Self::Auto => spare.div_ceil(part).min(most),
            Self::Fixed(count) => count.min(THREADS_MAX),
        }
    }
}

impl fmt::Display for ThreadCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(count) => count.fmt(f),
        }
    }
}

/// Error: a text is no number of threads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no number of threads: give `auto`, or a number from 0 to {THREADS_MAX}")]
pub struct NoThreadCount(String);

impl Coded for NoThreadCount {
    fn code(&self) -> ErrorCode {
        ErrorCode::Configuration
    }
}

impl FromStr for ThreadCount {
    type Err = NoThreadCount;

    fn from_str(text: &str) -> Result<Self, NoThreadCount> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let count = text.parse().ok().filter(|&count: &u32| count <= THREADS_MAX);
        count.map(Self::Fixed).ok_or_else(|| NoThreadCount(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_taken_only_from_processors_to_spare() {
        let spare = [0, 1, 4, 12, 60];
        assert_eq!(spare.map(|it| ThreadCount::Auto.copy_units_on(it)), [0, 1, 2, 6, 8]);
        assert_eq!(spare.map(|it| ThreadCount::Auto.lanes_on(it)), [0, 1, 1, 3, 4]);
        assert_eq!(spare.map(|it| ThreadCount::Auto.engines_on(it, it / 2)), [0, 0, 1, 3, 4]);
        assert_eq!(ThreadCount::Auto.engines_on(12, 11), 1, "engines share no processor");
        assert_eq!((ThreadCount::Fixed(3).copy_units_on(0), ThreadCount::Fixed(3).engines_on(0, 2)), (3, 3));
    }

    #[test]
    fn a_count_is_written_as_it_is_read() {
        for text in ["auto", "0", "64"] {
            assert_eq!(text.parse::<ThreadCount>().map(|count| count.to_string()), Ok(text.to_owned()));
        }
        for text in ["65", "-1", "", "Auto", "4294967296"] {
            assert!(text.parse::<ThreadCount>().is_err(), "{text}");
        }
    }
}

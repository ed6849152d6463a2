//! The length of a benchmark, and its progress bar on a terminal.

use super::BenchOptions;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The length of the measurement by default.
const SECONDS: u64 = 1;
/// The longest warm-up.
const WARM_UP: Duration = Duration::from_millis(250);
/// Operations between two looks at the clock, and the most questions between them: a measurement ends in time even if no
/// operation ends any more.
const STRIDE: u64 = 64;
/// Time between two updates of the progress bar.
const FRAME: Duration = Duration::from_millis(100);

/// The length of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    operations: u64,
    within: Duration,
}

impl Length {
    /// A length in operations, else in seconds, else the default time.
    pub fn new(operations: Option<u64>, seconds: Option<u64>) -> Self {
        match operations {
            Some(operations) => Self { operations, within: Duration::MAX },
            None => Self { operations: u64::MAX, within: Duration::from_secs(seconds.unwrap_or(SECONDS)) },
        }
    }

    /// A length in time.
    pub fn lasting(within: Duration) -> Self {
        Self { operations: u64::MAX, within }
    }

    /// The length of one of `parts` that come one after another.
    pub fn part(self, parts: usize) -> Self {
        let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        match self.operations {
            u64::MAX => Self { within: self.within / parts, ..self },
            operations => Self { operations: operations.div_ceil(parts.into()), ..self },
        }
    }

    /// The length for one of `clients` that work side by side.
    pub fn share(self, clients: usize) -> Self {
        if self.operations == u64::MAX { self } else { self.part(clients) }
    }

    /// The number of operations, `most` at most.
    pub fn operations_below(self, most: u64) -> u64 {
        self.operations.min(most)
    }
}

/// A part of a benchmark. It is over after a number of operations or after a time.
pub struct Course {
    operations: u64,
    within: Duration,
    started: Instant,
    /// Operations at which the clock is read again.
    look: u64,
    /// Questions since the clock was read.
    asked: u64,
    bar: ProgressBar,
    drawn: Duration,
}

impl Course {
    /// Starts the measurement with the length that the options give.
    pub fn new(options: &BenchOptions, what: impl Into<String>) -> Self {
        Self::of(Length::new(options.iterations, options.duration), what)
    }

    /// A measurement of this length.
    pub fn of(length: Length, what: impl Into<String>) -> Self {
        let Length { operations, within } = length;
        let ticks = if operations == u64::MAX { millis(within) } else { operations };
        let style = ProgressStyle::with_template("{bar:40} {percent} %  {msg}");
        let bar = ProgressBar::new(ticks).with_message(what.into());
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::start(operations, within, bar)
    }

    /// A measurement of this length without a progress bar, beside another one that has it.
    pub fn unseen(length: Length) -> Self {
        Self::start(length.operations, length.within, ProgressBar::hidden())
    }

    /// The warm-up before the measurement. It has at most as many operations as the measurement.
    pub fn warm_up(options: &BenchOptions, most: u64) -> Self {
        Self::warm_up_for(Length::new(options.iterations, options.duration), most)
    }

    /// The warm-up before a measurement of this length.
    pub fn warm_up_for(length: Length, most: u64) -> Self {
        Self::start(length.operations_below(most), WARM_UP, ProgressBar::hidden())
    }

    fn start(operations: u64, within: Duration, bar: ProgressBar) -> Self {
        Self { operations, within, started: Instant::now(), look: 0, asked: 0, bar, drawn: Duration::ZERO }
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the part is over after `done` operations.
    pub fn over(&mut self, done: u64) -> bool {
        self.asked += 1;
        if done < self.look && self.asked < STRIDE {
            return false;
        }
        self.asked = 0;
        self.look = done.saturating_add(STRIDE).min(self.operations);
        let elapsed = self.elapsed();
        if elapsed >= self.drawn + FRAME {
            self.drawn = elapsed;
            self.bar.set_position(if self.operations == u64::MAX { millis(elapsed) } else { done });
        }
        done >= self.operations || elapsed >= self.within
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: BenchOptions,
    }

    fn course(words: &[&str]) -> Course {
        let line = ["bench"].iter().chain(words);
        Course::new(&Line::try_parse_from(line).expect("a call").options, "")
    }

    #[test]
    fn a_second_is_the_length_of_what_says_nothing_else() {
        let lengths = [&[][..], &["-D", "5"], &["-n", "7"]].map(|words| {
            let course = course(words);
            (course.operations, course.within)
        });
        let second = Duration::from_secs(1);
        assert_eq!(lengths, [(u64::MAX, second), (u64::MAX, 5 * second), (7, Duration::MAX)]);
    }

    #[test]
    fn parts_are_as_long_together_as_the_whole_and_clients_share_operations_but_not_time() {
        let (operations, seconds) = (Length::new(Some(10), None), Length::new(None, Some(6)));
        assert_eq!(operations.part(4), Length::new(Some(3), None));
        assert_eq!(seconds.part(3), Length::new(None, Some(2)));
        assert_eq!((operations.share(5), seconds.share(5)), (Length::new(Some(2), None), seconds));
        assert_eq!((operations.operations_below(7), seconds.operations_below(7)), (7, 7));
    }

    #[test]
    fn a_time_ends_without_any_operation() {
        let mut course = Course::unseen(Length::lasting(Duration::from_millis(1)));
        while !course.over(0) {}
        assert!(course.elapsed() >= Duration::from_millis(1));
    }

    #[test]
    fn so_many_operations_are_exactly_so_many() {
        for most in [1, 63, 64, 65, 1000] {
            let mut course = course(&["-n", &most.to_string()]);
            let counted = (0..).find(|&done| course.over(done));
            assert_eq!(counted, Some(most));
        }
    }
}

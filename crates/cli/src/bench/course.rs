//! The length of a benchmark, and its progress bar on a terminal.

use super::Options;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The length of the measurement by default.
const LENGTH: Duration = Duration::from_secs(1);
/// The longest warm-up.
const WARM_UP: Duration = Duration::from_millis(250);
/// Operations between two looks at the clock.
const STRIDE: u64 = 64;
/// Time between two updates of the progress bar.
const FRAME: Duration = Duration::from_millis(100);

/// A part of a benchmark. It is over after a number of operations or after a time.
pub struct Course {
    operations: u64,
    within: Duration,
    started: Instant,
    /// Operations at which the clock is read again.
    look: u64,
    bar: ProgressBar,
    drawn: Duration,
}

impl Course {
    /// The measurement, as long as the options say.
    pub fn new(options: &Options, what: impl Into<String>) -> Self {
        let (operations, within) = match (options.iterations, options.duration) {
            (Some(iterations), _) => (iterations, Duration::MAX),
            (None, Some(seconds)) => (u64::MAX, Duration::from_secs(seconds)),
            (None, None) => (u64::MAX, LENGTH),
        };
        let length = if operations == u64::MAX { millis(within) } else { operations };
        let style = ProgressStyle::with_template("{bar:40} {percent} %  {msg}");
        let bar = ProgressBar::new(length).with_message(what.into());
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::start(operations, within, bar)
    }

    /// The warm-up before the measurement. It has at most as many operations as the options ask to measure.
    pub fn warm_up(options: &Options, most: u64) -> Self {
        let operations = options.iterations.map_or(most, |iterations| iterations.min(most));
        Self::start(operations, WARM_UP, ProgressBar::hidden())
    }

    fn start(operations: u64, within: Duration, bar: ProgressBar) -> Self {
        Self { operations, within, started: Instant::now(), look: 0, bar, drawn: Duration::ZERO }
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the part is over after `done` operations.
    pub fn over(&mut self, done: u64) -> bool {
        if done < self.look {
            return false;
        }
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
        options: Options,
    }

    fn course(words: &[&str]) -> Course {
        let line = ["bench", "read_lat"].iter().chain(words);
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
    fn so_many_operations_are_exactly_so_many() {
        for most in [1, 63, 64, 65, 1000] {
            let mut course = course(&["-n", &most.to_string()]);
            let counted = (0..).find(|&done| course.over(done));
            assert_eq!(counted, Some(most));
        }
    }
}

//! The outcome of each promise, and its presentation.

use portcullis_examination::check::{Check, Stop};
use std::fmt;

/// The outcome of one promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PromiseOutcome {
    /// The device keeps the promise.
    Kept,
    /// The device breaks the promise, and its capabilities do not declare that.
    Broken(String),
    /// The device lacks the feature that the promise is about.
    Skipped(String),
    /// The device breaks the promise, and its capabilities declare that.
    ExpectedDeviation(String),
    /// The device keeps the promise, although its capabilities declare that it does not: they are out of date.
    UnexpectedlyKept,
}

impl PromiseOutcome {
    /// Whether this outcome is a failure of the suite.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::UnexpectedlyKept)
    }

    /// Returns the outcome of a check. `expected_to_break`: the device is known to break the promise.
    pub(super) fn judge(said: Check, expected_to_break: bool) -> Self {
        match (said, expected_to_break) {
            (Ok(()), false) => Self::Kept,
            (Ok(()), true) => Self::UnexpectedlyKept,
            (Err(Stop::Broken(detail)), false) => Self::Broken(detail),
            (Err(Stop::Broken(detail)), true) => Self::ExpectedDeviation(detail),
            (Err(Stop::Skipped(reason)), _) => Self::Skipped(reason.to_owned()),
        }
    }
}

impl fmt::Display for PromiseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str("kept"),
            Self::Broken(detail) => write!(f, "BROKEN: {detail}"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
            Self::ExpectedDeviation(detail) => write!(f, "expected deviation: {detail}"),
            Self::UnexpectedlyKept => {
                f.write_str("UNEXPECTEDLY KEPT: the device is listed as not enforcing this; mend the list")
            }
        }
    }
}

/// The outcomes of all promises on one device. Displayed with a line for each promise.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The device, by its own name.
    pub device: String,
    /// Each promise's name and outcome, in the list's order.
    pub outcomes: Vec<(&'static str, PromiseOutcome)>,
}

impl Report {
    /// Whether no promise is broken or unexpectedly kept, and at least one was tested.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.ran() > 0 && self.failures().next().is_none()
    }

    /// Checks that the device keeps every promise that it must keep.
    ///
    /// # Panics
    /// Panics if a promise is broken or unexpectedly kept, or if none ran: without a device nothing is proved.
    pub fn assert_kept(&self) {
        assert!(self.ran() > 0, "no promise ran on {:?}: that proves nothing\n{self}", self.device);
        let failures: Vec<String> =
            self.failures().map(|(name, outcome)| format!("  {name}: {outcome}")).collect();
        assert!(
            failures.is_empty(),
            "{} of {} promises failed on {:?}:\n{}",
            failures.len(),
            self.outcomes.len(),
            self.device,
            failures.join("\n")
        );
    }

    fn ran(&self) -> usize {
        self.outcomes.iter().filter(|(_, outcome)| !matches!(outcome, PromiseOutcome::Skipped(_))).count()
    }

    fn failures(&self) -> impl Iterator<Item = &(&'static str, PromiseOutcome)> {
        self.outcomes.iter().filter(|(_, outcome)| outcome.is_failure())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.outcomes {
            writeln!(f, "{name}: {outcome}")?;
        }
        write!(
            f,
            "{}: {} promises, {} put to the test, {} failed",
            self.device,
            self.outcomes.len(),
            self.ran(),
            self.failures().count()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[PromiseOutcome]) -> Report {
        Report {
            device: "paper".to_owned(),
            outcomes: outcomes.iter().map(|outcome| ("promise", outcome.clone())).collect(),
        }
    }

    #[test]
    #[should_panic(expected = "no promise ran")]
    fn a_device_on_which_everything_is_skipped_does_not_pass() {
        report(&[PromiseOutcome::Skipped("no windows".to_owned())]).assert_kept();
    }

    #[test]
    #[should_panic(expected = "1 of 2 promises failed")]
    fn a_broken_promise_is_named() {
        report(&[PromiseOutcome::Kept, PromiseOutcome::Broken("a byte moved".to_owned())]).assert_kept();
    }

    #[test]
    #[should_panic(expected = "UNEXPECTEDLY KEPT")]
    fn a_deviation_that_was_mended_is_an_error_until_the_list_is() {
        report(&[PromiseOutcome::judge(Ok(()), true)]).assert_kept();
    }

    #[test]
    fn a_known_deviation_and_a_skip_beside_it_pass() {
        let deviation = PromiseOutcome::judge(Err(Stop::Broken("a byte moved".to_owned())), true);
        let skip = PromiseOutcome::judge(Err(Stop::Skipped("no atomics")), true);
        let report = report(&[deviation, skip]);
        report.assert_kept();
        assert!(report.is_kept());
        assert!(report.to_string().contains("promise: skipped: no atomics"));
    }
}

//! The processors on which a node's threads run.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::thread::available_parallelism;

/// The most processors of a list.
const PROCESSORS_MAX: usize = 1024;
/// The processors of the machine that a node without a list leaves to its own thread and to others.
const PROCESSORS_LEFT: usize = 4;

/// The processors of a node: its own thread keeps to the first, and copy units, engines and lanes to one each of the others, in
/// turn. With one processor, and without any, the kernel chooses where these threads run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorList(Vec<usize>);

impl ProcessorList {
    /// Returns the processors' numbers.
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// Returns the processor of the node's own thread. `None`: the kernel chooses.
    pub(crate) fn of_node(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// Returns the processor of the thread of this number among copy units, engines and lanes. `None`: the kernel chooses.
    pub(crate) fn of_thread(&self, number: usize) -> Option<usize> {
        let others = self.0.get(1..).filter(|others| !others.is_empty())?;
        Some(others[number % others.len()])
    }

    /// Returns the number of processors to spare for copy units, engines and lanes: those of the list but the first, or, where the
    /// kernel chooses, those of the machine beyond the fourth.
    pub(crate) fn to_spare(&self) -> u32 {
        self.to_spare_of(available_parallelism().map_or(1, usize::from))
    }

    fn to_spare_of(&self, machine: usize) -> u32 {
        let others = self.0.len().saturating_sub(1);
        let spare = if others > 0 { others } else { machine.saturating_sub(PROCESSORS_LEFT) };
        u32::try_from(spare).unwrap_or(u32::MAX)
    }
}

impl From<usize> for ProcessorList {
    /// Makes a list of one processor.
    fn from(processor: usize) -> Self {
        Self(vec![processor])
    }
}

/// Error: a text is no list of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no list of processors: give numbers and ranges, each processor once, for example `0,2-5`")]
pub struct NoProcessorList(String);

impl Coded for NoProcessorList {
    fn code(&self) -> ErrorCode {
        ErrorCode::Configuration
    }
}

impl FromStr for ProcessorList {
    type Err = NoProcessorList;

    fn from_str(text: &str) -> Result<Self, NoProcessorList> {
        let wrong = || NoProcessorList(text.to_owned());
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (first, last) = ends(part).map_err(|_| wrong())?;
            if first > last || last - first >= PROCESSORS_MAX {
                return Err(wrong());
            }
            numbers.extend(first..=last);
        }
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        let is_sound = numbers.len() <= PROCESSORS_MAX && sorted.windows(2).all(|pair| pair[0] != pair[1]);
        is_sound.then_some(Self(numbers)).ok_or_else(wrong)
    }
}

/// Returns the ends of a range, or one number twice.
fn ends(part: &str) -> Result<(usize, usize), ParseIntError> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    Ok((first.trim().parse()?, last.trim().parse()?))
}

impl fmt::Display for ProcessorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ProcessorList {
        text.parse().expect("a list")
    }

    #[test]
    fn a_list_has_numbers_and_ranges_in_the_order_in_which_they_are_given() {
        for (text, numbers) in [("3", &[3][..]), ("4,0-2", &[4, 0, 1, 2]), ("1, 5-5", &[1, 5])] {
            let list = parsed(text);
            assert_eq!(list.numbers(), numbers);
            assert_eq!(parsed(&list.to_string()), list);
        }
        for text in ["", ",", "1,1", "2-1", "0-2,1", "a", "-1", "1-", "0-9999999999", "18446744073709551616"]
        {
            assert!(text.parse::<ProcessorList>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_thread_has_a_processor_and_the_nodes_own_is_no_others() {
        let list = parsed("4,0-2");
        assert_eq!((list.of_node(), list.to_spare()), (Some(4), 3));
        assert_eq!([2, 4, 5, 16].map(|machine| parsed("7").to_spare_of(machine)), [0, 0, 1, 12]);
        let others: Vec<_> = (0..5).map(|number| list.of_thread(number)).collect();
        assert_eq!(others, [Some(0), Some(1), Some(2), Some(0), Some(1)]);
        assert_eq!((parsed("7").of_node(), parsed("7").of_thread(0)), (Some(7), None));
        assert_eq!((ProcessorList::default().of_node(), ProcessorList::default().of_thread(3)), (None, None));
    }
}

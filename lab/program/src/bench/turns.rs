//! Comparisons in turns.
//!
//! A machine's speed drifts by more than the difference that is measured. So the contestants take turns, each round is
//! compared only with itself, and the result is the median of all rounds' ratios.

use serde::Serialize;
use std::fmt;

/// One of several rounds.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    number: usize,
    of: usize,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {} of {}", self.number + 1, self.of)
    }
}

/// Measures each contestant once in each round. Each round begins with another contestant. The results are grouped by
/// contestant, in the order of the rounds.
pub fn in_turns<C, T, E>(
    contestants: &mut [C],
    rounds: usize,
    mut measure: impl FnMut(&mut C, Round) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut results: Vec<Vec<T>> = contestants.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for number in 0..rounds {
        for turn in 0..contestants.len() {
            let contestant = (number + turn) % contestants.len();
            let round = Round { number, of: rounds };
            results[contestant].push(measure(&mut contestants[contestant], round)?);
        }
    }
    Ok(results)
}

/// The least, the median and the greatest value of all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    /// The spread of one value for each round.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |position: usize| values.get(position).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        Self { least: at(0), median: at(last / 2), most: at(last) }
    }

    /// The spread of the ratios of two values in each round.
    pub fn of_ratios(pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self::of(pairs.into_iter().map(|(one, other)| one / other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_told_in_any_order() {
        let spread = Spread { least: 1.0, median: 2.0, most: 9.0 };
        assert_eq!(Spread::of([9.0, 1.0, 2.0]), spread);
        assert_eq!(Spread::of([4.0]), Spread { least: 4.0, median: 4.0, most: 4.0 });
    }

    #[test]
    fn each_round_begins_with_another_one_and_results_come_in_order() {
        let mut order = Vec::new();
        let results = in_turns(&mut ['a', 'b', 'c'], 2, |name, round| {
            order.push(*name);
            Ok::<_, ()>(format!("{name}: {round}"))
        });
        assert_eq!(order, ['a', 'b', 'c', 'b', 'c', 'a']);
        let results = results.expect("nothing failed");
        assert_eq!(results[2], ["c: round 1 of 2", "c: round 2 of 2"]);
    }

    #[test]
    fn ratios_are_of_one_round_each() {
        let drifting = [(10.0, 5.0), (30.0, 10.0), (2.0, 1.0)];
        assert_eq!(Spread::of_ratios(drifting), Spread { least: 2.0, median: 2.0, most: 3.0 });
    }
}

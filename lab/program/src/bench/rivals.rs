//! Protection mechanisms compared on one structure: one node for each, the same work on each in turns, and the cost of
//! each relative to the first.

use super::BenchError;
use super::course::Length;
use super::ends::Ends;
use super::node_process::{NodeProcess, Setup};
use super::turns::{Round, Spread, in_turns};
use crate::samples::{Samples, mops};
use clap::Args;
use comfy_table::{Table, presets};
use portcullis::Mechanism;
use serde::Serialize;
use std::time::Duration;

/// Rounds, by default. The odd number gives a median.
const ROUNDS: usize = 5;

/// Room for the clients of two turns, each with a large arena: clients of the last turn may still be leaving. Most of
/// it is never touched.
pub const ROOM: &[&str] = &["--ports-memory", "16GiB", "--overcommit"];

/// The candidates of a comparison, and its length.
#[derive(Args, Clone, Debug)]
pub struct Comparison {
    /// The mechanisms that enforce permissions, on a node each; every other one is compared with the first.
    #[arg(long, value_delimiter = ',', default_value = "none,memory-window", value_name = "MECHANISMS",
          value_parser = crate::protection::mechanism)]
    pub protection: Vec<Mechanism>,
    /// Rounds, in each of which every mechanism has its turn.
    #[arg(long, default_value_t = ROUNDS)]
    pub rounds: usize,
    /// Operations of each row, in all its rounds and by all clients.
    #[arg(short = 'n', long)]
    operations: Option<u64>,
    /// Seconds of each row instead, in all its rounds [default: one].
    #[arg(short = 'D', long, conflicts_with = "operations")]
    duration: Option<u64>,
    /// The length of each row, for a benchmark that has options of its own for it.
    #[arg(skip)]
    length: Option<Length>,
    /// More options of each node, for a benchmark that has options of its own for them.
    #[arg(skip)]
    more: Vec<String>,
    #[command(flatten)]
    pub ends: Ends,
    /// Print one JSON object instead of the tables.
    #[arg(long)]
    pub json: bool,
}

impl Comparison {
    /// One mechanism alone, in one round of this length.
    pub fn alone(protection: Mechanism, length: Length, more: Vec<String>) -> Self {
        Self {
            protection: vec![protection],
            rounds: 1,
            operations: None,
            duration: None,
            length: Some(length),
            more,
            ends: Ends::default(),
            json: false,
        }
    }

    /// The length of a mechanism's turn.
    pub fn turn(&self) -> Length {
        self.length.unwrap_or_else(|| Length::new(self.operations, self.duration)).part(self.rounds)
    }

    pub fn check(&self) -> Result<(), BenchError> {
        if self.rounds == 0 || self.operations == Some(0) || self.duration == Some(0) {
            return Err(BenchError::Options("--rounds, -n and -D take at least 1".to_owned()));
        }
        Ok(())
    }

    /// Starts a node for each mechanism, with the state that `prepare` makes on it.
    pub fn rivals<S>(
        &self,
        memory: u64,
        prepare: impl FnMut(&str, Mechanism) -> Result<S, BenchError>,
    ) -> Result<Vec<Rival<S>>, BenchError> {
        self.rivals_with(memory, &[], prepare)
    }

    /// Starts a node for each mechanism, as [`rivals`](Self::rivals) does, with more options for `portcullis serve`.
    pub fn rivals_with<S>(
        &self,
        memory: u64,
        more: &[String],
        mut prepare: impl FnMut(&str, Mechanism) -> Result<S, BenchError>,
    ) -> Result<Vec<Rival<S>>, BenchError> {
        let start = |&mechanism: &Mechanism| {
            let more = self.more.iter().chain(more).cloned();
            let more = ROOM.iter().map(|&option| option.to_owned()).chain(more).collect();
            let setup = Setup { memory: Some(memory), more, ..self.ends.setup(mechanism) };
            let node = NodeProcess::start(&setup)?;
            let state = prepare(node.address(), mechanism)?;
            Ok(Rival { mechanism, state, node })
        };
        self.protection.iter().map(start).collect()
    }
}

/// A mechanism, with its node and the state that is measured there.
pub struct Rival<S> {
    pub mechanism: Mechanism,
    /// Dropped before its node.
    pub state: S,
    node: NodeProcess,
}

impl<S> Rival<S> {
    pub fn address(&self) -> &str {
        self.node.address()
    }
}

/// Results of one turn.
pub struct Measured {
    pub operations: u64,
    pub mops: f64,
    pub times: Samples,
}

impl Measured {
    pub fn new(operations: u64, elapsed: Duration, times: Samples) -> Self {
        Self { operations, mops: mops(operations, elapsed), times }
    }

    /// The combined results of clients that worked side by side.
    pub fn together(clients: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self { operations: 0, mops: 0.0, times: Samples::new() };
        for client in clients {
            all.operations += client.operations;
            all.mops += client.mops;
            all.times.add_all(&client.times);
        }
        all
    }

    /// The median time of an operation in microseconds.
    pub fn p50(&self) -> f64 {
        self.times.quantile(0.5)
    }

    /// The 99th percentile of the times in microseconds.
    pub fn p99(&self) -> f64 {
        self.times.quantile(0.99)
    }

    /// The ratio of typical times, round by round.
    pub fn times_of<'a>(
        these: impl IntoIterator<Item = &'a Self>,
        others: impl IntoIterator<Item = &'a Self>,
    ) -> Spread {
        Spread::of_ratios(these.into_iter().zip(others).map(|(this, other)| (this.p50(), other.p50())))
    }
}

/// The figures of one mechanism in one row: medians of its rounds, and of the rounds' ratios to the first mechanism.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub protection: &'static str,
    pub operations: u64,
    /// Millions of operations per second, of all clients.
    pub mops: f64,
    /// Times of an operation in microseconds.
    pub p50: f64,
    pub p99: f64,
    /// The mechanism that the ratios are to.
    pub against: &'static str,
    pub mops_ratio: Spread,
    pub p50_ratio: Spread,
}

impl Figures {
    /// The headings of [`Figures::cells`].
    pub const HEADER: [&str; 8] =
        ["protection", "Mops", "p50 [usec]", "p99 [usec]", "rate of first", "least", "most", "p50 of first"];

    /// Each mechanism's figures, from the results of its turns.
    pub fn of_all<S>(rivals: &[Rival<S>], turns: &[Vec<&Measured>]) -> Vec<Self> {
        let of = |(rival, own): (&Rival<S>, &Vec<&Measured>)| {
            let median = |of: fn(&Measured) -> f64| Spread::of(own.iter().map(|turn| of(turn))).median;
            let rates = own.iter().zip(&turns[0]).map(|(turn, first)| (turn.mops, first.mops));
            Self {
                protection: rival.mechanism.name(),
                operations: own.iter().map(|turn| turn.operations).sum(),
                mops: median(|turn| turn.mops),
                p50: median(Measured::p50),
                p99: median(Measured::p99),
                against: rivals[0].mechanism.name(),
                mops_ratio: Spread::of_ratios(rates),
                p50_ratio: Measured::times_of(own.iter().copied(), turns[0].iter().copied()),
            }
        };
        rivals.iter().zip(turns).map(of).collect()
    }

    /// A table of figures. Each row begins with the cells that describe it.
    pub fn table<'a, const N: usize>(
        first: [&str; N],
        rows: impl IntoIterator<Item = ([String; N], &'a Self)>,
    ) -> Table {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([&first[..], &Self::HEADER[..]].concat());
        for (first, figures) in rows {
            table.add_row(first.into_iter().chain(figures.cells()));
        }
        table
    }

    /// The figures as cells of a table.
    pub fn cells(&self) -> impl Iterator<Item = String> {
        let numbers = [
            self.mops,
            self.p50,
            self.p99,
            self.mops_ratio.median,
            self.mops_ratio.least,
            self.mops_ratio.most,
            self.p50_ratio.median,
        ];
        [self.protection.to_owned()].into_iter().chain(numbers.map(|number| format!("{number:.3}")))
    }
}

/// Measures each mechanism in turns. Returns their figures in the order of the rivals.
pub fn compare<S>(
    rivals: &mut [Rival<S>],
    rounds: usize,
    measure: impl FnMut(&mut Rival<S>, Round) -> Result<Measured, BenchError>,
) -> Result<Vec<Figures>, BenchError> {
    let turns = in_turns(rivals, rounds, measure)?;
    let turns: Vec<Vec<&Measured>> = turns.iter().map(|own| own.iter().collect()).collect();
    Ok(Figures::of_all(rivals, &turns))
}

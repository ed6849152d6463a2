//! Prints the results of the exhaustive searches.

use crate::output::{print_json, say};
use indicatif::{ProgressBar, ProgressStyle};
use portcullis_sim::{Case, Design, Search, SearchLimits, search_chains};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;

/// A search, for programs.
#[derive(Serialize)]
struct Row {
    name: String,
    /// Whether the search must find a failure.
    planted: bool,
    states: usize,
    steps: u64,
    exhausted: bool,
    broken: Option<String>,
    trace: Vec<String>,
    wall_seconds: f64,
}

impl Row {
    fn of(name: String, planted: bool, seen: Search, started: Instant) -> Self {
        let (broken, trace) = seen.broken.unzip();
        Self {
            name,
            planted,
            states: seen.states,
            steps: seen.steps,
            exhausted: seen.exhausted,
            broken,
            trace: trace.unwrap_or_default(),
            wall_seconds: started.elapsed().as_secs_f64(),
        }
    }

    /// Whether the search has the expected result.
    fn is_right(&self) -> bool {
        if self.planted { self.broken.is_some() } else { self.broken.is_none() && self.exhausted }
    }

    fn print(&self) {
        let verdict = match (&self.broken, self.exhausted) {
            (Some(what), _) if self.planted => format!("found: {what}"),
            (Some(what), _) => format!("BROKEN: {what}"),
            (None, true) if self.planted => "NOT FOUND".to_owned(),
            (None, true) => "all states, nothing breaks".to_owned(),
            (None, false) => "not all states".to_owned(),
        };
        let Self { name, states, wall_seconds, .. } = self;
        say(format_args!("{name:<56} {states:>9} states {wall_seconds:>7.1} s  {verdict}"));
        if self.broken.is_some() && !self.planted {
            self.trace.iter().for_each(|step| say(format_args!("    {step}")));
        }
    }
}

/// Searches all states of the chains' small cases, and all states of the designs that must break.
pub fn chains(json: bool, states_max: Option<usize>) -> ExitCode {
    let limits = states_max.map_or_else(SearchLimits::default, |states_max| SearchLimits { states_max });
    let sound = Case::SOUND.iter().chain(&Case::WITH_NODE);
    let sound = sound.map(|&(name, case)| (name.to_owned(), false, case));
    let faulty = Design::FAULTY.map(|design| (format!("{design:?}"), true, Case::breaking(design)));
    let mut rows = Vec::new();
    for (name, planted, case) in sound.into_iter().chain(faulty) {
        let style = ProgressStyle::with_template("{spinner} {msg}: {pos} states, {per_sec}");
        let bar =
            ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(name.clone());
        let started = Instant::now();
        let seen = search_chains(case, limits, |seen| bar.set_position(seen.states as u64));
        bar.finish_and_clear();
        let row = Row::of(name, planted, seen, started);
        if !json {
            row.print();
        }
        rows.push(row);
    }
    if json {
        print_json(&rows);
    }
    if rows.iter().all(Row::is_right) { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

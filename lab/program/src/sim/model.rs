//! Runs and prints the cost models.

use crate::output::{complain, print_json, say};
use indicatif::{ProgressBar, ProgressStyle};
use portcullis_models::{Effort, Inputs, ModelReport, OneShotInputs, connectx5_with, model_1rma_with};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two progress messages if no bar can be shown.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Runs the model of Patronus's and OneSidedMW's clusters.
pub fn connectx5(json: bool) -> ExitCode {
    print(json, |progress| connectx5_with(&Inputs::default(), Effort::full(), progress))
}

/// Runs the model of 1RMA's testbed and simulations.
pub fn one_shot(json: bool) -> ExitCode {
    print(json, |progress| model_1rma_with(&OneShotInputs::default(), progress))
}

/// Runs a model, which reports its progress, and prints its report.
fn print(json: bool, model: impl FnOnce(&mut dyn FnMut(&str, u32, u32)) -> ModelReport) -> ExitCode {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len}  {msg}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut told = Instant::now();
    let report = model(&mut |what, done, of| {
        if bar.is_hidden() && told.elapsed() >= TOLD_EVERY {
            complain(format_args!("{done} of {of}: {what}"));
            told = Instant::now();
        }
        bar.set_length(of.into());
        bar.set_position(done.into());
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    if json {
        print_json(&report);
    } else {
        say(report.to_string().trim_end());
    }
    ExitCode::SUCCESS
}

//! Runs and prints the simulator's cost models.

use crate::output::{complain, say};
use indicatif::{ProgressBar, ProgressStyle};
use portcullis_sim::{Effort, Inputs, connectx5_with};
use std::process::ExitCode;

/// Runs the model of Patronus's and OneSidedMW's clusters.
pub fn connectx5(json: bool) -> ExitCode {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len}  {msg}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let report = connectx5_with(&Inputs::default(), Effort::full(), &mut |what, done, of| {
        bar.set_length(of.into());
        bar.set_position(done.into());
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    if !json {
        say(report.to_string().trim_end());
        return ExitCode::SUCCESS;
    }
    match serde_json::to_string(&report) {
        Ok(text) => {
            say(text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(format_args!("portcullis sim: {error}"));
            ExitCode::from(3)
        }
    }
}

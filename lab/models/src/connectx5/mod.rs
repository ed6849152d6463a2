//! `connectx5`: a cost model of Patronus' cluster and of OneSidedMW's. Its inputs are primitive costs, its outputs the
//! results of the paper and of the slides.
//!
//! The node, the client library, the chains and the NIC's rules are the real code. The model counts what they do and
//! charges the inputs' times for it in virtual time. No value is fitted: the report states where an output deviates
//! from what was published.

mod bench;
mod counts;
mod ends;
mod figure_10;
mod figure_5;
mod figure_6;
mod figure_7;
mod figure_8a;
mod figure_8b;
mod figure_9;
mod inputs;
mod metered;
mod onesidedmw;
mod pipe;
mod rig;
mod script;
mod shared;
mod table_5;

pub use inputs::Inputs;
pub use onesidedmw::OneSidedInputs;

use crate::report::ModelReport;
use crate::time::{MICROSECOND, Nanos};

/// How much virtual time each run of the model is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Virtual time of the measurement in a run at full speed, in µs. Slow runs get a multiple of it.
    pub measured_us: u64,
    /// Keys of the hash table on each core. The paper gives no number.
    pub table_keys: usize,
}

impl Effort {
    /// The effort for a report.
    #[must_use]
    pub const fn full() -> Self {
        Self { measured_us: 2_000, table_keys: 1_024 }
    }

    /// The effort for tests, whose results are a few percent less precise.
    #[must_use]
    pub const fn brief() -> Self {
        Self { measured_us: 300, table_keys: 128 }
    }

    fn span(self) -> Nanos {
        self.measured_us * MICROSECOND
    }
}

/// Reports the progress of the model.
struct Progress<'a> {
    tell: &'a mut dyn FnMut(&str, u32, u32),
    done: u32,
    of: u32,
}

impl Progress<'_> {
    /// Reports that the next run begins.
    fn step(&mut self, what: &str) {
        (self.tell)(what, self.done, self.of);
        self.done += 1;
    }
}

/// Number of runs for all figures.
const RUNS: u32 = 103;

/// Runs the model with the published inputs.
#[must_use]
pub fn connectx5() -> ModelReport {
    connectx5_with(&Inputs::default(), Effort::full(), &mut |_, _, _| {})
}

/// Runs the model with other inputs or less effort. `progress` receives the next run, the number of finished runs,
/// and the number of all runs.
#[must_use]
pub fn connectx5_with(
    inputs: &Inputs,
    effort: Effort,
    progress: &mut dyn FnMut(&str, u32, u32),
) -> ModelReport {
    let mut progress = Progress { tell: progress, done: 0, of: RUNS };
    let mut outputs = figure_5::figure_5(inputs, effort, &mut progress);
    outputs.extend(figure_6::figure_6(inputs, effort, &mut progress));
    outputs.extend(figure_7::figure_7(inputs, effort, &mut progress));
    outputs.extend(figure_8a::figure_8a(inputs, effort, &mut progress));
    outputs.extend(figure_8b::figure_8b(inputs, effort, &mut progress));
    outputs.extend(figure_9::figure_9(inputs, effort, &mut progress));
    outputs.extend(figure_10::figure_10(inputs, effort, &mut progress));
    outputs.extend(table_5::table_5(inputs, &mut progress));
    outputs.extend(onesidedmw::onesidedmw(inputs, effort, &mut progress));
    ModelReport { model: "connectx5", inputs: inputs.rows(), outputs }
}

//! `1rma`: a model of 1RMA's testbed and simulations (SIGCOMM'20). Its inputs are times of hosts and links and the
//! parameters of the paper, its outputs the results of the paper's section 7 and each row of its Table 3.
//!
//! Both ends of the operations and the congestion control are the real code of `onerma`, with its encryption. Hosts'
//! own times, links and switch queues are modelled. No value is fitted: the report states which claims do not hold.

mod bench;
mod figure_10;
mod figure_12;
mod figure_14;
mod figure_15;
mod figure_16;
mod figure_8;
mod figure_9;
mod incast;
mod inputs;
mod table_3;
mod traffic;

pub use inputs::OneShotInputs;

use crate::report::{ModelReport, OutputRow};

/// Function that computes a part of the outputs.
type Part = fn(&OneShotInputs) -> Vec<OutputRow>;

/// The parts of the report, in the order of the paper.
const PARTS: [(&str, Part); 10] = [
    ("Table 3", table_3::table_3),
    ("Figure 8", figure_8::figure_8),
    ("Figure 9", figure_9::figure_9),
    ("Figure 10", figure_10::figure_10),
    ("Figure 12", figure_12::figure_12),
    ("Figure 13", figure_10::figure_13),
    ("Figure 14", figure_14::figure_14),
    ("Figure 15", figure_15::figure_15),
    ("Figure 16", figure_16::figure_16),
    ("Incast", incast::incast),
];

/// Runs the model with the inputs of the paper.
#[must_use]
pub fn model_1rma() -> ModelReport {
    model_1rma_with(&OneShotInputs::default(), &mut |_, _, _| {})
}

/// Runs the model with other inputs. `progress` receives the next part, the number of finished parts, and the number
/// of all parts.
#[must_use]
pub fn model_1rma_with(inputs: &OneShotInputs, progress: &mut dyn FnMut(&str, u32, u32)) -> ModelReport {
    let of = u32::try_from(PARTS.len()).expect("parts are few");
    let mut outputs = Vec::new();
    for (done, (name, part)) in (0..of).zip(PARTS) {
        progress(name, done, of);
        outputs.extend(part(inputs));
    }
    ModelReport { model: "1rma", inputs: inputs.rows(), outputs }
}

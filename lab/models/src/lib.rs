//! Cost models of clusters that papers measured.
//!
//! The inputs of a model are costs of primitive steps, each with its source. Its outputs are the results of the
//! paper, beside the published values. The node, the client library, the chains and both ends of one-shot
//! operations are the real code. They run on the simulator's parts in virtual time, and the model charges the inputs'
//! times for what they do.
//!
//! [`connectx5()`] has the results of Patronus and of OneSidedMW, [`model_1rma()`] those of 1RMA.
//!
//! This crate reads no clock and no device.
#![forbid(unsafe_code)]

mod connectx5;
mod model_1rma;
mod one_shot;
mod report;
mod time;

pub use connectx5::{Effort, Inputs, OneSidedInputs, connectx5, connectx5_with};
pub use model_1rma::{OneShotInputs, model_1rma, model_1rma_with};
pub use report::{InputRow, ModelReport, Origin, OutputRow};

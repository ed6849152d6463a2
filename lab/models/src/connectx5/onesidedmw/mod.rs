//! The results of OneSidedMW's slides (NSDI 2026): memory whose allocation and freeing the NIC does alone.
//!
//! The model counts what a chain does: the real chains of `offload` run on the real software NIC, and the requests
//! that they execute are charged with the inputs' times ([`lap`], [`times`]). The listings determine where a NIC like
//! mlx5 has to fetch again ([`segments`]). The memory that is saved is a function of traces ([`objects`],
//! [`swap_space`]), and of no time.
//!
//! The slides leave much open. A value that is not published is an input marked as assumed, or a curve over its
//! range. No value is chosen to make a result agree. If a result does not agree, the report states that.

mod chains;
mod inputs;
mod lap;
mod objects;
mod segments;
mod store;
mod swap;
mod swap_space;
mod times;

pub use inputs::OneSidedInputs;

use super::inputs::Inputs;
use super::{Effort, Progress};
use crate::report::OutputRow;

pub(super) fn onesidedmw(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = chains::chains(inputs, progress);
    rows.extend(store::store(inputs, effort, progress));
    rows.extend(swap::swap(inputs, effort, progress));
    rows
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;

//! The results of OneSidedMW's slides (NSDI 2026): memory whose allocation and freeing the NIC does alone.
//!
//! What a chain does is counted: the real chains of `offload` run on the real software NIC, and what they execute is charged
//! with the inputs' times ([`lap`], [`times`]). Where a NIC like mlx5 has to fetch again follows from the listings
//! ([`segments`]). The memory that is saved is a function of traces ([`objects`], [`swap_space`]), and of no time.
//!
//! The slides leave much open. What nobody has published is an input marked as assumed, or a curve over its range. Nothing
//! is chosen so that a result comes out: where one does not, the report says so.

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
use super::report::OutputRow;
use super::{Effort, Progress};

pub(super) fn onesidedmw(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = chains::chains(inputs, progress);
    rows.extend(store::store(inputs, effort, progress));
    rows.extend(swap::swap(inputs, effort, progress));
    rows
}

#[cfg(test)]
mod tests;

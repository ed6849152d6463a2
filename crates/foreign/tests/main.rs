//! The promises that bindings rely on.

mod cuda;
mod exclusive_cell;
mod operations;
mod structures;

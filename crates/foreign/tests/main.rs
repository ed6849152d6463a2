//! The promises that bindings rely on.

mod exclusive_cell;
mod operations;
mod structures;

//! The promises that bindings rely on.

mod doors;
mod operations;
mod structures;

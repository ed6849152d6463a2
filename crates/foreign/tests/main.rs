//! What bindings rely on.

mod doors;
mod operations;
mod structures;

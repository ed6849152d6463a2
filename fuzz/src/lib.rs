//! What the fuzzer runs: each module takes bytes, does with them what a peer could, and panics when a promise breaks.
#![forbid(unsafe_code)]

pub mod attach;
pub mod control;
pub mod desk;
mod input;
pub mod messages;
mod plain;
pub mod queues;
pub mod visit;

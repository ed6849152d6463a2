//! Tests of the promises of the software NIC, with one module for each subject. They are one program, so that the NIC
//! is compiled once for all of them.

mod conformance;
mod copy_units;
mod crowd;
mod engines;
mod examination;
mod owner;
mod reuse;
mod wire;

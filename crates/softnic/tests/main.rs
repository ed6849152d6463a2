//! What the software NIC promises, one module a subject. One program: the NIC is compiled once for all of them.

mod conformance;
mod crowd;
mod examination;
mod owner;
mod reuse;
mod wire;

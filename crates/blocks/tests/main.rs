//! Tests of the promises of stores of blocks, one module a subject.

mod eviction;
mod leases;
mod planted;
mod races;
mod rig;
mod several;
mod spread;
mod store;

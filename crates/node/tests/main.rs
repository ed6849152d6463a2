//! The promises of a node, one module for each subject. They are one program, so that the node is compiled once for all
//! of them.

mod audit;
mod charging;
mod chunks;
mod counters;
mod crowds;
mod directory;
mod edges;
mod ends;
mod freeing;
mod garbage;
mod leases;
mod lingering;
mod members;
mod memory;
mod objects;
mod packing;
mod pools;
mod region_keys;
mod reports;
mod reuse;
mod rig;
mod rights;
mod sharing;
mod told_apart;
mod violations;
mod window_groups;
mod windows;

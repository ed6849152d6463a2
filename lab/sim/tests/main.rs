//! Tests of simulated clusters, with one module for each subject. They are one program, so that the simulator is
//! compiled once for all of them.

mod blocks;
mod calls;
mod chains;
mod chunks;
mod claims;
mod copy_units;
mod engines;
mod explore;
mod extent;
mod limits;
mod planted;
mod queues;
mod replay;
mod seeds;
mod sessions;
mod structures;
mod tables;
mod udp;

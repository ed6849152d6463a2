//! Tests of 1RMA, with one module for each subject. They are one program, so that their dependencies are linked once.

mod executor;
mod flood;
mod holders;
mod noise;
mod operations;
mod path;
mod path_mtu;
mod rig;
mod sockets;

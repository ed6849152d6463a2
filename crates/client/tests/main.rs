//! Tests of the promises of the client library, one module for each subject. All modules are one program, so that the
//! client is compiled once for all of them.

mod asking;
mod asks;
mod calls;
mod exactly_once;
mod fake;
mod limits;
mod linked;
mod node_copy;
mod packing;
mod set_aside;
mod small_objects;
mod switching;
mod time_limits;

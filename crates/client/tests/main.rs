//! What the client library promises, one module a subject. One program: the client is compiled once for all of them.

mod asking;
mod calls;
mod exactly_once;
mod fake;
mod limits;
mod node_copy;
mod owned_batch;
mod set_aside;
mod small_objects;
mod switching;
mod time_limits;

//! The NIC as a pure state machine.
//!
//! Requests lie in queue memory; [`Core::turn`] fetches them, checks queue pair, domain, key, range and rights, and
//! executes. No clock, no threads, no system calls: time comes in as an argument, memory is a type parameter, so
//! that the same code runs on shared memory and in a simulator.
//!
//! Whatever the queues hold, a turn ends: each queue pair gets a budget of requests and bytes, every index is this
//! side's own, and a request is read once into private words.

mod keys;
mod layout;
mod loopback;
mod objects;
mod queue_pair;
mod requester;
mod responder;
mod rings;
mod schedule;
mod verbs;
mod visit;
mod wire;

pub use keys::KEYS_MAX;
pub use layout::{COMPLETION_BYTES, RECEIVE_BYTES, WORK_REQUEST_BYTES};
pub use objects::{Core, CqPlace, ObjectCounts, QpPlace};
pub use portcullis_memory::Bytes;
pub use rings::{
    CompletionPoller, CompletionPoster, ReceivePoster, ReceiveTaker, Ring, SendPoster, SendTaker,
};
pub use schedule::{BYTES_PER_VISIT_MAX, REQUESTS_PER_VISIT_MAX};
pub use wire::{Answer, NetworkPort, Packet, PacketBody, WireRequest};

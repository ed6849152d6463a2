//! The NIC as a pure state machine.
//!
//! Requests lie in queue memory. [`Core::turn`] fetches them, checks queue pair, domain, key, range and rights, and
//! executes them. The NIC has no clock, no threads and no system calls: time is an argument, and memory is a type
//! parameter. The same code runs on shared memory and in a simulator.
//!
//! A turn ends, whatever the queues hold: each queue pair has a budget of requests and bytes, no index of a peer's is
//! trusted, and a request is read once into private words.

pub mod copy_units;
pub mod engines;
mod handover;
mod inspect;
mod keys;
mod layout;
mod loopback;
mod objects;
mod queue_pair;
mod quiescence;
mod requester;
mod responder;
mod rings;
mod runner;
mod schedule;
mod verbs;
mod visit;
mod wire;

pub use inspect::QueueProgress;
pub use keys::{KEYS_MAX, SharedWords, WORDS as KEY_WORDS, Word};
pub(crate) use layout::queue_entry;
pub use layout::{COMPLETION_BYTES, RECEIVE_BYTES, WORK_REQUEST_BYTES};
pub use objects::{Core, CqRing, ObjectCounts, QpRings, Sleeper};
pub use portcullis_memory::Bytes;
pub use rings::{
    CompletionPoller, CompletionPoster, ReceivePoster, ReceiveTaker, Ring, SendPoster, SendTaker,
};
pub use runner::ThreadRunner;
pub use schedule::{BYTES_PER_VISIT_MAX, REQUESTS_PER_VISIT_MAX};
pub use wire::{NetworkPort, Packet, PacketBody, Response, WireRequest};

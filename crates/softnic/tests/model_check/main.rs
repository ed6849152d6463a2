//! The queues between processes, the transfers of a NIC, and the protocol for sleeping and waking, under a model checker.
//!
//! The rings are the real code: [`portcullis_softnic::core`] is generic over its memory, and here that memory is made
//! of [loom](https://docs.rs/loom)'s words. Loom runs a model again and again, with every order in which two threads
//! can take turns and every value that a load may return under the memory model. So it also finds errors that do not
//! show on this machine's processor, such as a relaxed load that comes too early.
//!
//! Limits of the checks:
//!
//! - Each model is small: a few entries, a few turns of each end. Loom tries all orders of a model, or all orders with
//!   a limited number of preemptions; each test names its [`exploration::Bound`].
//! - Loom reads no values from the future: a load never returns a value stored later in the same run. So the models do
//!   not examine whether a load may be delayed behind a later *store* of the same thread. The rings are safe there
//!   because every store that gives a slot back is a release ([`orderings::Orderings::store`]).
//! - Loom remembers the last seven values of a word and returns no older one. No word of a ring is stored more often
//!   here.
//! - Loom's sequentially consistent fences order a little more than the language promises. They have the one property
//!   that the protocol needs: of two fences, one comes first.
//! - The orderings are the model's own copy of those in `memory/src/access.rs`, because a mapping cannot be made of
//!   loom's words. **The two must agree**: [`agreement`] reads the source and fails when they do not. The same holds
//!   for the steps of the protocol, which are copied from four files.
//!
//! [`bites`] checks that the checks can fail.
#![forbid(unsafe_code)]

mod agreement;
mod bites;
mod completion_ring;
mod engines;
mod entries;
mod exploration;
mod hostile_peer;
mod memory;
mod orderings;
mod pieces;
mod receive_ring;
mod send_ring;
mod sleep;
mod transfers;

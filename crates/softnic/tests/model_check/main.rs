//! The queues between processes, and the bargain about sleep, under a model checker.
//!
//! The rings are the ones that ship: [`portcullis_softnic::core`] is generic over its memory, and here that memory is
//! made of [loom](https://docs.rs/loom)'s words. Loom runs a model again and again, with every order in which two
//! threads can take turns and every value that a load may return under the memory model. What a thousand runs on
//! this machine's processor would never show, a relaxed load that comes too early, is just another run here.
//!
//! How far it looks:
//!
//! - Each model is small: a few entries, a few turns of each end. Of these it sees every order, or every order in
//!   which threads are interrupted only so often; each test names its [`exploration::Bound`].
//! - Loom reads no values from the future: a load never returns what is stored later in the same run. Whether a load
//!   may be delayed behind a later *store* of the same thread is therefore not examined. The rings are safe there
//!   because every store that gives a slot back is a release ([`orderings::Orderings::store`]).
//! - Of a word it remembers the last seven values and returns no older one. No word of a ring is stored that often here.
//! - Loom's sequentially consistent fences order a little more than the language promises. They have the one
//!   property that the bargain needs, that of two fences one comes first.
//! - The orderings are the model's own copy of those in `memory/src/access.rs`, since a mapping cannot be made of
//!   loom's words. **The two must agree**: [`agreement`] reads the source and fails when they do not. The same
//!   goes for the steps of the bargain, which are copied from four files.
//!
//! That the checks can fail at all is checked in [`bites`].
#![forbid(unsafe_code)]

mod agreement;
mod bites;
mod completion_ring;
mod entries;
mod exploration;
mod hostile_peer;
mod memory;
mod orderings;
mod receive_ring;
mod send_ring;
mod sleep;

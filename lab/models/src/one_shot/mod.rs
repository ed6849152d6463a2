//! Hosts with one-shot operations (1RMA) on a network, in virtual time.
//!
//! The two ends of an operation are the real ones of `onerma`. Links, switch queues and the hosts' own times are
//! modelled. A run reads no clock, and all that is random comes from its seed.

mod host;
mod world;

pub(crate) use host::HostTimes;
pub(crate) use world::{Happening, World, WorldTerms, pattern};

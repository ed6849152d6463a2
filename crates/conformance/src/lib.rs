//! What every NIC of Portcullis has to keep, and how one finds out whether it does.
//!
//! [`suite`] is the conformance suite that every implementation of [`Nic`](portcullis_nic::Nic) must pass: a named test a
//! promise. [`examination`] asks a device at hand what of all that a permission may rest on. Both set up the same bench
//! on a NIC and see the NIC through its trait alone.
#![forbid(unsafe_code)]

mod around;
mod bench;
mod check;
pub mod examination;
mod ledger;
pub mod suite;

pub use around::{Around, Hook};

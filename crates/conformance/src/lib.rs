//! What every NIC of Portcullis has to keep, and how to find out whether it does.
//!
//! [`suite`] is the conformance suite that every implementation of [`Nic`](portcullis_nic::Nic) must pass, with a named
//! test for each promise. [`examination`] tries on a device which guarantees of permissions it keeps. Both set up the
//! same bench on a NIC, and use the NIC only through its trait.
#![forbid(unsafe_code)]

mod around;
mod bench;
mod check;
pub mod examination;
mod ledger;
pub mod suite;

pub use around::{Around, Hook};

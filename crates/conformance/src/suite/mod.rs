//! The conformance suite: what InfiniBand semantics promise a permission, one named test a promise.
//!
//! A NIC crate puts `portcullis_conformance::conformance_tests!(MyNic::new())` into a test file and has one `#[test]` a
//! promise. Whoever has a device at run time calls [`run`] and shows or asserts the [`Report`]. Both come from one
//! list, so neither can fall behind.
//!
//! Each promise gets a NIC of its own, with no object on it but the bench's. What a device says it cannot do
//! ([`Capabilities`]) is skipped aloud; a promise under a [`Guarantee`] that the device is known not to keep must fail, and
//! so must one that it is known to break by name; it is an error when they do not. What a device does not survive
//! ([`Misuse`]) is not done to it: that is skipped aloud too.
//!
//! The suite sees a NIC only through [`Nic`]. It waits on conditions: how long it waits at most is part of the verdict,
//! never part of a test's working.
//!
//! [`Capabilities`]: portcullis_nic::Capabilities
//! [`Guarantee`]: portcullis_nic::Guarantee
//! [`Misuse`]: portcullis_nic::Misuse
//! [`Nic`]: portcullis_nic::Nic

mod atomics;
mod binds;
mod faults;
mod ids;
mod keys;
mod list;
mod local;
mod messages;
mod order;
mod posting;
mod queues;
mod range;
mod regions;
mod report;
mod rights;
mod states;
mod teardown;
mod type_1;
mod type_2;

pub use list::{Promise, keep, promises, run};
pub use report::{Outcome, Report};

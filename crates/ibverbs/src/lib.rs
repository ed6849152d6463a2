//! A NIC through libibverbs, which is looked for at run time: everything builds and runs without it.
//!
//! [`IbNic`] carries out [`portcullis_nic::Nic`] on any RDMA card, and on Linux's Soft-RoCE. `sys` is the library
//! with its calls and the only unsafe code; everything else here counts, remembers and decides in safe code: which
//! device, how much room a queue has, whose completion this is, which window lies over what.
#![deny(unsafe_code)]

mod completions;
mod device;
mod endpoint;
mod known;
mod ledger;
mod memlock;
mod nic;
mod queue_pair;
mod regions;
mod slots;
#[allow(unsafe_code)]
mod sys;
mod ticket;

pub use device::{DeviceChoice, DeviceSummary, GidEntry, GidKind, OpenError, Port, devices};
pub use endpoint::{IbEndpoint, NodeLife};
pub use memlock::{MemlockTooLow, check_memlock, check_memlock_of_node};
pub use nic::{IbNic, WorkRequests};
pub use sys::NoLibrary;

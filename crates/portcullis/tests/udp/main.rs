//! Tests of clients over UDP: which operations succeed, which the node refuses, and whether permissions end in time.
//!
//! Some clients break every rule, and in some tests an attacker is on their path. Honest sessions of other tenants work
//! on all the time, and nothing is left behind.

mod attacker;
#[path = "../rdma/audit.rs"]
mod audit;
#[path = "../hostile/child.rs"]
mod child;
mod connecting;
mod death;
mod fabrics;
#[path = "../hostile/honest.rs"]
mod honest;
mod keys;
mod lanes;
#[path = "../hostile/late_writes.rs"]
mod late_writes;
mod messages;
mod mtu;
mod path;
mod permissions;
mod proxy;
mod rig;

//! Clients over UDP: what they can do, what is refused, and what ends when it should.
//!
//! Some of them break every rule, and somebody is on their path. Honest sessions of other tenants go on all the time, and
//! nothing is left behind.

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
mod messages;
mod mtu;
mod path;
mod permissions;
mod proxy;
mod rig;

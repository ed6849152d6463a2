//! Tests on an RDMA device: a client that breaks every rule over the network, and processes that die.
//!
//! The hostile client attaches as an honest client does, and then drives its NIC and queue pairs itself. Honest clients
//! of its tenant and of other tenants run beside it and check every byte they read. Three things must hold each time:
//! the honest clients meet no error and make progress, violations are charged to the tenant that caused them, and
//! nothing is left behind.
//!
//! Every test needs a device and is therefore ignored by default, so that no test passes on a machine without one.
//! Random tests print their seed; `PORTCULLIS_SEED` sets it.

mod attacker;
mod audit;
#[path = "../hostile/besieged.rs"]
mod besieged;
#[path = "../hostile/canary.rs"]
mod canary;
mod control_connection;
mod death;
mod device;
mod ends;
#[path = "../hostile/honest.rs"]
mod honest;
mod invalidate;
mod keys;
mod leaving;
mod messages;
mod over_udp;
mod process;
mod range;
mod rebuild;
mod rig;
mod tripwire;
mod unreachable;
mod violations;

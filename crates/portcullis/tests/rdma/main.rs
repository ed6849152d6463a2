//! On an RDMA device: a client that breaks every rule over the network, and processes that die.
//!
//! The hostile client attaches as an honest one does, and then drives its own NIC and queue pairs by itself. Beside it
//! honest clients of its tenant and of others check every byte they get. Each time three things must hold: the honest
//! ones meet no error and go on, what was broken is charged to the tenant that broke it, and nothing is left behind.
//!
//! All of it needs a device, so every test is ignored unless it is asked for: where there is none, none has passed.
//! Random ones print their seed; `PORTCULLIS_SEED` sets it.

mod attacker;
mod audit;
#[path = "../hostile/canary.rs"]
mod canary;
mod death;
mod device;
mod door;
mod ends;
#[path = "../hostile/honest.rs"]
mod honest;
mod invalidate;
mod keys;
mod leaving;
mod messages;
mod process;
mod range;
mod rebuild;
mod stage;
mod tripwire;
mod unreachable;
mod violations;

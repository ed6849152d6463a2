//! A client that breaks every rule. It controls its shared memory and its socket, and misuses both.
//!
//! Each test runs one kind of attack against a node, beside honest clients under load that check every byte they read.
//! Three things must hold each time: the honest clients meet no error and make progress, the attacker leaves nothing
//! behind, and the node serves the next client. Random tests print their seed; `PORTCULLIS_SEED` sets it.

mod attach_connection;
mod attacker;
mod besieged;
mod canary;
mod child;
mod death;
mod honest;
mod keys;
mod late_writer;
mod late_writes;
mod memory;
mod messages;
mod operator;
mod peers;
mod queues;
mod rig;
mod sharing;
mod siblings;
mod socket;
mod starvation;
mod violations;

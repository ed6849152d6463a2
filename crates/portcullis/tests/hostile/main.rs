//! A client that breaks every rule: it owns its shared memory and its socket, and uses both.
//!
//! Each test sets one kind of attack against a running node, beside honest clients under load that check every byte
//! they get. Three things must hold each time: the honest clients have no error and go on, what the hostile one left
//! behind is nothing, and the node serves whoever comes next. Random ones print their seed; `PORTCULLIS_SEED` sets it.

mod attacker;
mod canary;
mod child;
mod death;
mod door;
mod honest;
mod keys;
mod memory;
mod messages;
mod operator;
mod peers;
mod queues;
mod siblings;
mod socket;
mod stage;
mod starvation;
mod violations;

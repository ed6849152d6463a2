//! The network between hosts with one-shot operations (1RMA), in virtual time.

pub(crate) mod network;

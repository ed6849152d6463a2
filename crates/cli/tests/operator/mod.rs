//! The view and the actions of a running node's operator: the audit log, the counters, and the barred clients.

mod admin;
mod audit;
mod events;
mod node;

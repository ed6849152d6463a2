//! What the operator of a running node sees and does: the audit log, the counters, and who is barred.

mod admin;
mod audit;
mod events;
mod node;

//! Tests of the structures' promises, one module a subject. They are one program: the structures are compiled once for
//! all of them.

mod chunk_blocks;
mod claim_trials;
mod claims;
mod concurrency;
mod deaths;
mod linearizability;
mod perform;
mod pipeline;
mod planted;
mod processes;
mod queue;
mod queue_deaths;
mod queue_trials;
mod rig;
mod sharing;
mod table;
mod table_seeds;
mod trials;

//! The common part of all bindings of Portcullis to other languages.
//!
//! Rust's rules keep a program from using a session in two threads at once, or after its end. Other languages have no
//! such rules. So a binding keeps each object that it hands out behind an [`ExclusiveCell`]: a call that breaks the rules returns
//! an error that explains what to do.
//!
//! - [`ExclusiveCell`]: lets one thread in at a time, and no thread after the end or in a child of `fork`.
//! - [`Failure`]: an error as another language sees it: number, name, text, the side at fault, whether to try again.
//! - [`Attached`]: a session with the operations that were begun on it and not waited for, each with the caller's tag.
//! - [`Driven`]: a table or a queue with the session and the pipeline that drive it, as one value.
//! - [`TableAsk`], [`QueueAsk`]: operations that are begun on such a value and not waited for.
//! - [`Blocks`]: a store of blocks on several nodes, with operations that are begun and ends that are taken.
//! - [`CudaDriver`]: registers a session's arena with CUDA, so that GPUs copy from and to it.
//! - [`LocalNode`]: a node inside the program, for tests.
//!
//! This crate depends on no other language. A binding translates arguments and results, and nothing else.

mod asks;
mod attached;
mod blocks;
mod cuda;
mod driven;
mod exclusive_cell;
mod failure;
mod node;
mod operations;

pub use asks::{QueueAsk, QueueDone, Structure, StructureAsk, Surroundings, TableAsk, TableDone, When};
pub use attached::Attached;
pub use blocks::{Blocks, BlocksEnd, LentBytes};
pub use cuda::{CudaDriver, CudaError, WantedCuda};
pub use driven::{Driven, StructureAddress};
pub use exclusive_cell::{Entered, ExclusiveCell};
pub use failure::{Failure, Misuse};
pub use node::LocalNode;
pub use operations::{Arena, ArenaAccess, ArenaAsk, ArenaBuffer, Completion, Ended, NOBODY, Operations};

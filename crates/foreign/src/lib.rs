//! What every binding of Portcullis to another language needs.
//!
//! Rust's rules keep a program from using a session in two threads at once, or after its end. Other languages have no such
//! rules. So a binding holds what it hands out behind a [`Door`]: what breaks the rules there becomes an error that says what
//! to do.
//!
//! - [`Door`]: lets one thread in at a time, nobody after the end, and nobody in a child of `fork`.
//! - [`Failure`]: an error as another language sees it: number, name, text, whose fault, whether to try again.
//! - [`Attached`]: a session with the operations that were begun on it and not waited for, each with the caller's tag.
//! - [`Driven`]: a table or a queue with the session and the pipeline that drive it, as one value.
//! - [`TableAsk`], [`QueueAsk`]: operations that are begun on such a value and not waited for.
//! - [`LocalNode`]: a node inside the program, for tests.
//!
//! This crate knows no language. A binding translates arguments and results, and nothing else.

mod asks;
mod attached;
mod door;
mod driven;
mod failure;
mod node;
mod operations;

pub use asks::{Ask, QueueAsk, QueueDone, Structure, Surroundings, TableAsk, TableDone, When};
pub use attached::Attached;
pub use door::{Door, Entered};
pub use driven::{Driven, Place};
pub use failure::{Failure, Misuse};
pub use node::LocalNode;
pub use operations::{ArenaBuffer, Completion, Ended, NOBODY, Operations};

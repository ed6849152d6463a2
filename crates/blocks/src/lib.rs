//! Stores of immutable blocks in the memory of nodes.
//!
//! A block is bytes under a key that determines them, for example a part of the KV cache of a language model under the
//! hash of its tokens. So the bytes under a key never change, and a block that is lost is a miss.
//!
//! - [`Store`] is one client's handle on the blocks of one node.
//! - [`spread_store::SpreadStore`] is a handle on the blocks of several nodes, for programs with threads.
//! - [`rank`] places a key on several nodes. No client has to know another one for that. [`spread`] decides which node
//!   is to do what next.
//!
//! The crate does everything through a [`portcullis_structures::Pipeline`], so it works with each fabric and each
//! protection mechanism. [`spread_store`] has a thread for each node. The rest starts none, and reads no clock but the
//! session's.
#![forbid(unsafe_code)]

mod counters;
mod entry;
mod error;
mod held;
mod options;
pub mod rank;
mod recency;
pub mod spread;
pub mod spread_store;
mod store;
mod transfer;

pub use counters::Counters;
pub use error::BlockError;
pub use options::StoreOptions;
pub use store::{Block, Got, Put, Store, Usage};

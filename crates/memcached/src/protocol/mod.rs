//! Memcached's protocol: the text commands and the meta commands, as a state machine without I/O.
//!
//! Bytes enter through [`Parser::take`], and commands leave. [`Reply`] turns the results into bytes.

mod classic;
mod command;
mod dump;
mod gets;
mod keys;
mod line;
mod meta;
mod parser;
mod reply;
mod words;

pub use classic::VERSION;
pub use command::{
    Arithmetic, Command, Data, Direction, Expiry, Get, Key, Mode, Request, Statistics, Store, Touch,
};
pub use dump::{Describe, Described, DumpForm};
pub use keys::Spelling;
pub use meta::{Common, Echo, MetaArithmetic, MetaDelete, MetaGet, MetaSet};
pub use parser::{Limits, Need, Parser};
pub use reply::{Debugged, MetaReply, Reply, Returned, Shown};

//! What the demo says to its client processes, and what they answer: JSON, one object a line, on their standard input
//! and output. Objects travel as references, as they should between programs that share remote memory; addresses and keys
//! as bare numbers, as they do between programs that should not.

use super::figures::{Guilt, Latency, Traffic};
use portcullis::ObjectRef;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A file to put into remote memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Its number in the demo.
    pub number: usize,
    /// Where it is.
    pub path: PathBuf,
    /// The bytes of it that count: it may grow meanwhile.
    pub bytes: u64,
}

/// A file in remote memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// Its number in the demo.
    pub number: usize,
    /// Its object.
    pub object: ObjectRef,
    /// Bytes of the file; its object has at least one.
    pub bytes: u64,
    /// Its digest, as its writer saw it before it wrote.
    pub sha256: String,
}

/// An address and a key, as a client shows them that checks nothing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Raw {
    /// The first byte.
    pub address: u64,
    /// The key.
    pub key: u32,
}

/// What a client process is to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Put files into kept objects. Answered with a [`Answer::Stored`] or [`Answer::Unreadable`] each, then
    /// [`Answer::Moved`].
    Store(Vec<Wanted>),
    /// Read objects back. Answered with a [`Answer::Fetched`] each, then [`Answer::Moved`].
    Fetch(Vec<Stored>),
    /// Ask for memory, exclusively.
    Allocate { bytes: u64, lifetime_us: u64, keep: bool },
    /// Ask for memory again and again, until some starts at this address.
    AllocateAt { address: u64, bytes: u64, tries_most: u32 },
    /// Ask for an object that exists, exclusively. Answered with [`Answer::Started`] right
    /// before the request goes out.
    Acquire { object: ObjectRef, lifetime_us: u64, wait_us: u64 },
    /// Write to a block that is held.
    Write { block: usize, text: String },
    /// Read from a block that is held.
    Read { block: usize, bytes: u32 },
    /// End a block's permission and let its memory go.
    Free { block: usize },
    /// Read without any check on this side.
    RawRead { at: Raw, bytes: u32 },
    /// Write without any check on this side.
    RawWrite { at: Raw, text: String },
    /// Write and read back until [`Order::Halt`]. Answered with [`Answer::Started`], then [`Answer::Traffic`].
    Traffic,
    /// The end of [`Order::Traffic`].
    Halt,
    /// Break rules, and see how long that interrupts.
    Offend { rounds: u32 },
    /// Measure reads.
    Measure { bytes: u32, reads: u32 },
}

/// What a client process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is attached.
    Ready {
        /// Its number on the node.
        client: u64,
    },
    /// A file is in remote memory.
    Stored(Stored),
    /// A file could not be read.
    Unreadable { number: usize, why: String },
    /// An object was read.
    Fetched { number: usize, sha256: String },
    /// That was all; time spent in remote operations.
    Moved { remote_us: u64 },
    /// A permission.
    Granted { block: usize, object: ObjectRef, at: Raw },
    /// The bytes that were read, and how long it took.
    Bytes { bytes: Vec<u8>, took_us: f64 },
    /// The NIC refused, and how long it took to say so.
    Violation { took_us: f64 },
    /// It has begun.
    Started,
    /// Done.
    Done,
    /// What traffic there was.
    Traffic(Traffic),
    /// What breaking rules cost.
    Guilt(Guilt),
    /// What reads take.
    Latency(Latency),
    /// The node said no to what it may say no to.
    Refused { why: String },
    /// It did not work out.
    Failed { why: String },
}

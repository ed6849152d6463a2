//! The demo's orders to its client processes, and their answers: one JSON object per line, on their standard input and
//! output. Objects are passed as references, as programs that share remote memory should do. Addresses and keys are
//! passed as bare numbers, for clients that misuse them.

use super::figures::{Content, Guilt, Latency, Traffic};
use portcullis::ObjectRef;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A file to write to remote memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The file's number in the demo.
    pub number: usize,
    /// The file's path.
    pub path: PathBuf,
    /// Number of bytes of the file that count. The file may grow meanwhile.
    pub bytes: u64,
}

/// A file in remote memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// The file's number in the demo.
    pub number: usize,
    /// The file's object.
    pub object: ObjectRef,
    /// Bytes of the file. Its object has at least one.
    pub bytes: u64,
    /// The file's digest, computed before it was written.
    pub sha256: String,
}

/// An address and a credential, for accesses without checks by the client library.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Raw {
    /// The first byte's address.
    pub address: u64,
    /// Index of the credential among the process's credentials: their order does not change.
    pub credential: usize,
}

/// An order to a client process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Write files to kept objects. The answer is a [`OrderReply::Stored`] or [`OrderReply::Unreadable`] for each file,
    /// then [`OrderReply::Moved`].
    Store(Vec<Wanted>),
    /// Read objects back. The answer is a [`OrderReply::Fetched`] for each object, then [`OrderReply::Moved`].
    Fetch(Vec<Stored>),
    /// Allocate memory, exclusively.
    Allocate { bytes: u64, lifetime_us: u64, keep: bool },
    /// Allocate memory again and again, until a block starts at this address.
    AllocateAt { address: u64, bytes: u64, tries_most: u32 },
    /// Acquire an existing object, exclusively. [`OrderReply::Started`] is sent right before the request.
    Acquire { object: ObjectRef, lifetime_us: u64, wait_us: u64 },
    /// Write to a held block.
    Write { block: usize, text: String },
    /// Read from a held block.
    Read { block: usize, bytes: u32 },
    /// Revoke a block's permission and free its memory.
    Free { block: usize },
    /// Read without any check by the client library.
    RawRead { at: Raw, bytes: u32 },
    /// Write without any check by the client library.
    RawWrite { at: Raw, text: String },
    /// Write and read back until [`Order::Halt`]. The answer is [`OrderReply::Started`], then [`OrderReply::Traffic`].
    Traffic,
    /// End [`Order::Traffic`].
    Halt,
    /// Break rules, and measure the interruption.
    Offend { rounds: u32 },
    /// Measure reads.
    Measure { bytes: u32, reads: u32 },
    /// Make a table. The answer is [`OrderReply::Table`]. A client that has received an order about a table works on
    /// tables for the rest of its life.
    MakeTable { lease_us: u64 },
    /// Insert this loader's keys until [`Order::Halt`], and some more after it. The answer is [`OrderReply::Started`],
    /// then [`OrderReply::Loaded`].
    Load { table: ObjectRef, loader: usize },
    /// Insert this loader's keys until one of them makes this client split the table, and stop in the middle of the
    /// split. The answer is [`OrderReply::Stands`].
    LoadIntoSplit { table: ObjectRef, loader: usize },
    /// Sweep the table, and examine all of it. The answer is [`OrderReply::Examined`].
    Examine { table: ObjectRef, loads: Vec<Load> },
}

impl Order {
    /// Whether a client that works on tables executes this order.
    pub fn is_about_a_table(&self) -> bool {
        matches!(
            self,
            Self::MakeTable { .. } | Self::Load { .. } | Self::LoadIntoSplit { .. } | Self::Examine { .. }
        )
    }
}

/// The keys of one loader, which are numbered from zero.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Keys that the loader received confirmation for.
    pub told: u64,
    /// Keys that the loader has begun to store: one more if it died while storing one.
    pub begun: u64,
}

/// An answer of a client process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderReply {
    /// The client is attached.
    Ready {
        /// The client's number on the node.
        client: u64,
    },
    /// A file is in remote memory.
    Stored(Stored),
    /// A file could not be read.
    Unreadable { number: usize, why: String },
    /// An object was read.
    Fetched { number: usize, sha256: String },
    /// All files or objects are done. The time was spent in remote operations.
    Moved { remote_us: u64 },
    /// A permission was granted.
    Granted { block: usize, object: ObjectRef, at: Raw },
    /// The bytes that were read, and the time of the read.
    Bytes { bytes: Vec<u8>, took_us: f64 },
    /// The NIC refused, after this time.
    Violation { took_us: f64 },
    /// The order was begun.
    Started,
    /// The order is done.
    Done,
    /// The results of traffic.
    Traffic(Traffic),
    /// The cost of violations.
    Guilt(Guilt),
    /// The latency of reads.
    Latency(Latency),
    /// The table exists.
    Table { table: ObjectRef },
    /// A loader has finished, with the time of its longest operation.
    Loaded { told: u64, longest_us: f64 },
    /// A loader has stopped in the middle of a split, with the number of buckets that it has moved.
    Stands { told: u64, moved: u32, buckets: u32 },
    /// The content of the table.
    Examined(Content),
    /// The node refused, as it may.
    Refused { why: String },
    /// The order failed.
    Failed { why: String },
}

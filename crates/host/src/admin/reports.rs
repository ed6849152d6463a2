//! The reports that an operator gets.

use crate::AuditStatus;
use crate::engine::TurnCounts;
use crate::wall::{WallClock, WallTime};
use portcullis_node::Counters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A tenant or a client that the node does not serve for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    /// The tenant's name.
    pub tenant: String,
    /// The client's number on the node. `None`: the tenant with all its clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<u64>,
    /// Whether everything that it held has ended. Otherwise it is paused: what it holds continues.
    pub barred: bool,
    /// Since when.
    pub since: WallTime,
    /// Until when, if the operator does not lift it.
    pub until: WallTime,
    /// The reason, in a few words.
    pub reason: String,
}

/// An attached client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// The node's number for it.
    pub client: u64,
    /// Its tenant's name.
    pub tenant: String,
    /// Its process, if it is on the node's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Permissions that it holds.
    pub permissions: u64,
    /// Bytes of the objects under those permissions; an object counts once for each permission.
    pub bytes: u64,
    /// Chunks that it holds, as far as the node has taken it up.
    #[serde(default)]
    pub chunks: u64,
    /// The accesses that it was refused since it attached.
    pub violations: Violations,
    /// Whether the node serves it. Bars and pauses of its tenant count.
    pub standing: Standing,
}

/// A client's refused accesses, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violations {
    /// With a key that the client had held until a moment before.
    pub late: u64,
    /// With a key that the client holds, where the key gives no access.
    pub stray: u64,
    /// With a key that it never had.
    pub guesses: u64,
}

/// Whether a node serves a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Standing {
    /// It is served.
    Good,
    /// Not before that time.
    Paused {
        /// When the pause ends.
        until: WallTime,
    },
    /// Not before that time, and all that it held has ended.
    Barred {
        /// When the bar ends.
        until: WallTime,
    },
}

/// What a node has counted, and the state of its audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// What the node has counted, and what it holds.
    pub counters: Counters,
    /// How long its thread's turns took.
    #[serde(default)]
    pub turns: Turns,
    /// Its audit log, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditStatus>,
}

/// How long the turns of a node's thread with something to do took since the node started. An operation may have to
/// wait for such a turn. Time in which other programs had the processor is included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// The longest, in microseconds.
    pub longest_us: u64,
    /// The longest by the processor time of the node's thread, in microseconds.
    pub longest_of_processor_us: u64,
    /// How many turns were shorter than so many microseconds, and not shorter than half of that.
    pub shorter_than_us: BTreeMap<u64, u64>,
}

impl Turns {
    pub(super) fn new(turns: &TurnCounts) -> Self {
        let counted = (0..).zip(turns.counts).filter(|&(_, count)| count > 0);
        Self {
            longest_us: turns.longest.0,
            longest_of_processor_us: turns.longest_of_processor.0,
            shorter_than_us: counted.map(|(power, count)| (1 << power, count)).collect(),
        }
    }
}

/// The machine's clock, at the present `now`.
pub(super) fn clock(now: portcullis_protocol::Moment) -> WallClock {
    WallClock::new(now, SystemTime::now().into())
}

impl Bar {
    pub(super) fn new(bar: &portcullis_node::Bar, clock: WallClock) -> Self {
        Self {
            tenant: bar.tenant.to_string(),
            client: bar.client.map(|client| client.0),
            barred: bar.barred,
            since: clock.at(bar.since),
            until: clock.at(bar.until),
            reason: bar.charge.reason().to_owned(),
        }
    }
}

impl ClientReport {
    pub(super) fn new(client: &portcullis_node::ClientReport, clock: WallClock) -> Self {
        let portcullis_node::Violations { late, stray, guesses } = client.violations;
        Self {
            client: client.id.0,
            tenant: client.tenant.to_string(),
            process: client.process,
            permissions: client.permissions,
            bytes: client.bytes,
            chunks: client.chunks,
            violations: Violations { late, stray, guesses },
            standing: match client.standing {
                portcullis_node::Standing::Good => Standing::Good,
                portcullis_node::Standing::Paused { until } => Standing::Paused { until: clock.at(until) },
                portcullis_node::Standing::Barred { until } => Standing::Barred { until: clock.at(until) },
            },
        }
    }
}

//! The result of a run.

use crate::oracle::Failure;
use crate::plan::FaultKind;
use serde::Serialize;
use std::collections::BTreeMap;

/// The result of one run. Two runs of the same plan have the same result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether no promise was broken.
    pub ok: bool,
    /// The run's seed.
    pub seed: u64,
    /// A hash of the trace: the same for the same seed and commit.
    #[serde(serialize_with = "hexadecimal")]
    pub trace_hash: u64,
    /// Number of events in virtual time.
    pub events: u64,
    /// Number of faults that happened, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Accesses that reached a memory and were executed.
    pub accesses: u64,
    /// Permissions granted.
    pub grants: u64,
    /// The most permissions that the nodes held at a time.
    pub permissions_peak: u64,
    /// Accesses that no live permission covered.
    pub violations_tried: u64,
    /// Accesses without a live permission that were refused.
    pub violations_refused: u64,
    /// Accesses under permissions that had just ended, over memory that no other client had been given since.
    pub late_and_harmless: u64,
    /// Virtual time of the run, in µs.
    pub virtual_us: u64,
    /// Promises that were broken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// The readable trace, if it was requested.
    #[serde(skip)]
    pub lines: Vec<String>,
}

fn hexadecimal<S: serde::Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{hash:016x}"))
}

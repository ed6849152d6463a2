//! What a run has shown.

use crate::oracle::Failure;
use crate::plan::FaultKind;
use serde::Serialize;
use std::collections::BTreeMap;

/// The result of one run. Two runs of one plan have the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// No promise was broken.
    pub ok: bool,
    /// The run's seed.
    pub seed: u64,
    /// Tells two runs apart: the same for the same seed and commit.
    #[serde(serialize_with = "hexadecimal")]
    pub trace_hash: u64,
    /// Events in virtual time.
    pub events: u64,
    /// Faults that happened, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Accesses that reached a memory and were carried out.
    pub accesses: u64,
    /// Permissions granted.
    pub grants: u64,
    /// The most permissions that the nodes held at a time.
    pub permissions_peak: u64,
    /// Accesses that no live permission covered.
    pub violations_tried: u64,
    /// Those of them that were refused.
    pub violations_refused: u64,
    /// Accesses under permissions that had just ended, over memory that nobody had been given since.
    pub late_and_harmless: u64,
    /// Virtual time, in µs.
    pub virtual_us: u64,
    /// Promises that were broken, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// The readable trace, if it was asked for.
    #[serde(skip)]
    pub lines: Vec<String>,
}

fn hexadecimal<S: serde::Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{hash:016x}"))
}

//! Costs of a program's far memory.

use crate::pages::Counters;
use portcullis_memory::userfault::PAGE;
use serde::Serialize;
use std::time::Duration;

/// Summary of a run of a program with far memory. Pages have 4096 bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Running time of the program in seconds.
    pub seconds: f64,
    /// Time in seconds during which at least one of its threads waited for a page that the monitor knew of.
    pub fault_seconds: f64,
    /// Share of `fault_seconds` in `seconds`, from 0 to 1.
    pub fault_share: f64,
    /// Faults, of all kinds.
    pub faults: u64,
    /// Faults that were first writes to pages that were local.
    pub first_writes: u64,
    /// Pages that were mapped as zeros.
    pub zeroed_pages: u64,
    /// Pages read from the node because the program touched them or their neighbours.
    pub fetched_pages: u64,
    /// Pages read from the node before the program touched them.
    pub prefetched_pages: u64,
    /// Prefetched pages that were mapped afterwards.
    pub prefetched_used_pages: u64,
    /// Pages taken out of the program's memory.
    pub evicted_pages: u64,
    /// Times that the kernel refused to take a page out, because it was pinned or locked.
    pub refused_pages: u64,
    /// Forks that the program and its children have made.
    pub forks: u64,
    /// Pages read from the node for forked children. They are not counted in `local_bytes_max`.
    pub child_pages: u64,
    /// Maximum number of bytes of anonymous memory that the program and its children were seen with at once, the local
    /// part of far memory included. The monitor checks it some times a second.
    pub own_bytes_max: u64,
    /// Pages that were taken out and touched again before they were dropped.
    pub second_chance_pages: u64,
    /// Pages written to the node.
    pub written_pages: u64,
    /// Accesses that wrote these pages.
    pub writes: u64,
    /// Bytes read from the node.
    pub bytes_read: u64,
    /// Bytes written to the node.
    pub bytes_written: u64,
    /// Maximum number of bytes that were local at once.
    pub local_bytes_max: u64,
    /// Maximum number of bytes that the program had mapped at once, which are a part of the local bytes.
    pub mapped_bytes_max: u64,
    /// Limit of the local bytes.
    pub local_bytes: u64,
    /// Chunks held on the node at the end.
    pub chunks: u64,
    /// Maximum number of chunks that were held at once.
    pub chunks_max: u64,
    /// Chunks that were allocated over the whole time.
    pub chunks_allocated: u64,
    /// Chunks that were freed before the end.
    pub chunks_freed: u64,
    /// Ranges that the program has handed over: one for each program that it executed in its own place.
    pub ranges: u64,
}

impl Summary {
    /// Adds the counters of the pages of one range.
    pub(crate) fn add(&mut self, counters: &Counters) {
        let page = PAGE as u64;
        self.faults += counters.faults;
        self.first_writes += counters.first_writes;
        self.zeroed_pages += counters.zeroed;
        self.fetched_pages += counters.fetched;
        self.prefetched_pages += counters.prefetched;
        self.prefetched_used_pages += counters.prefetched_used;
        self.evicted_pages += counters.evicted;
        self.refused_pages += counters.refused;
        self.child_pages += counters.inherited;
        self.second_chance_pages += counters.second_chances;
        self.written_pages += counters.saved;
        self.writes += counters.saves;
        self.bytes_read += (counters.fetched + counters.prefetched + counters.inherited) * page;
        self.bytes_written += counters.saved * page;
        self.mapped_bytes_max = self.mapped_bytes_max.max(u64::from(counters.mapped_max) * page);
        let local = u64::from(counters.mapped_max) + u64::from(counters.held_max);
        self.local_bytes_max = self.local_bytes_max.max(local * page);
    }

    /// Records how much anonymous memory the program and its children have now.
    pub(crate) fn see_own(&mut self, bytes: u64) {
        self.own_bytes_max = self.own_bytes_max.max(bytes);
    }

    /// Maximum number of bytes of the program's memory that were far: mapped from the range, or on the node.
    #[must_use]
    pub fn far_bytes_max(&self) -> u64 {
        self.mapped_bytes_max + self.chunks_max * crate::SEGMENT_BYTES
    }

    /// Share of the program's memory that was far, from 0 to 1. The size of the rest is the largest that was seen.
    #[must_use]
    pub fn far_share(&self) -> f64 {
        let near = self.own_bytes_max.saturating_sub(self.mapped_bytes_max);
        let all = self.far_bytes_max() + near;
        // Far below 2⁵² bytes.
        #[expect(clippy::cast_precision_loss, reason = "a share of a few digits")]
        let share = |part: u64, all: u64| part as f64 / all as f64;
        if all == 0 { 0.0 } else { share(self.far_bytes_max(), all) }
    }

    /// Records how long the program ran, and how long it waited.
    pub(crate) fn set_times(&mut self, whole: Duration, faults: Duration) {
        self.seconds = whole.as_secs_f64();
        self.fault_seconds = faults.as_secs_f64();
        self.fault_share = if self.seconds > 0.0 { self.fault_seconds / self.seconds } else { 0.0 };
    }
}

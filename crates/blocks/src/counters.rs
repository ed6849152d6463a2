//! Counts of what became of keys.

/// Counts since the handle was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Blocks that were read as a whole.
    pub hits: u64,
    /// Keys without a block.
    pub absent: u64,
    /// Blocks of another length than the caller's buffer.
    pub other_length: u64,
    /// Blocks that were freed when the handle wanted to read them: evicted, or lost with their node.
    pub gone: u64,
    /// Blocks that another client held exclusively, to store or to evict them.
    pub busy: u64,
    /// Reads that the node refused since their permission had ended.
    pub late: u64,
    /// Look-ups and reads that failed for another reason.
    pub failed: u64,
    /// Blocks that were stored.
    pub stored: u64,
    /// Blocks that were there already, and were not stored again.
    pub there_already: u64,
    /// Blocks that were not stored since there is no room.
    pub refused: u64,
    /// Blocks that this handle has evicted.
    pub evicted: u64,
    /// Bytes of blocks that this handle has evicted.
    pub evicted_bytes: u64,
    /// Blocks that the handle has removed.
    pub removed: u64,
}

impl Counters {
    /// Returns the sums of these counts and others.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            absent: self.absent + other.absent,
            other_length: self.other_length + other.other_length,
            gone: self.gone + other.gone,
            busy: self.busy + other.busy,
            late: self.late + other.late,
            failed: self.failed + other.failed,
            stored: self.stored + other.stored,
            there_already: self.there_already + other.there_already,
            refused: self.refused + other.refused,
            evicted: self.evicted + other.evicted,
            evicted_bytes: self.evicted_bytes + other.evicted_bytes,
            removed: self.removed + other.removed,
        }
    }

    /// Returns each count with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("hits", self.hits),
            ("absent", self.absent),
            ("other_length", self.other_length),
            ("gone", self.gone),
            ("busy", self.busy),
            ("late", self.late),
            ("failed", self.failed),
            ("stored", self.stored),
            ("there_already", self.there_already),
            ("refused", self.refused),
            ("evicted", self.evicted),
            ("evicted_bytes", self.evicted_bytes),
            ("removed", self.removed),
        ]
    }
}

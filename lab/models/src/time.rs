//! Virtual time.

/// Virtual time in ns from the beginning of a run.
pub(crate) type Nanos = u64;

pub(crate) const MICROSECOND: Nanos = 1000;
pub(crate) const MILLISECOND: Nanos = 1_000_000;

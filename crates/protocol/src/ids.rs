//! The types of names and quantities: one type for each meaning.

use std::fmt;

/// A byte address in a node's memory, as a work request names it. 48 bits are used (Patronus §5.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RemoteAddress(pub u64);

impl RemoteAddress {
    /// The address `bytes` further on, or `None` if that would wrap.
    #[must_use]
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

impl fmt::Debug for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A remote key: the upper 24 bits name a region or window on its NIC, the low 8 bits are the key that every
/// bind advances.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rkey(pub u32);

impl Rkey {
    /// The key of entry `index` with low byte `key`.
    #[must_use]
    pub fn new(index: u32, key: u8) -> Self {
        Self(index << 8 | u32::from(key))
    }

    /// The index of the region or window of the NIC that this key names: 24 bits.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The low byte: the part that every bind changes.
    #[must_use]
    pub fn low_byte(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// The key for the next bind of the same window (`ibv_inc_rkey`): the low byte plus one, wrapping.
    #[must_use]
    pub fn advanced(self) -> Self {
        Self::new(self.index(), self.low_byte().wrapping_add(1))
    }
}

impl fmt::Debug for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}.{:02x}", self.index(), self.low_byte())
    }
}

/// A point in the node's time: microseconds since the node started. Only the node reads a clock for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `lifetime` later. Saturates: a moment that far away is never reached.
    #[must_use]
    pub fn after(self, lifetime: Lifetime) -> Self {
        Self(self.0.saturating_add(lifetime.0))
    }

    /// The time since `earlier`; zero if `earlier` is still in the future.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Lifetime {
        Lifetime(self.0.saturating_sub(earlier.0))
    }
}

/// A duration, in microseconds. In a permission's lifetime word, zero is the node's notice that the permission cannot
/// be extended any more (Patronus §5.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Lifetime(pub u64);

impl Lifetime {
    /// The duration of `micros` microseconds.
    #[must_use]
    pub const fn micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The duration of `millis` milliseconds.
    #[must_use]
    pub const fn millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// The duration of `seconds` seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }
}

impl From<std::time::Duration> for Lifetime {
    fn from(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Lifetime> for std::time::Duration {
    fn from(lifetime: Lifetime) -> Self {
        Self::from_micros(lifetime.0)
    }
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            micros if micros >= 1_000_000 && micros % 100_000 == 0 => {
                write!(f, "{}.{} s", micros / 1_000_000, micros / 100_000 % 10)
            }
            micros if micros >= 1_000 && micros % 100 == 0 => {
                write!(f, "{}.{} ms", micros / 1_000, micros / 100 % 10)
            }
            micros => write!(f, "{micros} µs"),
        }
    }
}

/// The tenant that a client acts for. Tenants share a node and nothing else: each has its own protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TenantId(pub u32);

/// An attached client of a node. Numbers are not used again while the node runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ClientId(pub u64);

/// A run of a node, from its start to its end: a random number that distinguishes it from every other run of any node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Names a permission on its node by the address of its header and the time when it started. The start time keeps an
/// obsolete request from ending a permission that took over the header (Patronus §5.6, double invalidation).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PermissionId {
    /// The address of the permission's 32-byte header.
    pub header: RemoteAddress,
    /// The moment at which the node granted the permission.
    pub start: Moment,
}

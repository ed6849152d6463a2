//! The features of a device, and the guarantees that it keeps.

use crate::ChainFeatures;
use std::fmt;

/// The accesses with respect to which a NIC's atomics are atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicScope {
    /// The NIC has no atomics.
    None,
    /// Atomic with respect to other atomics of the same NIC, but not to the CPU's (`IBV_ATOMIC_HCA`).
    Nic,
    /// Atomic with respect to the CPU's atomics as well (`IBV_ATOMIC_GLOB`).
    System,
}

/// A guarantee that permissions rest on, and that a device may fail to keep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Guarantee {
    /// A window of type 1 refuses accesses outside its byte range.
    WindowRange,
    /// A window of type 1 refuses accesses without its rights.
    WindowRights,
    /// The key of an earlier bind of a type-1 window is refused.
    StaleKey,
    /// A type-2 window refuses other queue pairs.
    WindowQueuePair,
    /// Keys of another protection domain are refused.
    ProtectionDomain,
    /// A memory region refuses accesses outside its byte range. The conformance suite excuses no device from this
    /// guarantee and the next three.
    RegionRange,
    /// A memory region refuses accesses without its rights.
    RegionRights,
    /// The key of a deregistered memory region is refused.
    RegionEnd,
    /// A queue pair refuses what its access flags do not allow, also when they change while it is in service.
    QueuePairRights,
    /// A window of type 2 refuses accesses outside its byte range, as in [`Guarantee::WindowRange`]. A device may keep
    /// to the bounds of one type alone.
    Type2Range,
    /// A window of type 2 refuses accesses without its rights, as in [`Guarantee::WindowRights`].
    Type2Rights,
    /// The key of a type-2 window that was invalidated is refused.
    Type2StaleKey,
}

impl Guarantee {
    /// All guarantees.
    pub const ALL: [Self; 12] = [
        Self::WindowRange,
        Self::WindowRights,
        Self::StaleKey,
        Self::WindowQueuePair,
        Self::ProtectionDomain,
        Self::RegionRange,
        Self::RegionRights,
        Self::RegionEnd,
        Self::QueuePairRights,
        Self::Type2Range,
        Self::Type2Rights,
        Self::Type2StaleKey,
    ];

    /// The corresponding guarantee for windows of type 2, if there is one; otherwise the guarantee itself.
    #[must_use]
    pub fn of_type_2(self) -> Self {
        match self {
            Self::WindowRange => Self::Type2Range,
            Self::WindowRights => Self::Type2Rights,
            Self::StaleKey => Self::Type2StaleKey,
            other => other,
        }
    }

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WindowRange => "range",
            Self::WindowRights => "rights",
            Self::StaleKey => "stale-key",
            Self::WindowQueuePair => "window-queue-pair",
            Self::ProtectionDomain => "protection-domain",
            Self::RegionRange => "region-range",
            Self::RegionRights => "region-rights",
            Self::RegionEnd => "region-end",
            Self::QueuePairRights => "queue-pair-rights",
            Self::Type2Range => "type-2-range",
            Self::Type2Rights => "type-2-rights",
            Self::Type2StaleKey => "type-2-stale-key",
        }
    }
}

/// A set of guarantees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GuaranteeSet(u16);

impl GuaranteeSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set as a number: a bit for each of [`Guarantee::ALL`], in that order.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set with these bits, if each of them stands for a guarantee.
    #[must_use]
    pub fn of_bits(bits: u16) -> Option<Self> {
        (bits >> Guarantee::ALL.len() == 0).then_some(Self(bits))
    }

    /// Iterates over the guarantees in the set.
    pub fn iter(self) -> impl Iterator<Item = Guarantee> {
        (0..)
            .zip(Guarantee::ALL)
            .filter(move |(bit, _)| self.0 >> bit & 1 == 1)
            .map(|(_, guarantee)| guarantee)
    }
}

impl FromIterator<Guarantee> for GuaranteeSet {
    fn from_iter<I: IntoIterator<Item = Guarantee>>(guarantees: I) -> Self {
        let bit = |guarantee| Guarantee::ALL.iter().position(|&it| it == guarantee).map_or(0, |at| 1 << at);
        Self(guarantees.into_iter().map(bit).fold(0, |bits, bit: u16| bits | bit))
    }
}

impl fmt::Debug for GuaranteeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// An owner's mistake that crashes some devices, or the kernel under them. On a device known to crash, no code makes
/// the mistake on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Misuse {
    /// Invalidating a type-2 window that is free already, by the owner's request or by a peer's message.
    InvalidateFreeWindow,
    /// Destroying a queue pair while a type-2 window is bound to it.
    QueuePairBeforeBoundWindow,
}

impl Misuse {
    /// The reason for which a test of this mistake is left out.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::InvalidateFreeWindow => {
                "the device does not survive the invalidation of a free window of type 2: this is not tried"
            }
            Self::QueuePairBeforeBoundWindow => {
                "the device does not survive the end of a queue pair before a type-2 window bound to it: \
                 this is not tried"
            }
        }
    }
}

/// The features and limits of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The device's name, for reports.
    pub name: String,
    /// Whether the device has windows of type 1.
    pub window_type_1: bool,
    /// Whether the device has windows of type 2 (2B: tied to a queue pair).
    pub window_type_2: bool,
    /// Whether a bind of a type-1 window accepts any low byte for the window's key. Other devices accept only the next
    /// one, since `ibv_bind_mw` has no more.
    pub chosen_keys: bool,
    /// The scope of the device's atomics.
    pub atomics: AtomicScope,
    /// The most windows that can be allocated at once.
    pub windows_max: u32,
    /// The most requests a send queue can hold.
    pub send_depth_max: u32,
    /// The most entries a completion queue can hold.
    pub completion_depth_max: u32,
    /// Whether a queue pair's state also shows that its peer's end broke, because both ends are on this NIC. On other
    /// devices the node has to trust a client that reports, after too long without an answer, that its end is broken.
    pub sees_peer_ends: bool,
    /// The device's features for chains.
    pub chains: ChainFeatures,
    /// Guarantees that the device is known not to keep: the suite expects exactly these to fail.
    pub unenforced: Vec<Guarantee>,
    /// Mistakes that crash the device or its kernel: neither the suite nor an examination makes them on purpose.
    pub crashes_on: Vec<Misuse>,
    /// Names of promises of the conformance suite that the device is known to break, beside those that `unenforced`
    /// stands for. They have to fail: if one holds, that is an error.
    pub deviations: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_guarantees_reads_back_from_its_number() {
        let all: GuaranteeSet = Guarantee::ALL.into_iter().collect();
        assert!(all.iter().eq(Guarantee::ALL));
        for some in
            [vec![], vec![Guarantee::StaleKey], vec![Guarantee::WindowRange, Guarantee::QueuePairRights]]
        {
            let set: GuaranteeSet = some.iter().copied().collect();
            assert_eq!(GuaranteeSet::of_bits(set.bits()), Some(set));
            assert!(set.iter().eq(some));
        }
        assert_eq!(GuaranteeSet::of_bits(all.bits() + 1), None);
    }
}

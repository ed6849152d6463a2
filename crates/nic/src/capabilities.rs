//! What a device can do, and which guarantees it keeps.

/// Against what a NIC's atomics are atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicScope {
    /// It has none.
    None,
    /// Other atomics of the same NIC only: the CPU's are not ordered with them (`IBV_ATOMIC_HCA`).
    Nic,
    /// The CPU's too (`IBV_ATOMIC_GLOB`).
    System,
}

/// A guarantee that a permission rests on and that a device may fail to keep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Guarantee {
    /// A window refuses accesses outside its byte range.
    WindowRange,
    /// A window refuses accesses without its rights.
    WindowRights,
    /// The key of an earlier bind is refused.
    StaleKey,
    /// A type-2 window refuses other queue pairs.
    WindowQueuePair,
    /// Keys of another protection domain are refused.
    ProtectionDomain,
}

/// Misuse that takes a device, or its kernel, down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Misuse {
    /// Invalidating a type-2 window that is free.
    InvalidateFreeWindow,
    /// Destroying a queue pair that a type-2 window is bound to.
    QueuePairBeforeBoundWindow,
}

/// What a device is able to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The device's name, for reports.
    pub name: String,
    /// It has windows of type 1.
    pub window_type_1: bool,
    /// It has windows of type 2 (2B: tied to a queue pair).
    pub window_type_2: bool,
    /// The scope of its atomics.
    pub atomics: AtomicScope,
    /// The most windows that can be allocated at once.
    pub windows_max: u32,
    /// The most requests a send queue can hold.
    pub send_depth_max: u32,
    /// The most entries a completion queue can hold.
    pub completion_depth_max: u32,
    /// A queue pair's state also tells when its peer's end broke: so where both ends are on this NIC. Elsewhere a
    /// client that had no answer for too long has to be believed when it says that its end is broken.
    pub sees_peer_ends: bool,
    /// Guarantees that the device is known not to keep: the suite expects exactly these to fail.
    pub unenforced: Vec<Guarantee>,
    /// Promises of the suite, by name, that the device is known to break beside those under a guarantee.
    pub deviations: Vec<&'static str>,
    /// Misuse that must not be tried on it.
    pub crashes_on: Vec<Misuse>,
}

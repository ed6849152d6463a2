//! Which protection mechanisms work on a device, and which a node takes by default.

use portcullis_nic::{Capabilities, Guarantee};
use portcullis_protocol::Mechanism;

/// The guarantees that a mechanism rests on. Windows lie over a region whose own key must open nothing.
#[must_use]
pub fn rests_on(mechanism: Mechanism) -> &'static [Guarantee] {
    use Guarantee::{
        ProtectionDomain, QueuePairRights, RegionEnd, RegionRange, RegionRights, StaleKey, Type2Range,
        Type2Rights, Type2StaleKey, WindowQueuePair, WindowRange, WindowRights,
    };
    match mechanism {
        Mechanism::MemoryWindow => &[WindowRange, WindowRights, StaleKey, ProtectionDomain, RegionRights],
        Mechanism::WindowGroup => {
            &[Type2Range, Type2Rights, Type2StaleKey, WindowQueuePair, ProtectionDomain, RegionRights]
        }
        Mechanism::MemoryRegion => &[RegionRange, RegionRights, RegionEnd, ProtectionDomain],
        Mechanism::QueuePair => &[QueuePairRights, ProtectionDomain],
        // Peers are allowed no access at all.
        Mechanism::NodeCopy => &[QueuePairRights],
        // No NIC takes part in this mechanism.
        Mechanism::RegionKey => &[],
        Mechanism::None => &[],
    }
}

/// Returns what a mechanism needs and the device does not have or does not keep.
fn missing(mechanism: Mechanism, capabilities: &Capabilities) -> Vec<&'static str> {
    let windows = match mechanism {
        Mechanism::MemoryWindow => (!capabilities.window_type_1).then_some("windows of type 1"),
        Mechanism::WindowGroup => (!capabilities.window_type_2).then_some("windows of type 2"),
        _ => None,
    };
    let unkept = rests_on(mechanism).iter().filter(|it| capabilities.unenforced.contains(it));
    windows.into_iter().chain(unkept.map(|it| it.name())).collect()
}

/// The mechanisms that hold on a device, in the order of [`Mechanism::ALL`], without `none`, which promises nothing.
#[must_use]
pub fn mechanisms_that_hold(capabilities: &Capabilities) -> Vec<Mechanism> {
    let mut all = Mechanism::ALL.to_vec();
    all.retain(|&mechanism| mechanism != Mechanism::None && missing(mechanism, capabilities).is_empty());
    all
}

/// Returns the mechanism that a node takes on a device by default, and why: `memory-window`, else `window-group`, else
/// `memory-region`, else `node-copy`. The default is never `queue-pair`, which enforces no byte range: an operator has
/// to choose it explicitly.
#[must_use]
pub fn mechanism_for(capabilities: &Capabilities) -> (Mechanism, String) {
    let windows = missing(Mechanism::MemoryWindow, capabilities);
    if windows.is_empty() {
        let reason = "windows of type 1 keep their range, their rights, their keys and their domain";
        return (Mechanism::MemoryWindow, reason.to_owned());
    }
    let windows = format!("memory-window would need {}", windows.join(", "));
    let groups = missing(Mechanism::WindowGroup, capabilities);
    if groups.is_empty() {
        let reason = format!("{windows}; windows of type 2 keep theirs, one for each queue pair of a client");
        return (Mechanism::WindowGroup, reason);
    }
    let windows = format!("{windows}; window-group would need {}", groups.join(", "));
    let regions = missing(Mechanism::MemoryRegion, capabilities);
    if regions.is_empty() {
        let reason = format!("{windows}; regions keep theirs, and each permission costs a registration");
        return (Mechanism::MemoryRegion, reason);
    }
    let weaker = format!("{windows}; memory-region would need {}", regions.join(", "));
    let node_copy = missing(Mechanism::NodeCopy, capabilities);
    if node_copy.is_empty() {
        return (Mechanism::NodeCopy, format!("{weaker}; the node copies, and no access is one-sided"));
    }
    let reason = format!(
        "{weaker}; the flags of queue pairs are not enforced either: lend nothing through this device"
    );
    (Mechanism::NodeCopy, reason)
}

//! The choice of the mechanism for a node on a device. The device's guarantees are examined, not trusted.

use super::RdmaConfig;
use crate::HostError;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_examination::{mechanism_for, mechanisms_that_hold, rests_on, unenforced};
use portcullis_ibverbs::{IbNic, WorkRequests};
use portcullis_nic::{Capabilities, Guarantee, Nic};
use portcullis_protocol::Mechanism;

/// The device does not keep a guarantee that the mechanism rests on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{mechanism} protects nothing on {device}: it needs guarantees that the device does not keep, {lacking}. \
     Mechanisms that protect there: {instead}. See `portcullis doctor`; to accept the danger, add \
     --allow-unenforced {lacking}"
)]
pub struct Unenforced {
    /// The device.
    pub device: String,
    /// The mechanism in the configuration.
    pub mechanism: Mechanism,
    /// The guarantees that the device does not keep.
    pub lacking: String,
    /// The mechanisms that protect on this device.
    pub instead: String,
}

impl Coded for Unenforced {
    fn code(&self) -> ErrorCode {
        ErrorCode::Unenforced
    }
}

/// Returns the mechanism for a node whose configuration names `wanted`, and the guarantees that it rests on and that
/// the device does not keep.
pub(super) fn choose(rdma: &RdmaConfig, wanted: Mechanism) -> Result<(Mechanism, Vec<Guarantee>), HostError> {
    let open = || Ok(IbNic::open(&rdma.device, WorkRequests::default())?);
    let mut capabilities = open()?.capabilities();
    capabilities.unenforced = unenforced(open)?;
    judge(rdma, wanted, &capabilities)
}

fn judge(
    rdma: &RdmaConfig,
    wanted: Mechanism,
    capabilities: &Capabilities,
) -> Result<(Mechanism, Vec<Guarantee>), HostError> {
    if rdma.pick_mechanism {
        let (mechanism, reason) = mechanism_for(capabilities);
        tracing::info!(%mechanism, reason, "chosen for this device");
        return Ok((mechanism, Vec::new()));
    }
    if wanted == Mechanism::MemoryWindow && !capabilities.window_type_1 {
        return Err(HostError::Config("the device has no windows of type 1: see --protection window-group"));
    }
    if wanted == Mechanism::WindowGroup && !capabilities.window_type_2 {
        return Err(HostError::Config("the device has no windows of type 2: see --protection memory-window"));
    }
    let mut lacking = rests_on(wanted).to_vec();
    lacking.retain(|guarantee| capabilities.unenforced.contains(guarantee));
    let names =
        |guarantees: &[Guarantee]| guarantees.iter().map(|it| it.name()).collect::<Vec<_>>().join(",");
    let refused: Vec<Guarantee> =
        lacking.iter().copied().filter(|guarantee| !rdma.allow_unenforced.contains(guarantee)).collect();
    if refused.is_empty() {
        if !lacking.is_empty() {
            tracing::warn!(
                device = capabilities.name,
                lacking = names(&lacking),
                "permissions do not protect this"
            );
        }
        return Ok((wanted, lacking));
    }
    let holding: Vec<String> = mechanisms_that_hold(capabilities).iter().map(ToString::to_string).collect();
    Err(HostError::Unenforced(Unenforced {
        device: capabilities.name.clone(),
        mechanism: wanted,
        lacking: names(&refused),
        instead: holding.join(", "),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_nic::AtomicScope;

    fn device(unenforced: Vec<Guarantee>) -> Capabilities {
        Capabilities {
            chosen_keys: false,
            name: "mlx9_0".to_owned(),
            window_type_1: true,
            window_type_2: true,
            atomics: AtomicScope::Nic,
            windows_max: 1024,
            send_depth_max: 1024,
            completion_depth_max: 1024,
            sees_peer_ends: false,
            unenforced,
            deviations: Vec::new(),
            chains: portcullis_nic::ChainFeatures::empty(),
            crashes_on: Vec::new(),
        }
    }

    #[test]
    fn windows_without_a_range_are_refused_unless_that_is_allowed() {
        let device = device(vec![Guarantee::WindowRange]);
        let refused = judge(&RdmaConfig::default(), Mechanism::MemoryWindow, &device).expect_err("no range");
        let text = refused.to_string();
        for part in ["mlx9_0", "--allow-unenforced range", "memory-region"] {
            assert!(text.contains(part), "{text}");
        }
        let allowed = RdmaConfig { allow_unenforced: vec![Guarantee::WindowRange], ..RdmaConfig::default() };
        let chosen = judge(&allowed, Mechanism::MemoryWindow, &device).expect("allowed");
        assert_eq!(chosen, (Mechanism::MemoryWindow, vec![Guarantee::WindowRange]));
    }

    #[test]
    fn what_is_allowed_allows_nothing_else() {
        let device = device(vec![Guarantee::WindowRange, Guarantee::StaleKey]);
        let allowed = RdmaConfig { allow_unenforced: vec![Guarantee::WindowRange], ..RdmaConfig::default() };
        let refused = judge(&allowed, Mechanism::MemoryWindow, &device).expect_err("stale keys");
        assert!(refused.to_string().ends_with("--allow-unenforced stale-key"), "{refused}");
    }

    #[test]
    fn a_node_that_does_not_mind_gets_what_holds() {
        let picking = RdmaConfig { pick_mechanism: true, ..RdmaConfig::default() };
        let windows = judge(&picking, Mechanism::None, &device(Vec::new())).expect("windows");
        assert_eq!(windows.0, Mechanism::MemoryWindow);
        let of_type_2 = Capabilities { window_type_1: false, ..device(Vec::new()) };
        let groups = judge(&picking, Mechanism::None, &of_type_2).expect("windows of type 2");
        assert_eq!(groups.0, Mechanism::WindowGroup);
        let neither = device(vec![Guarantee::WindowRange, Guarantee::Type2Range]);
        let regions = judge(&picking, Mechanism::None, &neither).expect("regions");
        assert_eq!(regions.0, Mechanism::MemoryRegion);
    }
}

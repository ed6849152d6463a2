//! The conformance suite on an RDMA device: the first one of this machine, or the one that PORTCULLIS_DEVICE names. The
//! tests are ignored unless cargo gets a flag, since a run without a device would prove nothing: `cargo test -p
//! portcullis-ibverbs -- --ignored`.

use portcullis_conformance::{self as suite, PromiseOutcome};
use portcullis_ibverbs::{DeviceChoice, IbNic, WorkRequests};

fn keeps_its_promises(requests: WorkRequests) {
    let choice = DeviceChoice { device: std::env::var("PORTCULLIS_DEVICE").ok(), ..DeviceChoice::default() };
    let report = suite::run(|| IbNic::open(&choice, requests).expect("an RDMA device"));
    for (promise, outcome) in &report.outcomes {
        if !matches!(outcome, PromiseOutcome::Kept) {
            eprintln!("{promise} on {}: {outcome}", report.device);
        }
    }
    let kept = report.outcomes.iter().filter(|(_, outcome)| matches!(outcome, PromiseOutcome::Kept)).count();
    eprintln!("{}: {kept} of {} promises kept", report.device, report.outcomes.len());
    let broken = report.outcomes.iter().filter(|(_, outcome)| outcome.is_failure()).count();
    assert_eq!(broken, 0, "{broken} promises are not as this device's list has them: see above");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_keeps_its_promises_with_ibv_wr() {
    keeps_its_promises(WorkRequests::Extended);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_keeps_its_promises_with_ibv_post_send() {
    keeps_its_promises(WorkRequests::Classic);
}

//! The demo on an RDMA device. The test is ignored by default, because it needs a device. It is written for Soft-RoCE,
//! whose deviations it expects by name.

use serde_json::Value;
use std::process::Command;

#[test]
#[ignore = "needs an RDMA device"]
fn everything_that_the_demo_shows_holds_on_a_device() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, length) in [("short", 5), ("long", 700_000)] {
        std::fs::write(folder.path().join(name), vec![7; length]).expect("a file");
    }
    let folder = folder.path().to_str().expect("text");
    let output = Command::new(env!("CARGO_BIN_EXE_portcullis-lab"))
        .args(["demo", "--json", "--nic", "ibverbs", folder])
        .output()
        .expect("the program starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(report["problems"], serde_json::json!([]), "{report:#}");
    assert_eq!(report["late_reader"]["protected"]["protection"], "memory-region");
    assert_eq!(report["late_reader"]["unprotected"]["got"], report["late_reader"]["secret"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

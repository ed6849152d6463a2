//! What breaking the rules costs: pauses, and in the end the door.

use crate::attacker::Attacker;
use crate::canary::Canary;
use crate::stage::{BLUE, RED, Stage, lenient, wait_for};
use portcullis::host::admin::Admin;
use portcullis::{ConnectError, Lifetime, NodeConfig, Refusal, SessionOptions, ViolationLimits};
use portcullis_host::software::{AttachError, attach};
use portcullis_nic::Status;
use std::time::Duration;

/// As by default, but for pauses that a test can wait for.
fn strict() -> NodeConfig {
    let (pause_min, pause_max) = (Lifetime::micros(10), Lifetime::micros(100));
    let violations = ViolationLimits { pause_min, pause_max, ..ViolationLimits::default() };
    NodeConfig { violations, ..lenient() }
}

/// Goes through a sibling's 256 keys, the right one last. Returns how many were tried.
fn go_through_keys(attacker: &mut Attacker, sibling: &Canary) -> u32 {
    for tried in 1..=256 {
        let rkey = sibling.key() & !0xff | (sibling.key() + tried) & 0xff;
        let status = attacker.try_read(0, sibling.address(), rkey, 8);
        assert_eq!(status, Status::RemoteAccessError, "guess {tried} hit");
        match attacker.recover(0) {
            Ok(()) => {}
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Barred);
                return tried;
            }
        }
    }
    panic!("all 256 keys could be tried");
}

#[test]
fn whoever_guesses_a_siblings_key_is_barred_before_it_hits_and_others_notice_nothing() {
    let stage = Stage::with(strict(), &[BLUE, "green"]);
    let sibling = Canary::new(stage.host.connect(RED, SessionOptions::default()).expect("a session"), 4096);
    let mut attacker = stage.attacker();
    let tried = go_through_keys(&mut attacker, &sibling);
    assert!((80..256).contains(&tried), "barred after {tried}");
    assert!(stage.host.counters().violations >= u64::from(tried));
    // The bar is the tenant's: for those who are there, and for those who come.
    let refused = attach(&stage.socket(RED), 4096, Duration::from_secs(20)).expect_err("barred");
    assert!(matches!(&refused, AttachError::Refused(why) if why.contains("barred")), "{refused}");
    let refused = stage.host.connect(RED, SessionOptions::default()).expect_err("barred");
    assert!(matches!(&refused, ConnectError::Host(why) if why.contains("barred")), "{refused}");
    drop(attach(&stage.socket(BLUE), 4096, Duration::from_secs(20)).expect("others come and go"));
    wait_for("the audit log", || {
        let log = std::fs::read_to_string(stage.audit()).expect("there is a log");
        ["violation", "pause", "bar"].iter().all(|event| log.contains(&format!("\"{event}\"")))
    });
    // Until the operator lifts it.
    let admin = Admin::at(stage.admin_socket());
    let bars = admin.bars().expect("the node answers");
    assert!(bars.iter().any(|bar| bar.tenant == RED && bar.client.is_none() && bar.barred), "{bars:?}");
    assert!(admin.unbar(RED).expect("the node answers"));
    stage.assert_serves(RED);
    drop(attach(&stage.socket(RED), 4096, Duration::from_secs(20)).expect("it may come again"));
    drop((attacker, sibling));
    stage.clear();
}

//! The cost of breaking the rules: pauses, and at the end a bar.

use crate::attacker::Attacker;
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, lenient, wait_for};
use portcullis::host::admin::Admin;
use portcullis::{ConnectError, Lifetime, NodeConfig, Refusal, SessionOptions, ViolationLimits};
use portcullis_host::software::{AttachError, attach};
use portcullis_nic::Status;
use std::time::Duration;

/// Makes the default configuration, but with pauses that are short enough for a test.
fn strict() -> NodeConfig {
    let (pause_min, pause_max) = (Lifetime::micros(10), Lifetime::micros(100));
    let violations = ViolationLimits { pause_min, pause_max, ..ViolationLimits::default() };
    NodeConfig { violations, ..lenient() }
}

/// Tries a sibling's 256 keys, the right key last. Returns how many were tried.
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
    let rig = Rig::with(strict(), &[BLUE, "green"]);
    let sibling = Canary::new(rig.host.connect(RED, SessionOptions::default()).expect("a session"), 4096);
    let mut attacker = rig.attacker();
    let tried = go_through_keys(&mut attacker, &sibling);
    assert!((80..256).contains(&tried), "barred after {tried}");
    assert!(rig.host.counters().violations >= u64::from(tried));
    // The bar applies to the whole tenant: to its attached clients and to new ones.
    let refused = attach(&rig.socket(RED), 4096, Duration::from_secs(20)).expect_err("barred");
    assert!(matches!(&refused, AttachError::Refused(why) if why.contains("barred")), "{refused}");
    let refused = rig.host.connect(RED, SessionOptions::default()).expect_err("barred");
    assert!(matches!(&refused, ConnectError::Host(why) if why.contains("barred")), "{refused}");
    drop(attach(&rig.socket(BLUE), 4096, Duration::from_secs(20)).expect("others come and go"));
    wait_for("the audit log", || {
        let log = std::fs::read_to_string(rig.audit()).expect("there is a log");
        ["violation", "pause", "bar"].iter().all(|event| log.contains(&format!("\"{event}\"")))
    });
    // The bar holds until the operator lifts it.
    let admin = Admin::at(rig.admin_socket());
    let bars = admin.bars().expect("the node answers");
    assert!(bars.iter().any(|bar| bar.tenant == RED && bar.client.is_none() && bar.barred), "{bars:?}");
    assert!(admin.unbar(RED).expect("the node answers"));
    rig.assert_serves(RED);
    drop(attach(&rig.socket(RED), 4096, Duration::from_secs(20)).expect("it may come again"));
    drop((attacker, sibling));
    rig.clear();
}

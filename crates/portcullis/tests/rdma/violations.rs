//! The cost of breaking the rules: pauses, and at the end a bar.

use crate::attacker::{ATTACH_WITHIN, PLAIN, make};
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, lenient, wait_for};
use portcullis::{ConnectError, Lifetime, NodeConfig, Refusal, SessionOptions, ViolationLimits};
use portcullis_attach::tls::{AttachError, attach};
use portcullis_nic::Status;

/// `FREE` violations cost nothing. The next ones cost a pause each, and number `PAUSES` bars the tenant.
const FREE: u32 = 4;
const PAUSES: u32 = 8;

/// A configuration in which no violation is forgiven during the test. Pauses are short, but long enough to be observed.
fn strict() -> NodeConfig {
    let violations = ViolationLimits {
        free_max: FREE,
        free_again: Lifetime::seconds(3600),
        pause_min: Lifetime::millis(100),
        pause_max: Lifetime::millis(100),
        bar_after: PAUSES,
        ..ViolationLimits::default()
    };
    NodeConfig { violations, ..lenient() }
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_guesses_keys_is_paused_then_barred_and_others_notice_nothing() {
    let rig = Rig::with(strict(), &[BLUE, "green"]);
    let mut sibling = Canary::new(rig.session(RED), 4096);
    let mut attacker = rig.attacker();
    for tried in 1..=FREE + PAUSES {
        let rkey = sibling.key() & !0xff | (sibling.key() + tried) & 0xff;
        let status = attacker.try_read(0, sibling.address(), rkey, 8);
        assert_eq!(status, Status::RemoteAccessError, "guess {tried} hit");
        let asked = attacker.ask_for_rebuild(0);
        if tried <= FREE {
            assert_eq!(asked, Ok(()), "guess {tried} is free");
        } else if tried < FREE + PAUSES {
            assert!(matches!(asked, Err(Refusal::Paused { .. })), "guess {tried}: {asked:?}");
            if tried == FREE + 1 {
                // Siblings work on: the violations do not end their permissions.
                sibling.assert_untouched();
            }
            attacker.recover(0).expect("pauses end");
        } else {
            assert_eq!(asked, Err(Refusal::Barred));
        }
    }
    rig.others_go_on(10);
    rig.assert_charged((FREE + PAUSES).into());
    // The bar applies to the whole tenant: to its attached clients and to new ones.
    let comes = attach(&rig.address(), &PLAIN, ATTACH_WITHIN, |terms| Ok(make(terms)));
    let refused = comes.map(|_| ()).expect_err("barred");
    assert!(matches!(&refused, AttachError::Refused(why) if why.contains("barred")), "{refused}");
    let refused = rig.host.connect(RED, SessionOptions::default()).expect_err("barred");
    assert!(matches!(&refused, ConnectError::Host(why) if why.contains("barred")), "{refused}");
    wait_for("the audit log", || rig.audit().has("pause") && rig.audit().has("bar"));
    drop((attacker, sibling));
    rig.clear();
}

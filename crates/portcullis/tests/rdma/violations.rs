//! What breaking the rules costs: pauses, and in the end the door.

use crate::attacker::{ATTACH_WITHIN, PLAIN, make};
use crate::canary::Canary;
use crate::stage::{BLUE, RED, Stage, lenient, wait_for};
use portcullis::{ConnectError, Lifetime, NodeConfig, Refusal, SessionOptions, ViolationLimits};
use portcullis_attach::tls::{AttachError, attach};
use portcullis_nic::Status;

/// Violations without a cost, and those that cost a pause until the last one bars.
const FREE: u32 = 4;
const PAUSES: u32 = 8;

/// None comes back while the test runs, and pauses are short, but not too short to be met.
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
    let stage = Stage::with(strict(), &[BLUE, "green"]);
    let mut sibling = Canary::new(stage.session(RED), 4096);
    let mut attacker = stage.attacker();
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
                // Its siblings' work goes on; what they have is not taken away.
                sibling.assert_untouched();
            }
            attacker.recover(0).expect("pauses end");
        } else {
            assert_eq!(asked, Err(Refusal::Barred));
        }
    }
    stage.others_go_on(10);
    stage.assert_charged((FREE + PAUSES).into());
    // The bar is the tenant's: for those who are there, and for those who come.
    let comes = attach(&stage.address(), &PLAIN, ATTACH_WITHIN, |terms| Ok(make(terms)));
    let refused = comes.map(|_| ()).expect_err("barred");
    assert!(matches!(&refused, AttachError::Refused(why) if why.contains("barred")), "{refused}");
    let refused = stage.host.connect(RED, SessionOptions::default()).expect_err("barred");
    assert!(matches!(&refused, ConnectError::Host(why) if why.contains("barred")), "{refused}");
    wait_for("the audit log", || stage.audit().has("pause") && stage.audit().has("bar"));
    drop((attacker, sibling));
    stage.clear();
}

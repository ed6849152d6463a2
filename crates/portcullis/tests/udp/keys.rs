//! A hostile client that shows keys for memory that it does not hold, and begins operations that it does not end.

use crate::attacker::{Attacker, bind};
use crate::rig::{BLUE, RED, Rig, config, goes_on, wait_for};
use portcullis::{Allocate, Lifetime, NodeConfig, Permission, Quota, Rights, Session, ViolationLimits};
use portcullis_onerma::{Action, Atomic, Destination, RegionId, Status};
use portcullis_protocol::Credential;
use std::net::Ipv4Addr;

/// Makes a configuration that tolerates many violations, for tests that are not about their cost.
fn lenient() -> NodeConfig {
    let violations = ViolationLimits {
        free_max: 1 << 24,
        late_grace: Lifetime::seconds(60),
        ..ViolationLimits::default()
    };
    NodeConfig { violations, quota: Quota { bytes_max: 1 << 22, ..Quota::default() }, ..config() }
}

/// An object of tenant BLUE with known bytes.
struct Canary {
    session: Session,
    object: Permission,
}

const UNTOUCHED: [u8; 64] = [0xb1; 64];

impl Canary {
    fn new(rig: &Rig) -> Self {
        let mut session = rig.session(BLUE);
        let object = session.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(9))).expect("memory");
        session.write(&object, 0, &UNTOUCHED).expect("written");
        Self { session, object }
    }

    fn region(&self) -> RegionId {
        let Credential::RegionKey { region, .. } = self.object.credential() else { panic!("no region") };
        RegionId { index: region.index, generation: region.generation }
    }

    fn assert_untouched(&mut self) {
        let mut there = [0; 64];
        self.session.read(&self.object, 0, &mut there).expect("its own");
        assert_eq!(there, UNTOUCHED);
    }
}

fn each_action() -> [Action; 3] {
    [Action::Read(64), Action::Write(vec![0xee; 64]), Action::Atomic(Atomic::FetchAndAdd { add: 1 })]
}

#[test]
fn a_key_opens_its_own_region_for_its_own_client_on_its_own_host_and_nobody_is_charged_for_the_rest() {
    let rig = Rig::with(lenient(), |_| {});
    let mut canary = Canary::new(&rig);
    let mut sibling = Attacker::attach(&rig.place(RED));
    let its = sibling.allocate(64, Rights::all());
    let mut attacker = Attacker::attach(&rig.place(RED));
    let own = attacker.allocate(64, Rights::all());
    let (right, address, theirs) = (attacker.to(&own), own.address().0, canary.object.address().0);
    let RegionId { index, generation } = right.region;
    let region = |index, generation| RegionId { index, generation };
    let mut wrong = vec![
        (Destination { region: canary.region(), ..right.clone() }, theirs),
        // These are sent in the name of the canary's client, whose number is no secret.
        (Destination { region: canary.region(), client: canary.session.number(), ..right.clone() }, theirs),
        (Destination { client: canary.session.number(), ..right.clone() }, address),
        (Destination { client: u64::MAX, ..right.clone() }, address),
        // This uses a sibling's key, which the sibling has handed on.
        (Destination { client: attacker.number, ..sibling.to(&its) }, its.address().0),
    ];
    let others = [
        (index + 1, generation),
        (index, generation + 1),
        (index, u32::MAX),
        (u32::MAX, generation),
        (99, 0),
    ];
    wrong.extend(others.map(|(index, generation)| {
        (Destination { region: region(index, generation), ..right.clone() }, address)
    }));
    for (to, address) in wrong {
        for action in each_action() {
            let status = attacker.try_operation(&to, address, action);
            assert_eq!(status, Status::RemoteAuthenticationFailure, "{to:?}");
        }
    }
    // The right key is refused from another host's address.
    let ours = std::mem::replace(&mut attacker.socket, bind(Ipv4Addr::new(127, 0, 0, 2)));
    for action in each_action() {
        assert_eq!(attacker.try_operation(&right, address, action), Status::RemoteAuthenticationFailure);
    }
    attacker.socket = ours;
    for action in each_action() {
        assert_eq!(attacker.try_operation(&right, address, action), Status::Ok);
    }
    canary.assert_untouched();
    rig.assert_charged(0);
    drop((attacker, sibling, canary));
    rig.assert_empty();
}

#[test]
fn whoever_reaches_beyond_its_range_or_rights_or_comes_late_is_refused_and_charged_alone() {
    let rig = Rig::with(lenient(), |_| {});
    let (mut canary, mut honest) = (Canary::new(&rig), rig.honest(BLUE));
    let mut attacker = Attacker::attach(&rig.place(RED));
    let whole = attacker.allocate(64, Rights::all());
    let (to, address) = (attacker.to(&whole), whole.address().0);
    let beyond = [
        (address.wrapping_sub(1), 64),
        (address + 1, 64),
        (address + 64, 1),
        (address, 65),
        (address, 4096),
        (canary.object.address().0, 64),
        (0, 8),
        (u64::MAX, 8),
        (u64::MAX - 7, 64),
    ];
    let mut charged = 0;
    let mut refused = |attacker: &mut Attacker, to: &Destination, address, action| {
        assert_eq!(attacker.try_once(to, address, action), Status::RemoteAuthenticationFailure);
        charged += 1;
        rig.assert_charged(charged);
    };
    for (address, length) in beyond {
        refused(&mut attacker, &to, address, Action::Read(length));
        refused(&mut attacker, &to, address, Action::Write(vec![0xee; length]));
    }
    for address in [address + 4, address + 57, address + 64, address.wrapping_sub(16)] {
        refused(&mut attacker, &to, address, Action::Atomic(Atomic::FetchAndAdd { add: 1 }));
    }
    let only_read = attacker.allocate(64, Rights::READ);
    let read = attacker.to(&only_read);
    let at = only_read.address().0;
    refused(&mut attacker, &read, at, Action::Write(vec![0xee; 64]));
    refused(&mut attacker, &read, at, Action::Atomic(Atomic::FetchAndAdd { add: 1 }));
    assert_eq!(attacker.try_operation(&read, at, Action::Read(64)), Status::Ok);
    attacker.revoke(only_read.permission);
    attacker.revoke(whole.permission);
    for (to, at) in [(&read, at), (&to, address)] {
        for action in each_action() {
            refused(&mut attacker, to, at, action);
        }
    }
    canary.assert_untouched();
    goes_on(&honest);
    honest.stop();
    drop((attacker, canary, honest));
    rig.assert_empty();
}

#[test]
fn whoever_strays_without_end_is_shown_out_with_all_that_it_holds_and_its_siblings_stay() {
    let rig = Rig::new();
    let mut sibling = rig.session(RED);
    let kept = sibling.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(9))).expect("memory");
    let mut attacker = Attacker::attach(&rig.place(RED));
    let own = attacker.allocate(64, Rights::all());
    let to = attacker.to(&own);
    wait_for("the attacker to be shown out", || {
        let _ = attacker.try_once(&to, own.address().0 + 64, Action::Read(64));
        let _ = attacker.talk.hear();
        !attacker.talk.is_alive()
    });
    wait_for("its permission to end", || rig.host.counters().permissions == 1);
    let late = attacker.try_operation(&to, own.address().0, Action::Write(vec![0xee; 64]));
    assert_eq!(late, Status::RemoteAuthenticationFailure);
    sibling.write(&kept, 0, &[1; 64]).expect("it has done nothing");
    wait_for("the audit log to tell of it", || rig.audit().has("bar"));
    drop((attacker, kept, sibling));
    rig.assert_empty();
}

#[test]
fn crowds_of_changes_that_are_begun_and_never_ended_keep_no_other_from_changing() {
    let rig = Rig::with(lenient(), |_| {});
    let mut honest = rig.honest(BLUE);
    let mut crowd: Vec<Attacker> = (0..20).map(|_| Attacker::attach(&rig.place(RED))).collect();
    let held: Vec<_> = crowd.iter_mut().map(|attacker| attacker.allocate(4096, Rights::all())).collect();
    let before = honest.operations();
    wait_for("an honest client to go on", || {
        for (attacker, held) in crowd.iter_mut().zip(&held) {
            // The attackers never read the node's answers.
            let to = attacker.to(held);
            attacker.initiator = portcullis_onerma::Initiator::new(crate::attacker::LIMITS);
            for _ in 0..256 {
                attacker.begin(&to, held.address().0, Action::Write(vec![0xee; 4096]));
            }
            attacker.send();
        }
        assert!(!honest.has_failed(), "an honest client met an error");
        honest.operations() >= before + 40
    });
    honest.stop();
    // The attackers leave while their operations are under way.
    drop((crowd, honest));
    rig.assert_empty();
    rig.assert_charged(0);
}

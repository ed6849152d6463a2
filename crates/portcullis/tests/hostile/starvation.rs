//! Attacks that use so much of a shared resource that other clients would get none: the engine's time, and the node's
//! limits.

use crate::attacker::Attacker;
use crate::rig::{BLUE, RED, Rig, lenient, wait_for};
use portcullis::{Acquire, Allocate, Lifetime, NodeConfig, Rights, SessionOptions, Sharing};
use portcullis_protocol::{
    GrantRequest, Keep, ObjectRef, Part, Refusal, Reply, ReplyBody, Request, RequestBody,
};
use std::time::{Duration, Instant};

/// The longest that an honest operation may take while a client does its worst within its limits. This is far above the
/// normal time. It is far below the time that a request would take if the node did work for each of the client's
/// permissions.
const STALL_MAX: Duration = Duration::from_millis(500);

/// Builds a request for a permission over an object, with this sharing.
fn acquire(object: ObjectRef, sharing: Sharing, wait: Lifetime) -> RequestBody {
    let (lifetime, rights) = (Lifetime::seconds(10), Rights::READ);
    let object = object.into();
    RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object,
        part: Part::WHOLE,
        lifetime,
        rights,
        sharing,
        wait,
    }))
}

/// Sends `count` requests as fast as possible and passes each answer to `heard`.
fn ask_many(attacker: &mut Attacker, count: u32, body: RequestBody, mut heard: impl FnMut(Reply)) {
    let message = Request { sequence: 0, body }.encode();
    let (mut asked, mut answered) = (0, 0);
    wait_for("answers", || {
        while asked < count && asked - answered < 32 && attacker.say(&message, true) {
            asked += 1;
        }
        while let Some(reply) = attacker.hear().expect("it is not broken") {
            answered += 1;
            heard(reply);
        }
        answered == count
    });
}

#[test]
fn whoever_waits_in_crowds_leaves_others_room_to_wait() {
    let rig = Rig::with(NodeConfig { postponed_max: 256, ..lenient() }, &[BLUE]);
    let mut attackers = [(); 6].map(|()| rig.attacker());
    for attacker in &mut attackers {
        let held = attacker.allocate(64, Sharing::Exclusive);
        let wait =
            Request { sequence: 0, body: acquire(held.object, Sharing::Exclusive, Lifetime::seconds(9)) };
        let before = rig.host.counters().control_messages;
        let mut said = 0;
        wait_for("requests to be taken in", || {
            while said < 128 && attacker.say(&wait.encode(), false) {
                said += 1;
            }
            while attacker.poll().is_some() {}
            rig.host.counters().control_messages >= before + 128
        });
    }
    let session = || rig.host.connect(BLUE, SessionOptions::default()).expect("a session");
    let (mut first, mut second) = (session(), session());
    let brief = Allocate::bytes(64).keep().lifetime(Lifetime::millis(20));
    let held = first.allocate(brief).expect("memory");
    let ask = Acquire::object(held.object()).wait(Lifetime::seconds(5));
    second.acquire(ask).expect("there is room to wait, and its turn comes");
    drop((held, first, second, attackers));
    rig.clear();
}

#[test]
fn a_crowd_of_holders_and_requests_against_it_do_not_stall_the_node() {
    let quota = portcullis::Quota { bytes_max: 16 << 20, permissions_max: 30_000, ..Default::default() };
    let rig = Rig::with(NodeConfig { quota, ..lenient() }, &[BLUE]);
    let mut attacker = rig.attacker();
    let object = attacker.allocate(64, Sharing::Shared);
    let mut granted = 0;
    ask_many(&mut attacker, 25_000, acquire(object.object, Sharing::Shared, Lifetime(0)), |reply| {
        granted += u32::from(matches!(reply.body, ReplyBody::Granted(_)));
    });
    assert_eq!(granted, 25_000);
    let mut session = rig.host.connect(BLUE, SessionOptions::default()).expect("a session");
    let own = session.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(9))).expect("memory");
    let conflict =
        Request { sequence: 0, body: acquire(object.object, Sharing::Exclusive, Lifetime(1)) }.encode();
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        while attacker.say(&conflict, true) {}
        while attacker.hear().expect("it is not broken").is_some() {}
        let before = Instant::now();
        session.read(&own, 0, &mut [0; 8]).expect("an honest read");
        longest = longest.max(before.elapsed());
    }
    println!("longest honest read against a crowd: {longest:?}");
    assert!(longest < STALL_MAX, "an honest read took {longest:?}");
    drop((own, session));
    // This ends all permissions of the client at once.
    drop(attacker);
    let before = Instant::now();
    rig.others_go_on(1);
    println!("an honest client went on after {:?}", before.elapsed());
    rig.clear();
}

#[test]
fn exclusive_holders_that_never_let_go_lose_to_their_lease() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let mut session = rig.host.connect(RED, SessionOptions::default()).expect("a session");
    let object = session.allocate(Allocate::bytes(64).keep()).expect("memory");
    let reference = object.object();
    session.revoke(object).expect("it has not ended");
    let body = acquire(reference, Sharing::Exclusive, Lifetime(0));
    let RequestBody::Grant(GrantRequest::Acquire(Acquire { object, part, rights, sharing, wait, .. })) = body
    else {
        unreachable!("as it was made")
    };
    let lifetime = Lifetime::millis(100);
    let ReplyBody::Granted(held) = attacker.ask(RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object,
        part,
        lifetime,
        rights,
        sharing,
        wait,
    }))) else {
        panic!("nobody holds it")
    };
    // The session extends for as long as the node allows.
    let next =
        session.client().call(portcullis::Moment(0), Acquire::object(reference).wait(Lifetime::seconds(9)));
    let next = next.expect("a request");
    let mut extended = 0;
    while session.client().take_call(next).is_none() {
        session.poll();
        let body = RequestBody::Grant(GrantRequest::Extend {
            permission: held.permission,
            lifetime: Lifetime::millis(300),
        });
        extended += u32::from(matches!(attacker.ask(body), ReplyBody::Extended(_)));
        assert!(rig.host.counters().expiries == 0 || extended <= 1, "it was extended after the notice");
    }
    drop((session, attacker));
    rig.clear();
}

#[test]
fn whoever_fills_its_quota_with_tiny_objects_takes_no_more_than_that_and_goes_without_a_stall() {
    let quota = portcullis::Quota { bytes_max: 4 << 20, objects_max: 30_000, ..Default::default() };
    let rig = Rig::with(NodeConfig { quota, ..lenient() }, &[BLUE]);
    let mut attacker = rig.attacker();
    let (rights, sharing) = (Rights::all(), Sharing::Exclusive);
    let (lifetime, keep) = (Lifetime::millis(50), Keep::For(Lifetime::millis(1)));
    let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 1,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep,
    }));
    let before = rig.host.counters();
    let (mut granted, mut refused) = (0, 0);
    ask_many(&mut attacker, 40_000, body, |reply| match reply.body {
        ReplyBody::Granted(_) => granted += 1,
        ReplyBody::Refused(Refusal::Quota { limit: 30_000, .. }) => refused += 1,
        other => panic!("neither memory nor its quota: {other:?}"),
    });
    assert_eq!((granted, refused), (30_000, 10_000));
    let taken = rig.host.counters().bytes_used - before.bytes_used;
    assert!(taken <= quota.bytes_max, "{taken} bytes of the pool for a quota of {}", quota.bytes_max);
    drop(attacker);
    rig.others_go_on(100);
    wait_for("what it kept to be gone", || rig.host.counters().tenants == 1);
    rig.clear();
}

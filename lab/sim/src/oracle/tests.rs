//! Tests of events that the checkers must not report, and of events that they must find nevertheless.

use super::*;
use portcullis_nic::{RemoteAddress, RemoteSpan, Rkey};
use portcullis_protocol::{
    Acquire, Allocate, Credential, GrantRequest, Granted, Incarnation, Keep, LIFETIME_OFFSET, Mechanism,
    ObjectRef, Part, QueuePairRequest, Refusal, Reply, ReplyBody, Request, RequestBody, Rights, Sharing,
};
use portcullis_softnic::core::Response;

const NOW: Moment = Moment(1_000);
const LIFE: Lifetime = Lifetime::millis(5);
const WORD_KEY: Rkey = Rkey(0x200);
const HEADER: RemoteAddress = portcullis_node::POOL_BASE;

/// Creates a node with a client of each given tenant.
fn oracle(tenants: &[(usize, bool)]) -> Oracle {
    let mut oracle = Oracle::default();
    oracle.node_started(0, 1 << 16, Lifetime(0), Lifetime::seconds(1));
    for &(tenant, hostile) in tenants {
        oracle.session_began(0, tenant, hostile, NOW);
    }
    oracle
}

fn arrives(oracle: &mut Oracle, session: SessionId, request: &WireRequest, answer: &Response) {
    let touches = match (request, answer) {
        (WireRequest::CompareAndSwap { remote, compare, swap }, Response::Value(before)) => {
            let after = if before == compare { *swap } else { *before };
            let offset = remote.address.0 - portcullis_node::POOL_BASE.0;
            vec![Touch::Change { offset, before: *before, after }]
        }
        _ => Vec::new(),
    };
    let (id, answer, touches) = (u64::MAX, Some(answer), &touches[..]);
    oracle.arrived(&Arrival {
        session,
        queue_pair: Some(0),
        id,
        request,
        answer,
        touches,
        now: 1_000_000,
        node_now: NOW,
    });
}

fn sends(oracle: &mut Oracle, session: SessionId, bytes: &[u8]) {
    let request = WireRequest::Send { bytes: bytes.to_vec(), invalidate: None };
    arrives(oracle, session, &request, &Response::Done);
}

fn asks(oracle: &mut Oracle, session: SessionId, sequence: u32, body: RequestBody) {
    sends(oracle, session, &Request { sequence, body }.encode());
}

fn hears(oracle: &mut Oracle, session: SessionId, sequence: u32, body: ReplyBody) {
    oracle.replied(session, &Reply { sequence, body }.encode(), 1_000_000, NOW);
}

fn allocate() -> RequestBody {
    let (rights, sharing) = (Rights::all(), Sharing::Exclusive);
    RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 64,
        alignment: 1,
        lifetime: LIFE,
        rights,
        sharing,
        keep: Keep::Attached,
    }))
}

fn granted() -> Granted {
    Granted {
        permission: PermissionId { header: HEADER, start: NOW },
        object: ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(HEADER.0 + 4096), birth: 1 },
        offset: 0,
        length: 64,
        lifetime: LIFE,
        waited: Lifetime(0),
        longest: Lifetime::seconds(1),
        credential: Credential::Keys { buffer: Rkey(0x100), lifetime: WORD_KEY },
        mechanism: Mechanism::MemoryWindow,
    }
}

fn acquire() -> RequestBody {
    RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: granted().object.into(),
        part: Part::WHOLE,
        lifetime: LIFE,
        rights: Rights::all(),
        sharing: Sharing::Exclusive,
        wait: Lifetime::millis(9),
    }))
}

/// Makes the node write its final notice for a permission.
fn gives_notice(oracle: &mut Oracle) {
    let touch = Touch::Write { offset: LIFETIME_OFFSET, bytes: vec![0; 8] };
    oracle.node_touched(0, &[touch], 1_000_000, NOW);
}

fn holder_and_hostile_sibling() -> Oracle {
    let mut oracle = oracle(&[(0, false), (0, true)]);
    asks(&mut oracle, 0, 7, allocate());
    hears(&mut oracle, 0, 7, ReplyBody::Granted(granted()));
    assert!(!oracle.has_failed(), "{:?}", oracle.failures);
    oracle
}

#[test]
fn an_answer_to_nonsense_is_not_taken_for_one_to_a_request_of_the_same_number() {
    for nonsense_first in [true, false] {
        let mut oracle = holder_and_hostile_sibling();
        if nonsense_first {
            sends(&mut oracle, 1, b"short");
        }
        asks(&mut oracle, 1, 0, acquire());
        if !nonsense_first {
            sends(&mut oracle, 1, b"short");
        }
        hears(&mut oracle, 1, 0, ReplyBody::Refused(Refusal::Malformed));
        gives_notice(&mut oracle);
        assert!(!oracle.has_failed(), "somebody waits: {:?}", oracle.failures);
    }
}

#[test]
fn a_rebuild_that_goes_on_is_not_taken_for_refused_by_an_answer_to_nonsense() {
    let mut oracle = oracle(&[(0, true)]);
    asks(&mut oracle, 0, 0, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }));
    sends(&mut oracle, 0, b"short");
    hears(&mut oracle, 0, 0, ReplyBody::Refused(Refusal::Malformed));
    hears(&mut oracle, 0, 0, ReplyBody::Done);
    oracle.at_rest(2_000_000);
    assert!(!oracle.has_failed(), "{:?}", oracle.failures);
}

#[test]
fn a_notice_without_anybody_who_waits_is_noticed_beside_nonsense_too() {
    let mut oracle = holder_and_hostile_sibling();
    sends(&mut oracle, 1, b"short");
    gives_notice(&mut oracle);
    assert_eq!(oracle.failures[0].promise, Promise::Service);
}

#[test]
fn an_answer_that_no_request_asked_for_is_noticed() {
    let refused = |refusal| ReplyBody::Refused(refusal);
    for (session, body) in [
        (0, ReplyBody::Done),
        (0, ReplyBody::Extended(LIFE)),
        (0, refused(Refusal::Malformed)),
        (1, refused(Refusal::NotLive)),
    ] {
        let mut oracle = oracle(&[(0, false), (0, true)]);
        asks(&mut oracle, 0, 0, allocate());
        sends(&mut oracle, 1, b"short");
        hears(&mut oracle, session, 0, body);
        assert_eq!(oracle.failures[0].promise, Promise::Truth, "{body:?}");
    }
}

#[test]
fn nonsense_without_an_answer_is_noticed() {
    let mut oracle = oracle(&[(0, true)]);
    sends(&mut oracle, 0, &[0xff; 72]);
    oracle.at_rest(2_000_000);
    assert_eq!(oracle.failures[0].promise, Promise::Progress);
}

#[test]
fn whose_lifetime_word_was_spoilt_is_known_after_the_nodes_end() {
    let mut oracle = holder_and_hostile_sibling();
    let id = granted().permission;
    let word = RemoteAddress(HEADER.0 + LIFETIME_OFFSET);
    let remote = RemoteSpan { address: word, rkey: WORD_KEY };
    let spoil = WireRequest::CompareAndSwap { remote, compare: 0, swap: u64::MAX };
    arrives(&mut oracle, 1, &spoil, &Response::Value(0));
    assert!(oracle.may_end_early(0, id));
    oracle.node_stopped(0);
    assert!(oracle.may_end_early(0, id));
    assert!(!oracle.may_end_early(1, id), "it is not the vandal's");
    oracle.node_started(0, 1 << 16, Lifetime(0), Lifetime::seconds(1));
    let newcomer = oracle.session_began(0, 0, false, NOW);
    assert!(!oracle.may_end_early(newcomer, id), "nor that of a client of the node's next running");
}

#[test]
fn whose_tenant_was_barred_is_known_after_the_nodes_end() {
    let mut oracle = holder_and_hostile_sibling();
    oracle.forgiving = false;
    oracle.bar_after = 0;
    oracle.tenant_barred(0, 0, (NOW, NOW.after(LIFE)), 1_000_000);
    oracle.node_stopped(0);
    assert!(oracle.was_barred(0));
    oracle.node_started(0, 1 << 16, Lifetime(0), Lifetime::seconds(1));
    let newcomer = oracle.session_began(0, 0, false, NOW);
    assert!(!oracle.was_barred(newcomer) && !oracle.has_failed(), "the next running knows no bar");
}

#[test]
fn what_the_node_writes_into_a_live_buffer_is_noticed_whoever_else_is_barred() {
    for (barred, promise) in [(1, Some(Promise::Memory)), (0, None)] {
        let mut oracle = holder_and_hostile_sibling();
        oracle.bar_after = 0;
        oracle.tenant_barred(0, barred, (NOW, NOW.after(LIFE)), 1_000_000);
        oracle.node_touched(0, &[Touch::Zero { offset: 4096, length: 64 }], 1_000_000, NOW);
        let found = oracle.failures.first().map(|failure| failure.promise);
        assert_eq!(found, promise, "tenant {barred} is barred");
    }
}

//! The promises of mechanism `window-group` to sessions: a session's permissions work on all its queue pairs and
//! nowhere else, even if other sessions of its tenant know the keys.

use portcullis::host::{Host, HostConfig};
use portcullis::{
    Access, Acquire, Allocate, Buffer, Credential, Error, Lifetime, Mechanism, NodeConfig, Permission,
    RemoteAddress, Rights, Session, SessionOptions, Unchecked,
};
use std::time::{Duration, Instant};

const BYTES: u64 = 256;

fn host() -> Host {
    let mut node =
        NodeConfig { mechanism: Mechanism::WindowGroup, pool_bytes: 4 << 20, ..NodeConfig::default() };
    node.violations.free_max = u32::MAX;
    Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node starts")
}

fn session(host: &Host, tenant: &str) -> Session {
    host.connect(tenant, SessionOptions::default()).expect("a session")
}

fn bytes_of(session: &mut Session, permission: &Permission) -> Result<[u8; 8], Error> {
    let mut bytes = [0; 8];
    session.read(permission, 0, &mut bytes).map(|()| bytes)
}

/// Reads without local checks.
fn read_with(session: &mut Session, address: RemoteAddress, credential: Credential) -> Result<u64, Error> {
    let buffer: Buffer<_> = session.buffer(8).expect("a buffer");
    let read = Access::read(Unchecked::new(address, credential), 0, buffer);
    let begun = session.client().dangerous_access(read).expect("it begins");
    session.wait(begun).expect("the node is there").result
}

#[test]
fn permissions_of_all_kinds_are_used_extended_and_ended_as_under_any_mechanism() {
    let host = host();
    let mut session = session(&host, "red");
    for rights in [Rights::all(), Rights::READ | Rights::WRITE, Rights::READ] {
        let ask = Allocate::bytes(BYTES).lifetime(Lifetime::millis(500)).rights(rights);
        let held = session.allocate(ask).expect("memory");
        assert_eq!(held.mechanism(), Mechanism::WindowGroup);
        if rights.contains(Rights::WRITE) {
            session.write(&held, 0, b"it works").expect("a write");
            assert_eq!(bytes_of(&mut session, &held).as_ref(), Ok(b"it works"));
        }
        let before = (held.lease().deadline(), host.counters().control_messages);
        session.extend(&held, Lifetime::seconds(2)).expect("an extension");
        assert!(held.lease().deadline() > before.0);
        assert_eq!(host.counters().control_messages, before.1, "the node's processor has no part in it");
        session.revoke(held).expect("its end");
    }
}

#[test]
fn a_violation_changes_nothing_for_what_the_session_holds() {
    let host = host();
    let mut session = session(&host, "red");
    let held = session.allocate(Allocate::bytes(BYTES)).expect("memory");
    session.write(&held, 0, b"stays as").expect("a write");
    for round in 0..12 {
        let beyond = RemoteAddress(held.address().0 + BYTES + 4096);
        assert_eq!(read_with(&mut session, beyond, held.credential()), Err(Error::Violation), "{round}");
        assert_eq!(bytes_of(&mut session, &held).as_ref(), Ok(b"stays as"), "{round}");
        let later = session.allocate(Allocate::bytes(BYTES)).expect("memory meanwhile");
        assert_eq!(bytes_of(&mut session, &later), Ok([0; 8]), "{round}");
        session.revoke(later).expect("its end");
    }
}

#[test]
fn a_sibling_that_knows_every_key_reaches_nothing_and_disturbs_nobody() {
    let host = host();
    let (mut holder, mut sibling) = (session(&host, "red"), session(&host, "red"));
    let held = holder.allocate(Allocate::bytes(BYTES).keep()).expect("memory");
    holder.write(&held, 0, b"a secret").expect("a write");
    let Credential::Group(group) = held.credential() else { panic!("no group: {:?}", held.credential()) };
    for &key in group.keys().iter().filter(|key| key.0 != 0) {
        let told = read_with(&mut sibling, held.address(), Credential::from(key));
        assert_eq!(told, Err(Error::Violation), "{key:?}");
    }
    assert_eq!(read_with(&mut sibling, held.address(), held.credential()), Err(Error::Violation));
    assert_eq!(bytes_of(&mut holder, &held).as_ref(), Ok(b"a secret"));
    let object = held.object();
    holder.revoke(held).expect("its end");
    // A permission that the sibling acquires itself works.
    let own = sibling.acquire(Acquire::object(object)).expect("a permission of its own");
    assert_eq!(bytes_of(&mut sibling, &own).as_ref(), Ok(b"a secret"));
}

#[test]
fn a_permission_of_another_session_is_an_error_before_it_is_a_violation() {
    let host = host();
    let (mut holder, mut sibling) = (session(&host, "red"), session(&host, "red"));
    let held = holder.allocate(Allocate::bytes(BYTES)).expect("memory");
    assert_eq!(bytes_of(&mut sibling, &held), Err(Error::ForeignPermission));
    assert_eq!(bytes_of(&mut holder, &held), Ok([0; 8]));
    assert_eq!(host.counters().violations, 0);
}

#[test]
fn a_keeper_extends_from_a_session_of_its_own() {
    let host = host();
    let mut session = session(&host, "red");
    let time = Lifetime::millis(500);
    let held = session.allocate(Allocate::bytes(BYTES).lifetime(time)).expect("memory");
    let kept = session.keep(&held, time).expect("a keeper");
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        assert_eq!(bytes_of(&mut session, &held), Ok([0; 8]), "it lives on");
        std::thread::yield_now();
    }
    assert!(kept.is_kept());
    assert_eq!(host.counters().violations, 0);
}

#[test]
fn an_exclusive_object_goes_from_one_session_to_the_next_and_never_back_by_an_old_key() {
    let host = host();
    let mut sessions = [session(&host, "red"), session(&host, "red")];
    let first = sessions[0].allocate(Allocate::bytes(BYTES).keep()).expect("memory");
    let object = first.object();
    let mut past = vec![first.credential()];
    sessions[0].revoke(first).expect("its end");
    for turn in 0..40 {
        let (this, other) = (turn % 2, 1 - turn % 2);
        let ask = Acquire::object(object);
        let held = sessions[this].acquire(ask).expect("its turn");
        for &old in past.iter().rev().take(3) {
            let told = read_with(&mut sessions[other], held.address(), old);
            assert_eq!(told, Err(Error::Violation), "turn {turn}");
        }
        past.push(held.credential());
        sessions[this].revoke(held).expect("its end");
    }
}

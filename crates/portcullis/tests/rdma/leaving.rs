//! Clients that leave at each step of their work.

use crate::attacker::{ATTACH_WITHIN, DATA, PLAIN, key, make};
use crate::control_connection::{ControlConnection, hello, say_ends};
use crate::rig::{Rig, wait_for};
use portcullis::{Lifetime, Rights, Rkey, Sharing};
use portcullis_attach::tls::{AttachError, attach};
use portcullis_nic::{Operation, RemoteSpan};
use portcullis_protocol::{Allocate, GrantRequest, Keep, QueuePairRequest, Request, RequestBody};

/// Number of departures at each step.
const DEPARTURES: usize = 4;

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_leaves_on_its_way_in_leaves_nothing() {
    let rig = Rig::new();
    let address = rig.address();
    let (ends, endpoint) = make(&rig.attacker().terms);
    for _ in 0..DEPARTURES {
        drop(ControlConnection::connect(&address));
        ControlConnection::connect(&address).say(&hello());
        let mut connection = ControlConnection::connect(&address);
        connection.say(&hello());
        connection.hear().expect("terms");
        drop(connection);
        let refuses = attach::<()>(&address, &PLAIN, ATTACH_WITHIN, |_| Err("changed its mind".into()));
        assert!(matches!(refuses, Err(AttachError::Unable(_))));
        // The client leaves before the node can answer.
        let mut connection = ControlConnection::connect(&address);
        connection.say(&hello());
        connection.hear().expect("terms");
        connection.say(&say_ends(&ends));
        drop(connection);
        // The client leaves before it has connected its own queue pairs.
        assert_eq!(ControlConnection::connect(&address).bring(&ends), Ok(()));
        rig.others_go_on(2);
        drop(rig.attacker());
    }
    drop(endpoint);
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_leaves_with_requests_under_way_leaves_nothing() {
    let rig = Rig::new();
    for round in 0..DEPARTURES {
        let mut attacker = rig.attacker();
        let own = attacker.allocate(1 << 20);
        let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
        let local = attacker.local(DATA, 1 << 20);
        for _ in 0..=2 * round {
            attacker.post(0, 0, Operation::Read { local, remote });
            attacker.post(1, 0, Operation::Write { local, remote });
        }
        let (rights, sharing, lifetime) = (Rights::all(), Sharing::Exclusive, Lifetime::seconds(10));
        for keep in [Keep::Attached, Keep::No] {
            let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
                size: 300_000,
                alignment: 0,
                lifetime,
                rights,
                sharing,
                keep,
            }));
            attacker.say(&Request { sequence: 0, body }.encode(), keep == Keep::Attached);
        }
        attacker.say(
            &Request {
                sequence: 0,
                body: RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }),
            }
            .encode(),
            true,
        );
        drop(attacker);
    }
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_leaves_right_after_a_violation_is_charged_with_it() {
    let rig = Rig::new();
    let mut charged = 0;
    for _ in 0..DEPARTURES {
        let mut attacker = rig.attacker();
        let own = attacker.allocate(64);
        let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential) ^ 0x100) };
        for queue_pair in 0..attacker.terms.data_queue_pairs {
            let read = Operation::Read { local: attacker.local(DATA, 8), remote };
            assert!(attacker.try_operation(queue_pair, read).breaks());
            charged += 1;
        }
        drop(attacker);
        wait_for("it to be gone", || rig.host.counters().clients == 2);
    }
    rig.assert_charged(charged);
    rig.clear();
}

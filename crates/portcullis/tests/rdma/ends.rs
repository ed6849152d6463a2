//! Clients that give false addresses for their queue pairs.

use crate::attacker::{Attacker, DATA, key, make};
use crate::canary::Canary;
use crate::control_connection::ControlConnection;
use crate::rig::{BLUE, PATIENCE, Rig, wait_for};
use portcullis::{RemoteAddress, Rkey, Session};
use portcullis_attach::tls::{Ends, Terms};
use portcullis_nic::{Operation, QpAddress, RemoteSpan};
use portcullis_protocol::{GrantRequest, Holders, ObjectName, Request, RequestBody};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// The addresses of an honest client's queue pairs.
fn ends_of(session: &mut Session) -> Ends {
    let endpoint = session.client().endpoint().rdma().expect("on the device");
    let (control, data) = endpoint.addresses().expect("it has queue pairs");
    Ends { control, data }
}

/// The queue pair numbers of another client, with the attacker's own packet numbers.
fn claimed(own: &Ends, theirs: &Ends) -> Ends {
    let claim = |(own, theirs): (&QpAddress, &QpAddress)| QpAddress { number: theirs.number, ..*own };
    Ends {
        control: claim((&own.control, &theirs.control)),
        data: own.data.iter().zip(&theirs.data).map(claim).collect(),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_claims_anothers_queue_pairs_does_not_disturb_it() {
    let rig = Rig::new();
    let mut victim = rig.session(BLUE);
    let theirs = ends_of(&mut victim);
    let mut canary = Canary::new(victim, 4096);
    // The attacker keeps its own packet numbers, so that the node accepts its packets.
    let mut attacker = Attacker::attach_as(&rig.address(), |own| claimed(&own, &theirs));
    // The node's answers go to the victim's control queue pair, which rejects them because they are not from its own
    // peer.
    let message = Request {
        sequence: 0,
        body: RequestBody::Grant(GrantRequest::Free {
            object: ObjectName::Address(RemoteAddress(0)),
            holders: Holders::Stay,
        }),
    }
    .encode();
    for _ in 0..20 {
        attacker.say(&message, true);
    }
    canary.assert_untouched();
    // No queue pair acknowledges the node's answers, so the node gives up.
    wait_for("the node to show it out", || {
        canary.assert_untouched();
        attacker.is_out()
    });
    rig.others_go_on(10);
    canary.assert_untouched();
    drop((attacker, canary));
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_only_claims_anothers_data_queue_pairs_gets_nothing_through_them() {
    let rig = Rig::new();
    let mut victim = rig.session(BLUE);
    let theirs = ends_of(&mut victim);
    let mut canary = Canary::new(victim, 4096);
    let mut attacker =
        Attacker::attach_as(&rig.address(), |own| Ends { control: own.control, ..claimed(&own, &theirs) });
    let own = attacker.allocate(4096);
    // The attacker's queue pairs reach the node, but the node's answers go to another queue pair.
    let local = attacker.local(DATA, 4096);
    let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
    for id in 0..4 {
        attacker.post(0, id, Operation::Read { local, remote });
    }
    for _ in 0..20 {
        canary.assert_untouched();
    }
    rig.others_go_on(10);
    drop((attacker, canary));
    rig.clear();
}

/// The terms of a node with the default configuration.
fn terms(rig: &Rig) -> Terms {
    rig.attacker().terms
}

#[test]
#[ignore = "needs an RDMA device"]
fn ends_that_make_no_sense_are_refused_and_leave_nothing() {
    let rig = Rig::new();
    let (own, endpoint) = make(&terms(&rig));
    let with = |change: &dyn Fn(&mut Ends)| {
        let mut ends = own.clone();
        change(&mut ends);
        ends
    };
    let refused = [
        ("twice", with(&|ends| ends.data[1] = ends.data[0])),
        ("twice", with(&|ends| ends.data[0] = ends.control)),
        ("24 bits", with(&|ends| ends.data[0].number = 1 << 24)),
        ("24 bits", with(&|ends| ends.control.number = u32::MAX)),
        ("data queue pairs", with(&|ends| ends.data.truncate(1))),
        ("data queue pairs", with(&|ends| ends.data.push(QpAddress { number: 77, ..ends.control }))),
    ];
    for (why, ends) in refused {
        let said = ControlConnection::connect(&rig.address()).bring(&ends).expect_err(why);
        assert!(said.contains(why), "{said}");
    }
    rig.others_go_on(5);
    // No machine has these addresses. The node may admit these clients or not, but it must decide soon, and other
    // clients must not wait for it.
    let ports = [
        [0; 16],
        [255; 16],
        Ipv4Addr::new(192, 0, 2, 77).to_ipv6_mapped().octets(),
        Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets(),
        Ipv4Addr::new(127, 0, 0, 1).to_ipv6_mapped().octets(),
        Ipv4Addr::BROADCAST.to_ipv6_mapped().octets(),
        Ipv6Addr::LOCALHOST.octets(),
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets(),
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 99).octets(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets(),
    ];
    for port in ports {
        let ends = with(&|ends| {
            ends.control.port = port;
            ends.data.iter_mut().for_each(|end| end.port = port);
        });
        let before = Instant::now();
        let said = ControlConnection::connect(&rig.address()).bring(&ends);
        assert!(before.elapsed() < PATIENCE, "{port:?}: {said:?} after {:?}", before.elapsed());
        rig.others_go_on(5);
    }
    // The same queue pair number under two addresses counts as two queue pairs.
    let both = with(&|ends| ends.data[1] = QpAddress { port: [7; 16], ..ends.data[0] });
    let _ = ControlConnection::connect(&rig.address()).bring(&both);
    rig.others_go_on(5);
    drop(endpoint);
    rig.clear();
}

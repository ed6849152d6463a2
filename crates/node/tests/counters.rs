//! The numbers of clients, tenants and objects, near the end of their range.

use crate::rig::{Rig, keys, refused};
use portcullis_nic::Status;
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    CopyRequest, Credential, GrantRequest, Mechanism, Refusal, ReplyBody, RequestBody, Sharing,
};
use std::collections::HashSet;

fn counting_from(number: u64, config: NodeConfig) -> Rig {
    let mut rig = Rig::new(config);
    rig.node.dangerous_count_from(number);
    rig
}

/// Numbers around the end of 32 bits, and numbers with the same lower half.
fn alike() -> impl Iterator<Item = u64> {
    let end = u64::from(u32::MAX);
    (end - 2..end + 3).flat_map(|number| [number, number + (1 << 32), number + (7 << 40)])
}

#[test]
fn no_tenant_reads_anothers_bytes_whatever_their_numbers_have_in_common() {
    let mut rig = Rig::new(crate::rig::config());
    let mut numbers = HashSet::new();
    for (round, number) in (0u8..).zip(alike()) {
        rig.node.dangerous_count_from(number);
        let client = rig.attach(&format!("tenant {round}"));
        assert!(numbers.insert(rig.seat(client).id), "two clients have one number");
        let it = rig.allocate(client, 5000, false);
        let (key, address) = (keys(&it).0, it.address().0);
        assert_eq!(rig.read(client, key, address, 5000), (Status::Success, vec![0; 5000]), "round {round}");
        assert_eq!(rig.write(client, key, address, &[round + 1; 5000]), Status::Success);
        // The tenant has no client left. The next tenant gets its place and its memory.
        rig.detach(client);
        rig.settle();
    }
    rig.end();
}

#[test]
fn nobody_ends_or_reads_anothers_permission_whatever_their_numbers_have_in_common() {
    for mechanism in [Mechanism::MemoryWindow, Mechanism::NodeCopy] {
        let mut rig = Rig::new(NodeConfig { mechanism, ..crate::rig::config() });
        let mut attach = |number| {
            rig.node.dangerous_count_from(number);
            rig.attach(&format!("tenant {number}"))
        };
        let clients: Vec<usize> = alike().map(&mut attach).collect();
        let held: Vec<_> = clients.iter().map(|&client| rig.allocate(client, 64, false)).collect();
        for (&client, mine) in clients.iter().zip(&held) {
            for other in held.iter().filter(|it| it.permission != mine.permission) {
                let permission = other.permission;
                let revoke = RequestBody::Grant(GrantRequest::Revoke { permission, free: true });
                assert_eq!(refused(rig.ask(client, revoke)), Refusal::NotLive);
                if matches!(other.credential, Credential::Node) {
                    let read = RequestBody::Copy(CopyRequest::Read { permission, offset: 0, length: 8 });
                    assert_eq!(refused(rig.ask(client, read)), Refusal::NotLive);
                }
            }
        }
        for (client, mine) in clients.into_iter().zip(held) {
            rig.revoke(client, mine.permission);
        }
        rig.end();
    }
}

#[test]
fn a_node_that_has_counted_to_the_end_refuses_and_serves_those_who_are_there() {
    let full = Refusal::NodeFull { limit: u64::MAX };
    let mut rig = counting_from(u64::MAX - 1, crate::rig::config());
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, true);
    let ask = crate::rig::allocate(64, false);
    assert_eq!(refused(rig.ask(client, ask)), full, "no birth is told twice");
    assert_eq!(rig.try_attach("b").err(), Some(full), "no mark is used twice");
    let last = rig.attach("a");
    assert_eq!(rig.seat(last).id.0, u64::MAX);
    assert_eq!(rig.try_attach("a").err(), Some(full), "no number is used twice");
    rig.revoke(client, it.permission);
    let again = rig.ask(last, crate::rig::acquire(it.object, Sharing::Exclusive, Default::default()));
    assert!(matches!(again, ReplyBody::Granted(_)), "{again:?}");
    rig.end();
}

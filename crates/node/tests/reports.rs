//! The node's reports to its operator about its clients.

use crate::rig::Rig;
use portcullis_node::NodeConfig;
use portcullis_protocol::Lifetime;

/// The reported permissions and bytes of each client, by number.
fn held(rig: &Rig) -> Vec<(u64, u64)> {
    rig.node.clients(rig.now).iter().map(|client| (client.permissions, client.bytes)).collect()
}

#[test]
fn an_operator_sees_what_each_client_holds_until_it_ends() {
    let mut rig = Rig::new(NodeConfig { longest_lifetime: Lifetime::seconds(1), ..crate::rig::config() });
    let (client, other) = (rig.attach("a"), rig.attach("b"));
    assert_eq!(held(&rig), [(0, 0), (0, 0)]);
    let [it, kept] = [(64, false), (100, true)].map(|(bytes, keep)| rig.allocate(client, bytes, keep));
    rig.allocate(other, 1000, false);
    assert_eq!(held(&rig), [(2, 164), (1, 1000)]);
    rig.revoke(client, it.permission);
    rig.settle();
    assert_eq!(held(&rig), [(1, 100), (1, 1000)]);
    rig.revoke(client, kept.permission);
    rig.settle();
    rig.acquire(client, kept.object);
    assert_eq!(held(&rig), [(1, 100), (1, 1000)]);
    rig.detach(other);
    rig.settle();
    rig.pass(Lifetime::seconds(2));
    rig.settle();
    assert_eq!(held(&rig), [(0, 0)], "all of it has ended by time");
    rig.end();
}

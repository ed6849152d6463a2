//! A node on a device that accepts clients over UDP as well: clients on both fabrics use the same objects in turn.

use crate::rig::{RED, lenient, wait_for};
use portcullis::host::{Host, HostConfig, NetworkListen, RdmaConfig, UdpConfig};
use portcullis::{
    Access, Acquire, Allocate, Guarantee, Lifetime, Mechanism, NodeSecurity, Session, Unchecked, connect,
};
use std::time::Duration;

/// A time that is longer than a node's thread polls for work before it sleeps.
const IDLE: Duration = Duration::from_millis(50);

fn listen() -> Vec<NetworkListen> {
    vec![NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some(RED.to_owned()),
    }]
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_object_goes_to_and_fro_between_the_device_and_udp_and_its_old_holder_is_refused() {
    let allow_unenforced = vec![Guarantee::WindowRange, Guarantee::Type2Range];
    let rdma = RdmaConfig { listen: listen(), allow_unenforced, ..RdmaConfig::default() };
    let udp = UdpConfig { listen: listen(), ..UdpConfig::default() };
    let config = HostConfig { node: lenient(), rdma: Some(rdma), udp: Some(udp), ..HostConfig::default() };
    let host = Host::start(config).expect("a node starts");
    let &[on_device, over_udp] = host.network_addresses() else { panic!("two places for clients") };
    let addresses = [format!("rdma:{on_device}"), format!("udp:{over_udp}")];
    let mut sessions: [Session; 2] = addresses.map(|address| connect(&address).expect("a session"));
    let mut held = sessions[0].allocate(Allocate::bytes(4096).keep()).expect("memory");
    let object = held.object();
    sessions[0].write(&held, 0, &[0; 4096]).expect("written");
    for round in 1..=20u8 {
        let (from, to) = (usize::from(round + 1) % 2, usize::from(round) % 2);
        let (address, credential) = (held.address(), held.credential());
        sessions[from].revoke(held).expect("it has not ended");
        let ask = Acquire::object(object).wait(Lifetime::seconds(5));
        held = sessions[to].acquire(ask).expect("it is free");
        assert_eq!(held.mechanism(), if to == 1 { Mechanism::RegionKey } else { host.mechanism() });
        if round % 5 == 0 {
            // The node's thread sleeps, and a datagram wakes it.
            std::thread::sleep(IDLE);
        }
        let mut bytes = [0; 4096];
        sessions[to].read(&held, 0, &mut bytes).expect("read");
        assert_eq!(bytes, [round - 1; 4096]);
        sessions[to].write(&held, 0, &[round; 4096]).expect("written");
        if from == 1 {
            // The former holder uses its old credential once more.
            let former = &mut sessions[from];
            let mut buffer = former.buffer(64).expect("room");
            buffer.write(0, &[0xee; 64]);
            let write = Access::write(Unchecked::new(address, credential), 0, buffer);
            let operation = former.client().dangerous_access(write).expect("it begins");
            assert!(former.wait(operation).expect("it ends").result.is_err(), "the old holder is refused");
            sessions[to].read(&held, 0, &mut bytes).expect("read");
            assert_eq!(bytes, [round; 4096]);
        }
    }
    sessions[0].revoke_and_free(held).expect("it has not ended");
    drop(sessions);
    wait_for("the node to be empty", || {
        let it = host.counters();
        [it.clients, it.permissions, it.objects, it.bytes_used].iter().all(|&it| it == 0)
    });
}

//! Certificates: a channel at a node that requires them can be reached with certificates of the node's authority, and
//! with no others.

use crate::rig::{CHANNEL, LONG, RED, at_node};
use portcullis::ConnectError;
use portcullis::host::{Host, HostConfig, NetworkListen, UdpConfig};
use portcullis::{ClientIdentity, ClientSecurity, NodeIdentity, NodeSecurity, SessionOptions, UdpOptions};
use portcullis_attach::tls::certificates::{Validity, make_authority, make_node, make_tenant};
use portcullis_rpc::channel::{
    ChannelAddress, Connection, ConnectionError, ConnectionOptions, Copied, serve,
};
use std::path::Path;
use std::time::SystemTime;
use tempfile::tempdir;

const TWICE: u32 = 1;

/// Creates an authority in a folder, with a node and a tenant.
fn papers(folder: &Path) -> (NodeIdentity, ClientIdentity) {
    let validity = Validity { now: SystemTime::now(), days: 10 };
    make_authority(folder, validity).expect("an authority");
    make_node(folder, "one", &["127.0.0.1".to_owned()], validity).expect("a node's certificate");
    make_tenant(folder, RED, validity).expect("a tenant's certificate");
    let path = |name: &str| folder.join(name);
    let node = NodeIdentity::load(&path("ca.pem"), &path("node-one.pem"), &path("node-one-key.pem"));
    let tenant = ClientIdentity::load(&path("ca.pem"), &path("tenant-red.pem"), &path("tenant-red-key.pem"));
    (node.expect("an identity"), tenant.expect("an identity"))
}

fn open(address: &ChannelAddress, security: ClientSecurity) -> Result<Connection, ConnectionError> {
    let udp = UdpOptions { security, ..UdpOptions::default() };
    let session = SessionOptions { udp, ..SessionOptions::default() };
    Connection::open_at(address, &session, ConnectionOptions { within: LONG, ..ConnectionOptions::default() })
}

#[test]
fn a_channel_is_reached_with_a_certificate_of_its_nodes_authority_and_with_no_other() {
    let folders = [tempdir().expect("a folder"), tempdir().expect("a folder")];
    let [(node, tenant), (_, foreign)] = [0, 1].map(|it| papers(folders[it].path()));
    let listen = NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Tls(node),
        plain_anywhere: false,
        tenant: None,
    };
    let udp = Some(UdpConfig { listen: vec![listen], ..UdpConfig::default() });
    let host = Host::start(HostConfig { udp, ..HostConfig::default() }).expect("a node");
    let channel =
        serve(folders[0].path().join("local.sock")).copied(TWICE, |number: Copied<'_, u64>, reply| {
            reply.set_word(number.word() * 2);
            Ok(())
        });
    let _server = channel.at_node(&host, at_node()).expect("a place").start().expect("a server");
    let address = format!("udp:{}#{CHANNEL}", host.network_addresses()[0]).parse().expect("an address");
    for security in [ClientSecurity::Tls(foreign), ClientSecurity::Plain { anywhere: false }] {
        let error = open(&address, security).expect_err("it has no certificate that the node knows");
        assert!(matches!(error, ConnectionError::Session(ConnectError::Udp(_))), "{error}");
    }
    let mut connection = open(&address, ClientSecurity::Tls(tenant)).expect("a connection");
    assert_eq!(connection.call_with_word(TWICE, 21).expect("an answer").word(), 42);
}

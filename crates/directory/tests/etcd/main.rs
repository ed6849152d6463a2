//! The directory in a real etcd keeps the promises of every directory. Also tests an etcd that stops, a peer that is
//! not etcd, and an etcd that is not trusted.

mod away;
mod deleted;
mod gateways;
#[macro_use]
#[path = "../promises/mod.rs"]
mod promises;
mod rig;
mod tls;

use portcullis_directory::etcd::{Etcd, EtcdOptions};
use portcullis_directory::{Directory, DirectoryError, Space, Who};
use promises::{Promise, lease, space};

fn with_etcd(test: &str, promise: Promise) {
    let Some(server) = rig::shared() else { return };
    // Each test has a prefix of its own.
    promise(&Etcd::connect(&server.options(&test[..test.len().min(64)]), space()).expect("etcd serves"));
}

keeps_all_promises!(with_etcd);

#[test]
fn another_endpoint_is_asked_where_one_is_away() {
    let Some(server) = rig::shared() else { return };
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let dead = gone.local_addr().expect("it is bound");
    drop(gone);
    let endpoints = format!("http://{dead},{}", server.address());
    let options = EtcdOptions { endpoints, ..server.options("two-endpoints") };
    let etcd = Etcd::connect(&options, space()).expect("one of them serves");
    let bank = lease(&etcd, "bank");
    etcd.create_heap(&bank, 4096, &Who::nobody()).expect("one of them serves");
}

#[test]
fn all_have_to_give_out_the_same_addresses() {
    let Some(server) = rig::shared() else { return };
    let options = server.options("two-spaces");
    Etcd::connect(&options, space()).expect("the first says");
    Etcd::connect(&options, space()).expect("the same");
    let other = Space::new(1 << 40..1 << 44, 4096, 1 << 30).expect("a space");
    let told = Etcd::connect(&options, other).expect_err("others");
    assert!(matches!(told, DirectoryError::OtherSpace { .. }), "{told}");
}

//! Keys that another process deletes in etcd while their leases live: the registered entries are restored soon.

use crate::promises::{entry, name, space, tenant};
use crate::rig::{self, Server};
use portcullis_directory::etcd::Etcd;
use portcullis_directory::{Access, Change, Directory, Holding, LEASE_MAX, Registration, Watch, Who};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Far less than the time until the next turn of a lease of a day.
const SOON: Duration = Duration::from_mins(1);

/// Deletes the keys from `first` up to `end`, without `end`.
fn delete(server: &Server, first: &str, end: &str) {
    use base64::Engine;
    let encoded = |text: &str| base64::prelude::BASE64_STANDARD.encode(text);
    let body = format!(r#"{{"key": "{}", "range_end": "{}"}}"#, encoded(first), encoded(end));
    let answer = ureq::post(format!("{}/v3/kv/deleterange", server.address())).send(body);
    assert!(answer.expect("etcd serves").status().is_success());
}

fn delete_below(server: &Server, folder: &str) {
    delete(server, &format!("{folder}/"), &format!("{folder}0"));
}

/// Registers `bank/payments` for a day.
fn register(etcd: &Etcd) -> (Registration, Receiver<Change>) {
    let entry = Some((name("bank/payments"), entry("/run/a.sock", Access::public())));
    let holding = Holding { tenant: tenant("bank"), time_to_live: LEASE_MAX, entry };
    let (sender, told) = channel();
    let opened: Arc<dyn Directory> = Arc::new(etcd.clone());
    let open = move || Ok(Arc::clone(&opened));
    let registration = Registration::start(holding, open, move |change| {
        let _ = sender.send(change);
    });
    let registration = registration.expect("a thread");
    assert_eq!(told.recv_timeout(SOON), Ok(Change::Registered));
    (registration, told)
}

#[test]
fn a_name_is_back_soon_after_its_key_was_deleted() {
    let Some(server) = rig::shared() else { return };
    let etcd = Etcd::connect(&server.options("deleted-name"), space()).expect("etcd serves");
    let (_registration, told) = register(&etcd);
    for _ in 0..2 {
        delete_below(&server, "/deleted-name/names");
        assert_eq!(told.recv_timeout(SOON), Ok(Change::Back));
        assert!(etcd.look_up(&tenant("shop"), &name("bank/payments")).is_ok());
    }
}

#[test]
fn a_name_is_back_soon_after_all_keys_were_deleted() {
    let Some(server) = rig::shared() else { return };
    let etcd = Etcd::connect(&server.options("deleted-all"), space()).expect("etcd serves");
    let (_registration, told) = register(&etcd);
    delete_below(&server, "/deleted-all");
    assert_eq!(told.recv_timeout(SOON), Ok(Change::Back));
    let found = etcd.look_up(&tenant("shop"), &name("bank/payments")).expect("it is back");
    // The keys that the quota counts are restored too, and the key of the address space.
    let lease = _registration.lease();
    assert!(lease.is_none_or(|lease| lease.id() == found.lease));
    let other = portcullis_directory::Space::new(1 << 40..1 << 44, 4096, 1 << 30).expect("a space");
    assert!(Etcd::connect(&server.options("deleted-all"), other).is_err());
}

#[test]
fn what_a_lease_claims_is_written_again_where_only_that_was_deleted() {
    let Some(server) = rig::shared() else { return };
    let etcd = Etcd::connect(&server.options("deleted-claim"), space()).expect("etcd serves");
    let lease = crate::promises::lease(&etcd, "bank");
    let (payments, there) = (name("bank/payments"), entry("/run/a.sock", Access::public()));
    etcd.register(&lease, &payments, &there).expect("the name is free");
    let claim = format!("/deleted-claim/claims/bank/{}/name", lease.id());
    delete_below(&server, &claim);
    assert_eq!(etcd.usage(&lease).expect("it lives").names, 0);
    etcd.register(&lease, &payments, &there).expect("its own name");
    assert_eq!(etcd.usage(&lease).expect("it lives").names, 1);
}

#[test]
fn a_holder_whose_key_was_deleted_holds_the_heap_again_and_a_heap_without_a_key_is_gone() {
    let Some(server) = rig::shared() else { return };
    let etcd = Etcd::connect(&server.options("deleted-heap"), space()).expect("etcd serves");
    let lease = crate::promises::lease(&etcd, "bank");
    let heap = etcd.create_heap(&lease, 4096, &Who::nobody()).expect("room");
    delete_below(&server, "/deleted-heap/holders");
    assert_eq!(etcd.heaps(&lease).expect("it lives"), []);
    assert_eq!(etcd.hold_heap(&lease, heap.address).expect("it is claimed"), heap);
    assert_eq!(etcd.heaps(&lease).expect("it lives"), [heap]);
    let watch: Box<dyn Watch<BTreeSet<_>>> = etcd.watch_heap(&lease, heap.address).expect("it is held");
    assert_eq!(*watch.seen(), BTreeSet::from([lease.id()]));
    delete_below(&server, "/deleted-heap/heaps");
    assert_eq!(etcd.heaps(&lease).expect("it lives"), []);
    assert!(etcd.hold_heap(&lease, heap.address).is_err(), "its addresses may become another heap's");
}

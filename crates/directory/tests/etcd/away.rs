//! etcd stops, and returns.

use crate::promises::{entry, lease, name, next, space, tenant};
use crate::rig::Server;
use portcullis_directory::etcd::{Etcd, EtcdOptions};
use portcullis_directory::{Access, Directory, DirectoryError, Who};
use portcullis_errors::{Coded, ErrorCode};
use std::time::Duration;

#[test]
fn what_is_confirmed_is_there_when_etcd_has_crashed_and_come_back() {
    let Some(mut server) = Server::start() else { return };
    let etcd = Etcd::connect(&server.options("portcullis"), space()).expect("etcd serves");
    let (bank, channel) = (lease(&etcd, "bank"), name("bank/a"));
    let first = entry("/run/a.sock", Access::public());
    etcd.register(&bank, &channel, &first).expect("free");
    let heap = etcd.create_heap(&bank, 4096, &Who::nobody()).expect("room");
    let mut watch = etcd.watch(&tenant("shop"), &channel).expect("anybody may look");
    server.kill();
    let away = [
        etcd.look_up(&tenant("shop"), &channel).map(|_| ()),
        etcd.register(&bank, &name("bank/b"), &first),
        etcd.keep_alive(&bank),
        etcd.create_heap(&bank, 4096, &Who::nobody()).map(|_| ()),
        etcd.reclaim().map(|_| ()),
        watch.next(Duration::from_secs(60)).map(|_| ()),
        etcd.open_lease(&tenant("bank"), Duration::from_secs(9)).map(|_| ()),
    ];
    for told in away {
        // Each call begins with a request that changes nothing.
        let told = told.expect_err("there is no etcd");
        assert!(matches!(told, DirectoryError::Away { may_have_happened: false, .. }), "{told}");
        assert_eq!(told.code(), ErrorCode::DirectoryAway);
        assert!(told.to_string().contains(&server.address()), "{told}");
    }
    server.restart();
    assert_eq!(etcd.look_up(&tenant("shop"), &channel).expect("it was confirmed").target, first.target);
    assert_eq!(etcd.heaps(&bank).expect("the lease goes on"), [heap]);
    assert_eq!(etcd.usage(&bank).expect("the lease goes on").names, 1);
    etcd.keep_alive(&bank).expect("the lease goes on");
    etcd.withdraw(&bank, &channel).expect("its own");
    assert_eq!(next(&mut *watch), None, "the watch goes on");
}

#[test]
fn an_etcd_that_stands_still_ends_each_call_in_time() {
    let Some(server) = Server::start() else { return };
    let options = EtcdOptions { patience: Duration::from_secs(2), ..server.options("portcullis") };
    let etcd = Etcd::connect(&options, space()).expect("etcd serves");
    let (bank, channel) = (lease(&etcd, "bank"), name("bank/a"));
    etcd.register(&bank, &channel, &entry("/run/a.sock", Access::public())).expect("free");
    let mut watch = etcd.watch(&tenant("shop"), &channel).expect("anybody may look");
    server.stop();
    let looked = etcd.look_up(&tenant("shop"), &channel).expect_err("it does not answer");
    assert!(matches!(looked, DirectoryError::Away { may_have_happened: false, .. }), "{looked}");
    let watched = watch.next(Duration::from_millis(100)).expect_err("it does not answer");
    assert_eq!(watched.code(), ErrorCode::DirectoryAway);
    let withdrawn = etcd.withdraw(&bank, &channel).expect_err("it does not answer");
    assert!(matches!(withdrawn, DirectoryError::Away { may_have_happened: true, .. }), "{withdrawn}");
    assert!(withdrawn.to_string().ends_with("The request may have taken effect"), "{withdrawn}");
    server.resume();
    // The withdrawal has happened or not; repeating it makes sure.
    let patient = Etcd::connect(&server.options("portcullis"), space()).expect("etcd serves");
    let again = patient.withdraw(&bank, &channel);
    assert!(again.is_ok() || again == Err(DirectoryError::NoSuchName(channel.clone())), "{again:?}");
    assert!(patient.look_up(&tenant("shop"), &channel).is_err());
}

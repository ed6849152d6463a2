//! Channels that are found by their names: in a directory of this process, in that of another process, and in a real
//! etcd.

#[path = "../../directory/tests/etcd/rig.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod rig;

use portcullis_directory::etcd::Etcd;
use portcullis_directory::{
    Access, Address, Directory, Embedded, Entry, HeapRange, Lease, LeaseId, Name, Remote, Server as Names,
    Space, Target, Trust, Watch, Who,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;
use portcullis_rpc::channel::{
    Channel, ConnectionOptions, Copied, Found, Naming, Server, ServerOptions, SocketAccess, find, serve,
};
use portcullis_rpc::{Boxed, Text};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const LENGTH: u32 = 1;
/// More time than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn tenant(name: &str) -> TenantName {
    TenantName::new(name).expect("a tenant")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Tests a promise over each kind of directory.
fn over_each(test: &str, promise: impl Fn(Arc<dyn Directory>)) {
    promise(Arc::new(Embedded::new(Space::usual())));
    let folder = TempDir::new().expect("a folder");
    let (path, access) = (folder.path().join("a.directory"), SocketAccess { mode: 0o600, group: None });
    let served = Embedded::new(Space::usual());
    let _names = Names::start(served, &path, access, Trust::in_own_user()).expect("a socket");
    promise(Arc::new(Remote::connect(&path, PATIENCE, Space::usual()).expect("it is served")));
    if let Some(etcd) = rig::shared() {
        promise(Arc::new(Etcd::connect(&etcd.options(test), Space::usual()).expect("etcd serves")));
    }
}

fn channel(path: &Path) -> Channel {
    serve(path).copied(LENGTH, |text: Copied<'_, Text>, reply| {
        reply.set_word(text.get()?.get(text.view())?.len() as u64);
        Ok(())
    })
}

fn named(folder: &TempDir, directory: &Arc<dyn Directory>, channel_name: &str) -> Server {
    let path = folder.path().join(channel_name.replace('/', "-"));
    channel(&path).named(Naming::new(Arc::clone(directory), name(channel_name))).start().expect("a server")
}

fn found(directory: &Arc<dyn Directory>, of: &str, channel: &str) -> Found {
    find(Arc::clone(directory), &tenant(of), &name(channel), ConnectionOptions::default())
        .expect("it is there")
}

fn call(connection: &mut Found) -> u64 {
    let scope = connection.scope(4096).expect("room");
    let text = Boxed::new(&scope, Text::new(&scope, "Ada").expect("room")).expect("room");
    connection.call(LENGTH, &scope, text).expect("an answer").word()
}

fn lease(directory: &dyn Directory, of: &str) -> Lease {
    directory.open_lease(&tenant(of), Duration::from_secs(600)).expect("room")
}

/// Waits until `count` leases hold the heap.
#[track_caller]
fn until_holders(watch: &mut dyn Watch<BTreeSet<LeaseId>>, count: usize) {
    while watch.seen().len() != count {
        let told = watch.next(PATIENCE).expect("the directory is there");
        assert!(told.is_some(), "{count} holders are waited for: {:?}", watch.seen());
    }
}

fn place(connection: &Found) -> HeapRange {
    let place = connection.heap().place();
    HeapRange { address: place.start(), bytes: place.length }
}

#[test]
fn a_channel_is_found_by_its_name_and_ends_with_its_server() {
    over_each("found", |directory| {
        let folder = TempDir::new().expect("a folder");
        let server = named(&folder, &directory, "bank/lengths");
        let mut connection = found(&directory, "bank", "bank/lengths");
        assert_eq!(call(&mut connection), 3);
        drop(server);
        let gone = find(
            Arc::clone(&directory),
            &tenant("bank"),
            &name("bank/lengths"),
            ConnectionOptions::default(),
        );
        assert_eq!(gone.expect_err("it has ended").code(), ErrorCode::NoSuchName);
    });
}

#[test]
fn heaps_of_all_servers_have_addresses_of_their_own() {
    over_each("apart", |directory| {
        let folder = TempDir::new().expect("a folder");
        let names = ["bank/one", "bank/two", "shop/three"];
        let _servers = names.map(|channel| named(&folder, &directory, channel));
        let mut ranges: Vec<HeapRange> = Vec::new();
        let mut connections = Vec::new();
        for channel in names.iter().cycle().take(9) {
            let mut connection = found(&directory, channel.split('/').next().expect("a tenant"), channel);
            assert_eq!(call(&mut connection), 3);
            let held = directory.heaps(&connection.lease().expect("it lives")).expect("it lives");
            assert_eq!(held[0].address, place(&connection).address, "the client holds its heap");
            assert!(held[0].bytes >= place(&connection).bytes);
            ranges.extend(held);
            connections.push(connection);
        }
        ranges.sort_unstable();
        assert_eq!(ranges.len(), 9);
        assert!(ranges.is_sorted_by(|one, next| one.address + one.bytes <= next.address), "{ranges:x?}");
    });
}

#[test]
fn a_heap_is_held_by_both_ends_and_given_back_by_the_last() {
    over_each("held", |directory| {
        let folder = TempDir::new().expect("a folder");
        let server = named(&folder, &directory, "bank/held");
        let connection = found(&directory, "bank", "bank/held");
        let (third, address) = (lease(&*directory, "bank"), place(&connection).address);
        directory.hold_heap(&third, address).expect("the same tenant");
        let mut watch = directory.watch_heap(&third, address).expect("it holds it");
        assert_eq!(watch.seen().len(), 3, "server, client, and the one who watches");
        drop(connection);
        until_holders(&mut *watch, 1);
        drop(server);
        directory.release_heap(&third, address).expect("it held it");
        let told = directory.hold_heap(&third, address);
        assert_eq!(told.expect_err("nobody holds it any more").code(), ErrorCode::NoSuchHeap);
    });
}

#[test]
fn a_server_whose_lease_ends_leaves_its_heaps_to_its_clients() {
    over_each("left", |directory| {
        let folder = TempDir::new().expect("a folder");
        let server = named(&folder, &directory, "bank/left");
        let mut connection = found(&directory, "bank", "bank/left");
        let its = connection.lease().expect("it lives").id();
        let (third, address) = (lease(&*directory, "bank"), place(&connection).address);
        directory.hold_heap(&third, address).expect("the same tenant");
        let mut watch = directory.watch_heap(&third, address).expect("it holds it");
        drop(server);
        until_holders(&mut *watch, 2);
        assert_eq!(watch.seen(), &BTreeSet::from([its, third.id()]));
        // The contents of the heap can be read for as long as any process has it.
        let scope = connection.scope(4096).expect("the heap is there");
        assert!(Text::new(&scope, "still here").is_ok());
        assert!(connection.call_with_word(LENGTH, 0).is_err(), "the server is gone");
    });
}

#[test]
fn a_client_holds_its_heap_again_after_its_lease_has_ended() {
    over_each("again", |directory| {
        let folder = TempDir::new().expect("a folder");
        let _server = named(&folder, &directory, "bank/again");
        let mut connection = found(&directory, "bank", "bank/again");
        let (third, address) = (lease(&*directory, "bank"), place(&connection).address);
        directory.hold_heap(&third, address).expect("the same tenant");
        let mut watch = directory.watch_heap(&third, address).expect("it holds it");
        let ended = connection.lease().expect("it lives");
        directory.end_lease(&ended).expect("it lives");
        // The client may hold the heap again before the watch has reported that its lease has ended.
        while watch.seen().contains(&ended.id()) {
            assert!(watch.next(PATIENCE).expect("the directory is there").is_some(), "{:?}", watch.seen());
        }
        until_holders(&mut *watch, 3);
        assert!(!watch.seen().contains(&ended.id()), "a lease does not come back");
        assert_eq!(call(&mut connection), 3);
        assert!(connection.holds_heap());
    });
}

#[test]
fn orphaned_heaps_are_taken_back() {
    let folder = TempDir::new().expect("a folder");
    let (path, access) = (folder.path().join("a.directory"), SocketAccess { mode: 0o600, group: None });
    let embedded = Embedded::new(Space::usual());
    let names = Names::start(embedded.clone(), &path, access, Trust::in_own_user()).expect("a socket");
    let remote = Remote::connect(&path, PATIENCE, Space::usual()).expect("it is served");
    let directory: Arc<dyn Directory> = Arc::new(remote);
    let _server = named(&folder, &directory, "bank/orphans");
    let mut connection = found(&directory, "bank", "bank/orphans");
    assert!(embedded.reclaim().expect("it is here").is_empty(), "both ends hold it");
    // The connection of both ends to the directory is closed, as if both had died.
    drop(names);
    let left = embedded.reclaim().expect("it is here");
    let addresses: Vec<u64> = left.iter().map(|heap| heap.address).collect();
    assert_eq!(addresses, [place(&connection).address]);
    assert_eq!(call(&mut connection), 3, "calls need no directory");
}

#[test]
fn who_is_not_on_the_list_does_not_find_the_channel() {
    over_each("lists", |directory| {
        let folder = TempDir::new().expect("a folder");
        let friends = Who::tenants([tenant("shop")]).expect("one");
        let access = Access { look_up: friends, register: Who::nobody() };
        let naming = Naming::new(Arc::clone(&directory), name("bank/friends")).with_access(access);
        let _server = channel(&folder.path().join("friends")).named(naming).start().expect("a server");
        assert_eq!(call(&mut found(&directory, "shop", "bank/friends")), 3);
        assert_eq!(call(&mut found(&directory, "bank", "bank/friends")), 3);
        let stranger = find(
            Arc::clone(&directory),
            &tenant("thief"),
            &name("bank/friends"),
            ConnectionOptions::default(),
        );
        assert_eq!(stranger.expect_err("it is not for it").code(), ErrorCode::NoSuchName);
    });
}

#[test]
fn a_name_that_is_taken_or_stands_for_something_else_is_told() {
    over_each("taken", |directory| {
        let folder = TempDir::new().expect("a folder");
        let _server = named(&folder, &directory, "bank/taken");
        let naming = Naming::new(Arc::clone(&directory), name("bank/taken"));
        let second = channel(&folder.path().join("second")).named(naming).start();
        assert_eq!(second.expect_err("it is taken").code(), ErrorCode::NameTaken);
        let holder = lease(&*directory, "bank");
        let address = |text: &str| Address::new(text).expect("an address");
        let wrong = [
            (
                Target::Node { addresses: vec![address("udp:a:1")], memory_bytes: 1 },
                ErrorCode::NameOfAnotherKind,
            ),
            (Target::Channel { address: address("/run/a.sock") }, ErrorCode::NameLeadsNowhere),
            (Target::Channel { address: address("udp:10.0.0.7:1") }, ErrorCode::NameLeadsNowhere),
            (
                Target::Channel { address: address("shm:/a?boot=b&device=1&inode=2") },
                ErrorCode::NameLeadsNowhere,
            ),
        ];
        for (target, code) in wrong {
            let entry = Entry { target, access: Access::public() };
            directory.register(&holder, &name("bank/other"), &entry).expect("its own name");
            let options = ConnectionOptions::default();
            let told = find(Arc::clone(&directory), &tenant("shop"), &name("bank/other"), options);
            let told = told.expect_err("no channel of this machine");
            assert_eq!(told.code(), code, "{told}");
        }
    });
}

#[test]
fn a_heap_that_the_directory_does_not_give_is_refused_and_told() {
    // No other test of this process has these addresses: a heap whose addresses are taken counts too. The usual space
    // does not contain them.
    let space = Space::new(0x4800_0000_0000..0x4c00_0000_0000, 1 << 16, 1 << 30).expect("4 TiB have room");
    let directory: Arc<dyn Directory> = Arc::new(Embedded::new(space));
    let folder = TempDir::new().expect("a folder");
    let quota = portcullis_directory::Quota { process_bytes: 100 << 20, ..Default::default() };
    directory.set_quota(None, quota).expect("it is here");
    let server = named(&folder, &directory, "bank/quota");
    let mut first = found(&directory, "bank", "bank/quota");
    let second =
        find(Arc::clone(&directory), &tenant("bank"), &name("bank/quota"), ConnectionOptions::default());
    let told = second.expect_err("two heaps of 64 MiB are more");
    assert!(told.to_string().contains("the quota of tenant bank is 104857600 bytes"), "{told}");
    assert_eq!(call(&mut first), 3, "others go on");
    drop(first);
    // Another thread gives its place back, so several tries may be needed.
    let third = (0..).find_map(|_| {
        let options = ConnectionOptions::default();
        find(Arc::clone(&directory), &tenant("bank"), &name("bank/quota"), options).ok()
    });
    assert_eq!(call(&mut third.expect("there is room again")), 3);
    drop(server);
}

#[test]
fn the_heap_of_all_clients_has_addresses_from_the_directory_too() {
    over_each("all", |directory| {
        let folder = TempDir::new().expect("a folder");
        let naming = Naming::new(Arc::clone(&directory), name("bank/all"));
        let options = ServerOptions::default();
        let shared = channel(&folder.path().join("all")).with(options).shared_heap(1 << 20);
        let server = shared.named(naming).start().expect("a server");
        let connection = found(&directory, "bank", "bank/all");
        let heap = connection.shared_heap().expect("the channel has one");
        let address = heap.place().start();
        let holder = lease(&*directory, "bank");
        directory.hold_heap(&holder, address).expect("the directory knows it");
        drop((connection, server));
    });
}

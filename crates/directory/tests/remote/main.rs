//! A directory that another process serves over a Unix socket keeps the promises of every directory. Also tests clients
//! that misbehave there.

mod peers;
#[macro_use]
#[path = "../promises/mod.rs"]
mod promises;

use portcullis_attach::Limits;
use portcullis_attach::unix::SocketAccess;
use portcullis_directory::{
    Access, Directory, DirectoryError, Embedded, LeaseId, Quota, Remote, Server, Space, Trust, Who,
};
use portcullis_errors::{Coded, ErrorCode};
use promises::{Promise, entry, lease, name, next, space, tenant};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any action takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A served directory.
#[derive(Debug)]
struct Served {
    directory: Embedded,
    server: Option<Server>,
    folder: TempDir,
}

impl Served {
    fn start(trust: Trust) -> Self {
        Self::with(trust, Limits::UNIX)
    }

    fn with(trust: Trust, limits: Limits) -> Self {
        let (folder, directory) = (TempDir::new().expect("a folder"), Embedded::new(space()));
        let mut served = Self { directory, server: None, folder };
        served.serve(trust, limits);
        served
    }

    fn serve(&mut self, trust: Trust, limits: Limits) {
        let access = SocketAccess { mode: 0o600, group: None };
        let server = Server::start_with(self.directory.clone(), &self.path(), access, trust, limits);
        self.server = Some(server.expect("a socket"));
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("names.directory")
    }

    fn client(&self) -> Remote {
        Remote::connect(&self.path(), PATIENCE, space()).expect("it is served")
    }

    /// Waits until the name has no entry in the directory, after an action that ends it.
    #[track_caller]
    fn until_not_found(&self, channel: &str) {
        let mut watch = self.directory.watch(&tenant("bank"), &name(channel)).expect("it is here");
        if watch.seen().is_some() {
            assert_eq!(next(&mut *watch), None);
        }
    }
}

fn with_remote(_: &str, promise: Promise) {
    promise(&Served::start(Trust::in_own_user()).client());
}

keeps_all_promises!(with_remote);

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn what_a_client_has_ends_with_its_connection_and_others_are_told() {
    let served = Served::start(Trust::in_own_user());
    let (dying, other) = (served.client(), served.client());
    let (its, others) = (lease(&dying, "bank"), lease(&other, "bank"));
    dying.register(&its, &name("bank/a"), &entry("/run/a.sock", Access::public())).expect("the name is free");
    let heap = dying.create_heap(&its, 4096, &Who::nobody()).expect("room");
    other.hold_heap(&others, heap.address).expect("the same tenant");
    let mut names = other.watch(&tenant("bank"), &name("bank/a")).expect("it may");
    let mut holders = other.watch_heap(&others, heap.address).expect("it holds the heap");
    assert!(names.seen().is_some());
    assert_eq!(holders.seen(), &BTreeSet::from([its.id(), others.id()]));
    drop(dying);
    assert_eq!(next(&mut *names), None);
    assert_eq!(next(&mut *holders), BTreeSet::from([others.id()]));
    assert_eq!(other.keep_alive(&its), Err(DirectoryError::LeaseEnded(its.id())));
}

#[test]
fn a_user_who_is_not_trusted_is_a_tenant_and_no_other() {
    let served = Served::start(Trust::default());
    let client = served.client();
    let own = format!("uid:{}", own_user());
    for told in [
        client.open_lease(&tenant("bank"), PATIENCE).map(|_| ()),
        client.look_up(&tenant("bank"), &name("bank/a")).map(|_| ()),
        client.watch(&tenant("bank"), &name("bank/a")).map(|_| ()),
        client.list(&tenant("bank"), &name("bank")).map(|_| ()),
        client.watch_list(&tenant("bank"), &name("bank")).map(|_| ()),
    ] {
        let told = told.expect_err("it is another tenant");
        assert_eq!(told.code(), ErrorCode::NotThisTenant);
        assert!(told.to_string().contains(&own), "{told}");
    }
    for told in [client.reclaim().map(|_| ()), client.set_quota(None, Quota::default())] {
        assert_eq!(told.expect_err("it does not keep the directory").code(), ErrorCode::DirectoryRefused);
    }
    let its = lease(&client, &own);
    let below_own = name(&format!("{own}/a"));
    client.register(&its, &below_own, &entry("/run/a.sock", Access::private())).expect("its own name");
    let told = client.register(&its, &name("bank/a"), &entry("/run/a.sock", Access::private()));
    assert_eq!(told.expect_err("another's name").code(), ErrorCode::RegistrationNotAllowed);
    client.look_up(&tenant(&own), &below_own).expect("its own");
    // The client does not see the private entries of others; it sees the public ones.
    let bank = lease(&served.directory, "bank");
    served.directory.register(&bank, &name("bank/a"), &entry("/a", Access::private())).expect("free");
    served.directory.register(&bank, &name("bank/b"), &entry("/b", Access::public())).expect("free");
    assert!(client.look_up(&tenant(&own), &name("bank/a")).is_err());
    client.look_up(&tenant(&own), &name("bank/b")).expect("for all");
    let listed = client.list(&tenant(&own), &name("bank")).expect("it is itself");
    assert_eq!(listed.into_keys().collect::<Vec<_>>(), [name("bank/b")]);
}

#[test]
fn quotas_hold_for_all_connections_of_a_user_together() {
    let served = Served::start(Trust::default());
    let own = tenant(&format!("uid:{}", own_user()));
    served.directory.set_quota(None, Quota { leases: 2, ..Quota::default() }).expect("it is here");
    let clients = [served.client(), served.client(), served.client()];
    let opened = clients.iter().map(|client| client.open_lease(&own, PATIENCE));
    let opened: Vec<_> = opened.collect();
    assert_eq!(opened.iter().filter(|told| told.is_ok()).count(), 2);
    assert_eq!(opened[2].as_ref().expect_err("the third").code(), ErrorCode::DirectoryQuota);
}

#[test]
fn a_lease_of_another_connection_is_of_no_use() {
    let served = Served::start(Trust::in_own_user());
    let (one, other) = (served.client(), served.client());
    let its = lease(&one, "bank");
    let ended = DirectoryError::LeaseEnded(its.id());
    assert_eq!(other.keep_alive(&its), Err(ended.clone()));
    assert_eq!(other.register(&its, &name("bank/a"), &entry("/a", Access::public())), Err(ended.clone()));
    assert_eq!(other.create_heap(&its, 4096, &Who::nobody()), Err(ended.clone()));
    assert_eq!(other.heaps(&its), Err(ended));
    other.end_lease(&its).expect("one that has ended stays so");
    one.keep_alive(&its).expect("nobody else has ended it");
}

#[test]
fn a_server_that_ends_is_away_and_what_follows_it_has_no_leases() {
    let mut served = Served::start(Trust::in_own_user());
    let client = served.client();
    let its = lease(&client, "bank");
    let mut watch = client.watch(&tenant("bank"), &name("bank/a")).expect("it may");
    served.server = None;
    assert_eq!(client.keep_alive(&its).expect_err("it has ended").code(), ErrorCode::DirectoryAway);
    assert_eq!(watch.next(PATIENCE).expect_err("it has ended").code(), ErrorCode::DirectoryAway);
    served.serve(Trust::in_own_user(), Limits::UNIX);
    assert_eq!(client.keep_alive(&its), Err(DirectoryError::LeaseEnded(its.id())));
    let again = lease(&client, "bank");
    client.register(&again, &name("bank/a"), &entry("/a", Access::public())).expect("free");
    assert!(next(&mut *watch).is_some(), "the watch goes on");
}

#[test]
fn all_have_to_say_the_same_addresses() {
    let served = Served::start(Trust::in_own_user());
    let told = Remote::connect(&served.path(), PATIENCE, Space::usual()).expect_err("other addresses");
    assert!(matches!(told, DirectoryError::OtherSpace { .. }), "{told}");
}

#[test]
fn lists_that_are_longer_than_a_message_arrive_whole() {
    let folder = TempDir::new().expect("a folder");
    let (path, directory) = (folder.path().join("many.directory"), Embedded::new(Space::usual()));
    let access = SocketAccess { mode: 0o600, group: None };
    let _server = Server::start(directory, &path, access, Trust::in_own_user()).expect("a socket");
    let client = Remote::connect(&path, PATIENCE, Space::usual()).expect("it is served");
    let its = lease(&client, "bank");
    let made: BTreeSet<_> = (0..2_500)
        .map(|_| client.create_heap(&its, 1 << 16, &Who::nobody()).expect("room").address)
        .collect();
    let told = client.heaps(&its).expect("its own");
    assert_eq!(told.iter().map(|heap| heap.address).collect::<BTreeSet<_>>(), made);
    assert_eq!(made.len(), 2_500);
    client.keep_alive(&its).expect("the conversation goes on");
    assert_eq!(client.keep_alive(&lease(&client, "shop")), Ok(()));
    assert_ne!(its.id(), LeaseId(0));
}

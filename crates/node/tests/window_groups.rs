//! Mechanism `window-group`: a key opens nothing on any queue pair but its own, and the windows of a group come and go
//! together.

mod rig;

use portcullis_nic::{LocalSpan, Nic, Operation, RemoteSpan, Status, VerbsEndpoint};
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    Credential, Granted, Keep, KeyGroup, Lifetime, Mechanism, RemoteAddress, ReplyBody, RequestBody, Rights,
    Rkey, Sharing,
};
use rig::{Rig, granted, refused, word};

/// Data queue pairs of the rig's clients.
const QUEUE_PAIRS: u32 = 2;
const REFUSED: Status = Status::RemoteAccessError;
/// With all rights one window covers lifetime word and buffer, with fewer there are two.
const RIGHTS: [Rights; 2] = [Rights::all(), Rights::READ];

fn rig() -> Rig {
    let mut config = NodeConfig { mechanism: Mechanism::WindowGroup, ..rig::config() };
    config.violations.free_max = u32::MAX;
    Rig::new(config)
}

fn allocation(rights: Rights) -> RequestBody {
    let (lifetime, sharing, keep) = (Lifetime::millis(100), Sharing::Exclusive, Keep::No);
    RequestBody::Allocate { size: 64, alignment: 0, lifetime, rights, sharing, keep }
}

fn allocate(rig: &mut Rig, client: usize, rights: Rights) -> Granted {
    granted(rig.ask(client, allocation(rights)))
}

fn group(granted: &Granted) -> KeyGroup {
    match granted.credential {
        Credential::Group(group) => group,
        other => panic!("no group: {other:?}"),
    }
}

/// An access of a client's queue pair that moves or changes nothing. A queue pair that it breaks is rebuilt.
fn try_key(
    rig: &mut Rig,
    (client, queue_pair): (usize, u32),
    access: impl FnOnce(LocalSpan) -> Operation,
) -> Status {
    let local = LocalSpan { address: 512 << 10, length: 8, lkey: rig.seat(client).lkey() };
    let status = rig.operate(client, queue_pair, access(local));
    if status != Status::Success {
        rig.settle();
        assert_eq!(rig.ask(client, RequestBody::Recover { queue_pair }), ReplyBody::Done);
        rig.seat(client).endpoint.rebuilt(queue_pair);
    }
    status
}

fn read(rig: &mut Rig, on: (usize, u32), key: Rkey, it: &Granted) -> Status {
    let remote = RemoteSpan { address: it.address(), rkey: key };
    try_key(rig, on, |local| Operation::Read { local, remote })
}

fn touch_word(rig: &mut Rig, on: (usize, u32), key: Rkey, it: &Granted) -> Status {
    let remote = RemoteSpan { address: RemoteAddress(word(it)), rkey: key };
    try_key(rig, on, |local| Operation::FetchAndAdd { local, remote, add: 0 })
}

/// The keys of the buffer and of the lifetime word on each queue pair.
fn keys_by_queue_pair(it: &Granted) -> Vec<(u32, Rkey, Rkey)> {
    let (buffer, word) = (group(it), group(it).of_word().expect("few queue pairs have keys for the word"));
    (0..QUEUE_PAIRS).map(|at| (at, buffer.keys()[at as usize], word.keys()[at as usize])).collect()
}

#[test]
fn a_key_opens_its_bytes_and_its_word_on_its_own_queue_pair_and_nothing_on_any_other() {
    for rights in RIGHTS {
        let mut rig = rig();
        let (holder, sibling) = (rig.attach("a"), rig.attach("a"));
        let it = allocate(&mut rig, holder, rights);
        for (own, buffer, word) in keys_by_queue_pair(&it) {
            for (client, queue_pair) in [(holder, 0), (holder, 1), (sibling, 0), (sibling, 1)] {
                let is_own = (client, queue_pair) == (holder, own);
                let expected = if is_own { Status::Success } else { REFUSED };
                let what = format!("key of {own} on {queue_pair} of client {client}, {rights:?}");
                assert_eq!(read(&mut rig, (client, queue_pair), buffer, &it), expected, "{what}");
                assert_eq!(touch_word(&mut rig, (client, queue_pair), word, &it), expected, "{what}");
            }
        }
        rig.end();
    }
}

#[test]
fn no_guess_within_a_tenant_opens_what_a_sibling_holds() {
    let mut rig = rig();
    let (holder, guesser) = (rig.attach("a"), rig.attach("a"));
    let it = allocate(&mut rig, holder, Rights::all());
    let index = group(&it).keys()[0].index();
    for low in 0..=255 {
        assert_eq!(read(&mut rig, (guesser, 0), Rkey::new(index, low), &it), REFUSED, "{low:#x}");
    }
    assert_eq!(read(&mut rig, (holder, 0), group(&it).keys()[0], &it), Status::Success);
    rig.end();
}

#[test]
fn a_group_ends_on_all_queue_pairs_before_its_end_is_answered() {
    for rights in RIGHTS {
        let mut rig = rig();
        let client = rig.attach("a");
        for _ in 0..300 {
            let it = allocate(&mut rig, client, rights);
            rig.revoke(client, it.permission);
            for (queue_pair, buffer, word) in keys_by_queue_pair(&it) {
                assert_eq!(read(&mut rig, (client, queue_pair), buffer, &it), REFUSED);
                assert_eq!(touch_word(&mut rig, (client, queue_pair), word, &it), REFUSED);
            }
        }
        rig.end();
    }
}

#[test]
fn each_window_of_a_group_costs_one_operation_at_its_start_and_one_at_its_end() {
    for (rights, windows) in [(Rights::all(), 2), (Rights::READ, 4)] {
        let mut rig = rig();
        let client = rig.attach("a");
        let before = rig.node.counters().window_operations;
        let it = allocate(&mut rig, client, rights);
        assert_eq!(rig.node.counters().window_operations - before, windows, "{rights:?}");
        rig.revoke(client, it.permission);
        assert_eq!(rig.node.counters().window_operations - before, 2 * windows, "{rights:?}");
        rig.end();
    }
}

#[test]
fn the_windows_of_a_broken_queue_pair_are_there_again_when_it_is_rebuilt_and_the_others_stay() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = allocate(&mut rig, client, Rights::all());
    let [first, second] = [0, 1].map(|at| group(&it).keys()[at]);
    let local = LocalSpan { address: 512 << 10, length: 8, lkey: rig.seat(client).lkey() };
    let remote = RemoteSpan { address: it.address(), rkey: second };
    assert_eq!(rig.operate(client, 0, Operation::Read { local, remote }), REFUSED);
    assert_eq!(read(&mut rig, (client, 1), second, &it), Status::Success, "the spare works meanwhile");
    let later = allocate(&mut rig, client, Rights::all());
    rig.recover(client);
    assert_eq!(read(&mut rig, (client, 0), first, &it), Status::Success);
    let key = group(&later).keys()[0];
    assert_eq!(read(&mut rig, (client, 0), key, &later), Status::Success, "granted while it was broken");
    rig.end();
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_batch_harms_no_sibling_and_leaves_nothing() {
    let mut rig = rig();
    let stays = rig.attach("a");
    let before = rig.nic.nic.core().objects();
    for turns in 0..12 {
        let leaves = rig.attach("a");
        allocate(&mut rig, leaves, Rights::READ);
        let [mine, theirs] = [stays, leaves].map(|client| rig.send(client, allocation(Rights::all())));
        for _ in 0..turns {
            rig.turn();
        }
        let _ = theirs;
        rig.detach(leaves);
        rig.settle();
        let it = granted(rig.reply(stays, mine).expect("an answer"));
        assert_eq!(read(&mut rig, (stays, 1), group(&it).keys()[1], &it), Status::Success, "{turns} turns");
        rig.revoke(stays, it.permission);
        rig.pass(Lifetime::millis(200));
        let objects = rig.nic.nic.core().objects();
        assert_eq!((objects.queue_pairs, objects.domains), (before.queue_pairs, before.domains), "{turns}");
    }
    rig.end();
}

#[test]
fn binds_that_fail_grant_nothing_and_leave_nothing_and_the_next_ones_work() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = allocate(&mut rig, client, Rights::all());
    rig.nic.hook.is_broken = true;
    refused(rig.ask(client, allocation(Rights::READ)));
    rig.nic.hook.is_broken = false;
    let later = allocate(&mut rig, client, Rights::READ);
    for held in [&it, &later] {
        for (queue_pair, buffer, _) in keys_by_queue_pair(held) {
            assert_eq!(read(&mut rig, (client, queue_pair), buffer, held), Status::Success);
        }
    }
    rig.end();
}

#[test]
fn too_few_windows_for_a_group_are_no_group_and_none_of_them_is_lost() {
    let mechanism = Mechanism::WindowGroup;
    let mut rig = Rig::new(NodeConfig { mechanism, windows_max: 7, windows_ready: 0, ..rig::config() });
    let client = rig.attach("a");
    let held = allocate(&mut rig, client, Rights::READ);
    let told = refused(rig.ask(client, allocation(Rights::READ)));
    assert_eq!(told, portcullis_protocol::Refusal::NodeFull { limit: 7 });
    let second = allocate(&mut rig, client, Rights::all());
    rig.revoke(client, held.permission);
    rig.revoke(client, second.permission);
    for _ in 0..4 {
        let again = allocate(&mut rig, client, Rights::READ);
        rig.revoke(client, again.permission);
    }
    assert!(rig.nic.capabilities().has_window_groups());
    rig.end();
}

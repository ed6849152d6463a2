//! Mechanism `window-group`: a key opens nothing on any queue pair but its own, and the windows of a group are bound
//! and unbound together.

use crate::rig::{Rig, granted, refused, word};
use portcullis_nic::{DataQueuePairs, LocalSpan, Operation, RemoteSpan, Status, WorkRequest};
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    Allocate, Credential, GrantRequest, Granted, Keep, KeyGroup, Lifetime, Mechanism, QueuePairRequest,
    RemoteAddress, ReplyBody, RequestBody, Rights, Rkey, Sharing,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Data queue pairs of the rig's clients.
const QUEUE_PAIRS: u32 = 2;
const REFUSED: Status = Status::RemoteAccessError;
/// With all rights one window covers lifetime word and buffer. With fewer rights there are two windows.
const RIGHTS: [Rights; 2] = [Rights::all(), Rights::READ];

/// Whether the NIC lets one queue pair bind for all others. Otherwise each window is bound on its own queue pair.
const WAYS: [bool; 2] = [true, false];

fn config(chains: bool) -> NodeConfig {
    let mut config = NodeConfig { mechanism: Mechanism::WindowGroup, chains, ..crate::rig::config() };
    config.violations.free_max = u32::MAX;
    config
}

fn rig(chains: bool) -> Rig {
    Rig::new(config(chains))
}

fn allocation(rights: Rights) -> RequestBody {
    let (lifetime, sharing, keep) = (Lifetime::millis(100), Sharing::Exclusive, Keep::No);
    RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 64,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep,
    }))
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

/// Executes an access of a client's queue pair that moves or changes nothing. If it breaks the queue pair, gets that
/// rebuilt.
fn try_key(
    rig: &mut Rig,
    (client, queue_pair): (usize, u32),
    access: impl FnOnce(LocalSpan) -> Operation,
) -> Status {
    let local = LocalSpan { address: 512 << 10, length: 8, lkey: rig.seat(client).lkey() };
    let status = rig.operate(client, queue_pair, access(local));
    if status != Status::Success {
        rebuild(rig, (client, queue_pair));
    }
    status
}

fn rebuild(rig: &mut Rig, (client, queue_pair): (usize, u32)) {
    rig.settle();
    assert_eq!(
        rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair })),
        ReplyBody::Done
    );
    rig.seat(client).endpoint.rebuilt(queue_pair);
}

/// Makes a client break a queue pair of its own, without a rebuild.
fn break_queue_pair(rig: &mut Rig, (client, queue_pair): (usize, u32)) {
    let local = LocalSpan { address: 512 << 10, length: 8, lkey: rig.seat(client).lkey() };
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey::new(0, 0) };
    assert_eq!(rig.operate(client, queue_pair, Operation::Read { local, remote }), REFUSED);
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
    for chains in WAYS {
        for rights in RIGHTS {
            let mut rig = rig(chains);
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
}

#[test]
fn no_guess_within_a_tenant_opens_what_a_sibling_holds() {
    for chains in WAYS {
        let mut rig = rig(chains);
        let (holder, guesser) = (rig.attach("a"), rig.attach("a"));
        let it = allocate(&mut rig, holder, Rights::all());
        let index = group(&it).keys()[0].index();
        for low in 0..=255 {
            assert_eq!(read(&mut rig, (guesser, 0), Rkey::new(index, low), &it), REFUSED, "{low:#x}");
        }
        assert_eq!(read(&mut rig, (holder, 0), group(&it).keys()[0], &it), Status::Success);
        rig.end();
    }
}

#[test]
fn a_group_ends_on_all_queue_pairs_before_its_end_is_answered() {
    for chains in WAYS {
        for rights in RIGHTS {
            let mut rig = rig(chains);
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
}

#[test]
fn each_window_of_a_group_costs_one_operation_at_its_start_and_one_at_its_end() {
    for chains in WAYS {
        for (rights, windows) in [(Rights::all(), 2), (Rights::READ, 4)] {
            let mut rig = rig(chains);
            let client = rig.attach("a");
            let before = rig.node.counters().window_operations;
            let it = allocate(&mut rig, client, rights);
            assert_eq!(rig.node.counters().window_operations - before, windows, "{rights:?}");
            rig.revoke(client, it.permission);
            assert_eq!(rig.node.counters().window_operations - before, 2 * windows, "{rights:?}");
            rig.end();
        }
    }
}

#[test]
fn the_windows_of_a_broken_queue_pair_are_there_again_when_it_is_rebuilt_and_the_others_stay() {
    for chains in WAYS {
        let mut rig = rig(chains);
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
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_batch_harms_no_sibling_and_leaves_nothing() {
    for chains in WAYS {
        let mut rig = rig(chains);
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
            assert_eq!(
                read(&mut rig, (stays, 1), group(&it).keys()[1], &it),
                Status::Success,
                "{turns} turns"
            );
            rig.revoke(stays, it.permission);
            rig.pass(Lifetime::millis(200));
            let objects = rig.nic.nic.core().objects();
            assert_eq!(
                (objects.queue_pairs, objects.domains),
                (before.queue_pairs, before.domains),
                "{turns}"
            );
        }
        rig.end();
    }
}

#[test]
fn binds_that_fail_grant_nothing_and_leave_nothing_and_the_next_ones_work() {
    for chains in WAYS {
        let mut rig = rig(chains);
        let client = rig.attach("a");
        let it = allocate(&mut rig, client, Rights::all());
        rig.nic.hook.is_broken = true;
        refused(rig.ask(client, allocation(Rights::READ)));
        rig.nic.hook.is_broken = false;
        if !chains {
            // A request that the NIC refuses breaks the queue pair on which it was posted. Here that is the client's,
            // and the client notices it with its next access.
            for (queue_pair, buffer, _) in keys_by_queue_pair(&it) {
                assert_eq!(read(&mut rig, (client, queue_pair), buffer, &it), Status::RetryExceededError);
            }
        }
        let later = allocate(&mut rig, client, Rights::READ);
        for held in [&it, &later] {
            for (queue_pair, buffer, _) in keys_by_queue_pair(held) {
                assert_eq!(read(&mut rig, (client, queue_pair), buffer, held), Status::Success);
            }
        }
        rig.end();
    }
}

#[test]
fn too_few_windows_for_a_group_are_no_group_and_none_of_them_is_lost() {
    for chains in WAYS {
        let mut rig = Rig::new(NodeConfig { windows_max: 7, windows_ready: 0, ..config(chains) });
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
        rig.end();
    }
}

/// The NIC flushes the invalidations on a queue pair that its client breaks. The windows are closed all the same, even
/// after the rebuild.
#[test]
fn who_breaks_a_queue_pair_keeps_nothing_that_ends_meanwhile() {
    for (chains, rights) in WAYS.into_iter().flat_map(|chains| RIGHTS.map(|rights| (chains, rights))) {
        for turns in 0..4 {
            let mut rig = rig(chains);
            let (holder, sibling) = (rig.attach("a"), rig.attach("a"));
            let it = allocate(&mut rig, holder, rights);
            break_queue_pair(&mut rig, (holder, 1));
            for _ in 0..turns {
                rig.turn();
            }
            rig.revoke(holder, it.permission);
            let next = allocate(&mut rig, sibling, Rights::all());
            for (queue_pair, buffer, word) in keys_by_queue_pair(&it) {
                if queue_pair == 1 {
                    rebuild(&mut rig, (holder, 1));
                }
                assert_eq!(read(&mut rig, (holder, queue_pair), buffer, &it), REFUSED, "{chains} {turns}");
                assert_eq!(
                    touch_word(&mut rig, (holder, queue_pair), word, &it),
                    REFUSED,
                    "{chains} {turns}"
                );
            }
            assert_eq!(read(&mut rig, (sibling, 0), group(&next).keys()[0], &next), Status::Success);
            rig.end();
        }
    }
}

#[test]
fn what_comes_and_goes_while_a_queue_pair_is_broken_leaves_the_others_in_peace() {
    for chains in WAYS {
        let mut rig = rig(chains);
        let (holder, sibling) = (rig.attach("a"), rig.attach("a"));
        break_queue_pair(&mut rig, (holder, 0));
        let stays = allocate(&mut rig, holder, Rights::READ);
        for _ in 0..20 {
            let [goes, theirs] = [holder, sibling].map(|client| rig.send(client, allocation(Rights::READ)));
            rig.settle();
            let [goes, theirs] = [(holder, goes), (sibling, theirs)]
                .map(|(client, sequence)| granted(rig.reply(client, sequence).expect("an answer")));
            assert_eq!(read(&mut rig, (holder, 1), group(&goes).keys()[1], &goes), Status::Success);
            for (queue_pair, buffer, _) in keys_by_queue_pair(&theirs) {
                assert_eq!(read(&mut rig, (sibling, queue_pair), buffer, &theirs), Status::Success);
            }
            rig.revoke(holder, goes.permission);
            rig.revoke(sibling, theirs.permission);
        }
        rebuild(&mut rig, (holder, 0));
        assert_eq!(read(&mut rig, (holder, 0), group(&stays).keys()[0], &stays), Status::Success);
        rig.end();
    }
}

/// More binds wait for the rebuild of a queue pair than the NIC's end of it holds.
#[test]
fn a_rebuilt_queue_pair_has_all_windows_of_its_client_when_the_client_is_told() {
    for chains in WAYS {
        let mut rig = rig(chains);
        let client = rig.attach("a");
        break_queue_pair(&mut rig, (client, 0));
        let held: Vec<Granted> = (0..40).map(|_| allocate(&mut rig, client, Rights::READ)).collect();
        rig.settle();
        assert_eq!(
            rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })),
            ReplyBody::Done
        );
        rig.seat(client).endpoint.rebuilt(0);
        for it in &held {
            let remote = RemoteSpan { address: it.address(), rkey: group(it).keys()[0] };
            let local = LocalSpan { address: 512 << 10, length: 8, lkey: rig.seat(client).lkey() };
            assert_eq!(rig.operate(client, 0, Operation::Read { local, remote }), Status::Success);
        }
        rig.end();
    }
}

#[test]
fn clients_that_break_their_queue_pairs_at_any_time_harm_nobody_and_leave_nothing() {
    for (chains, seed) in WAYS.into_iter().flat_map(|chains| (0..40).map(move |seed| (chains, seed))) {
        let mut lots = StdRng::seed_from_u64(seed);
        let mut rig = rig(chains);
        let before = rig.nic.nic.core().objects();
        let (victim, mut vandal) = (rig.attach("a"), rig.attach("a"));
        let mut held: Vec<Granted> = Vec::new();
        for _ in 0..60 {
            match lots.random_range(0..6) {
                0 => drop(rig.send(vandal, allocation(RIGHTS[lots.random_range(0..2)]))),
                1 => break_at_any_time(&mut rig, (vandal, lots.random_range(0..QUEUE_PAIRS))),
                2 => {
                    let queue_pair = lots.random_range(0..QUEUE_PAIRS);
                    rig.send(vandal, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair }));
                }
                3 => {
                    rig.detach(vandal);
                    vandal = rig.attach("a");
                }
                4 if held.len() < 4 => held.push(allocate(&mut rig, victim, RIGHTS[lots.random_range(0..2)])),
                _ => {
                    if let Some(it) = held.pop() {
                        rig.revoke(victim, it.permission);
                    }
                }
            }
            for _ in 0..lots.random_range(0..5) {
                rig.turn();
            }
        }
        for it in &held {
            for (queue_pair, buffer, _) in keys_by_queue_pair(it) {
                let seen = read(&mut rig, (victim, queue_pair), buffer, it);
                assert_eq!(seen, Status::Success, "seed {seed}, chains {chains}");
            }
        }
        rig.detach(vandal);
        rig.detach(victim);
        rig.pass(Lifetime::millis(500));
        let objects = rig.nic.nic.core().objects();
        assert_eq!(objects.queue_pairs, before.queue_pairs, "seed {seed}, chains {chains}");
        assert_eq!(rig.node.counters().permissions, 0, "seed {seed}, chains {chains}");
        rig.end();
    }
}

/// Posts a request that breaks a queue pair, and does not wait for the break.
fn break_at_any_time(rig: &mut Rig, (client, queue_pair): (usize, u32)) {
    let local = LocalSpan { address: 512 << 10, length: 8, lkey: rig.seat(client).lkey() };
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey::new(0, 0) };
    let request = WorkRequest { id: 0, signalled: true, operation: Operation::Read { local, remote } };
    rig.seat(client).endpoint.post(queue_pair, &[request]);
}

/// Each request of a batch needs an entry of the completion queue. Here there are far fewer entries than requests.
#[test]
fn a_short_completion_queue_delays_the_binds_of_all_tenants_and_loses_none() {
    for chains in WAYS {
        let mut rig = Rig::with_completions(config(chains), 6);
        let clients = ["a", "a", "b", "c"].map(|tenant| rig.attach(tenant));
        for _ in 0..3 {
            let asked: Vec<(usize, u32)> = (0..6)
                .flat_map(|_| clients)
                .map(|client| (client, rig.send(client, allocation(Rights::READ))))
                .collect();
            rig.settle();
            let held: Vec<(usize, Granted)> = asked
                .into_iter()
                .map(|(client, sequence)| (client, granted(rig.reply(client, sequence).expect("an answer"))))
                .collect();
            for (client, it) in &held {
                for (queue_pair, buffer, word) in keys_by_queue_pair(it) {
                    assert_eq!(
                        read(&mut rig, (*client, queue_pair), buffer, it),
                        Status::Success,
                        "{chains}"
                    );
                    assert_eq!(touch_word(&mut rig, (*client, queue_pair), word, it), Status::Success);
                }
            }
            for (client, it) in &held {
                rig.send(
                    *client,
                    RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free: false }),
                );
            }
            rig.settle();
            let (client, it) = &held[0];
            assert_eq!(read(&mut rig, (*client, 0), group(it).keys()[0], it), REFUSED);
        }
        rig.end();
    }
}

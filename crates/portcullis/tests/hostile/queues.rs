//! Attacks on queue memory: garbage, forged requests, wrong laps and indices, requests that change.

use crate::attacker::{ARENA_BYTES, Attacker, DATA, key};
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, random, wait_for};
use portcullis::{RemoteAddress, Rkey, SessionOptions, Sharing};
use portcullis_memory::Mapping;
use portcullis_nic::{Endpoint, Memory, Operation, Pollable, RemoteSpan, Status, VerbsEndpoint};
use rand::{Rng, RngExt, rngs::StdRng};
use rustix::event::epoll;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Offsets in the port's file of the word that marks the client as asleep, and of the count of polled completions.
const SLEEPING: u64 = 0;
/// Bytes of a request.
const REQUEST: u64 = 64;
/// Bit in the first word of a request that makes the request report a completion even if it succeeds.
const SIGNALLED: u64 = 1 << 8;

/// Returns a random word for a request, of a kind that is likely to find bugs.
fn odd_word(random: &mut StdRng, known: &[u64]) -> u64 {
    match random.random_range(0..6) {
        0 => random.random(),
        1 => 1 << random.random_range(0..64),
        2 => u64::MAX - random.random_range(0..16),
        3 => random.random_range(0..1 << 20),
        4 => random.random_range(0..256) << 32 | random.random_range(0..256),
        _ => known[random.random_range(0..known.len())],
    }
}

#[test]
fn garbage_all_over_the_shared_memory_harms_its_writer_alone() {
    let rig = Rig::new();
    let mut random = random();
    let mut canary = Canary::new(rig.host.connect(BLUE, SessionOptions::default()).expect("a session"), 4096);
    for _ in 0..12 {
        let attacker = rig.attacker();
        let end = attacker.layout.arena() + ARENA_BYTES;
        for _ in 0..60 {
            let at = random.random_range(0..end / 8) * 8;
            let mut bytes =
                vec![0; usize::try_from((end - at).min(1 << random.random_range(3..17))).expect("short")];
            random.fill_bytes(&mut bytes);
            attacker.memory.write(at, &bytes);
            // The NIC takes an entry only if it carries the present lap, so the garbage needs it too.
            for slot in 0..u64::from(attacker.size.send_depth) {
                let queue = attacker.layout.data_send(random.random_range(0..3));
                attacker.memory.store(queue + slot * REQUEST + 56, 1);
            }
            for slot in 0..u64::from(attacker.size.control_depth) {
                attacker.memory.store(attacker.layout.control_send() + slot * REQUEST + 56, 1);
                attacker.memory.store(attacker.layout.control_receive() + slot * 32 + 24, 1);
            }
        }
        rig.others_go_on(5);
        assert!(!Canary::is_in(&attacker.memory, 0, usize::try_from(end).expect("a short file")));
    }
    canary.assert_untouched();
    drop(canary);
    rig.clear();
}

/// Writes requests into a queue word by word. The library's own ring for that queue is not used beside it.
struct ForgedQueue {
    offset: u64,
    depth: u64,
    posted: u64,
}

impl ForgedQueue {
    fn new(attacker: &Attacker, number: u32) -> Self {
        let (offset, depth) = (attacker.layout.data_send(number), u64::from(attacker.size.send_depth));
        Self { offset, depth, posted: 0 }
    }

    fn put(&mut self, memory: &Mapping, words: [u64; 7]) {
        let at = self.offset + self.posted % self.depth * REQUEST;
        for (offset, word) in (at..).step_by(8).zip(words) {
            memory.store(offset, word);
        }
        memory.store(at + 56, self.posted / self.depth + 1);
        self.posted += 1;
    }
}

/// Puts forged requests into queue 0 until the node no longer rebuilds it. Returns the number of requests.
fn forge(attacker: &mut Attacker, canary: &Canary, random: &mut StdRng, most: u64) -> u64 {
    let own = attacker.allocate(4096, Sharing::Exclusive);
    let arena = u64::from(attacker.endpoint.arena_key().0);
    let known = [
        own.address().0,
        key(own.credential).into(),
        canary.address(),
        canary.key().into(),
        arena,
        DATA,
        8,
        4096,
        0,
    ];
    let mut queue = ForgedQueue::new(attacker, 0);
    for round in 0..most {
        // No SEND here: it would wait for a receive, which data queue pairs do not have. Another test covers SEND.
        let opcode = [3, 4, 5, 6, 7, 8, 0, 9, 255][random.random_range(0..9)];
        let mut word = || odd_word(random, &known);
        let (lkey, length, rkey) = (word() << 32, word() & 0xffff_ffff, word() << 32);
        let mut words = [opcode | SIGNALLED | lkey, word(), length | rkey, word(), word(), word(), round];
        if random.random_range(0..8) > 0 {
            // The local span is valid, so that the request reaches the remote side.
            words[0] = opcode | SIGNALLED | arena << 32;
            words[1] = DATA;
            words[2] = rkey | [8, 8, 4096, 1 << 20, 0][random.random_range(0..5)];
        }
        queue.put(&attacker.memory, words);
        let mut status = None;
        wait_for("a completion", || {
            status = attacker.poll().filter(|it| it.request == round).map(|it| it.status);
            status.is_some()
        });
        let forbidden = [7, 8, 0, 9, 255].contains(&opcode);
        assert!(!forbidden || status != Some(Status::Success), "opcode {opcode} succeeded: {words:x?}");
        if status != Some(Status::Success) && attacker.recover(0).is_err() {
            return round + 1;
        }
    }
    most
}

#[test]
fn forged_requests_of_every_kind_reach_nothing_of_others() {
    let rig = Rig::new();
    let mut random = random();
    let mut canary = Canary::new(rig.host.connect(BLUE, SessionOptions::default()).expect("a session"), 4096);
    let mut left = 800;
    while left > 0 {
        let mut attacker = rig.attacker();
        left -= forge(&mut attacker, &canary, &mut random, left);
        assert!(!Canary::is_in(attacker.endpoint.arena(), DATA, 1 << 20));
    }
    canary.assert_untouched();
    drop(canary);
    rig.clear();
}

#[test]
fn an_entry_is_taken_once_however_often_it_is_stamped() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64, Sharing::Exclusive);
    let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
    let local = attacker.local(DATA, 8);
    let add = Operation::FetchAndAdd { local, remote, add: 1 };
    let depth = u64::from(attacker.size.send_depth);
    let ring = attacker.layout.data_send(0);
    for count in 0..2 * depth {
        assert_eq!(attacker.try_operation(0, add), Status::Success);
        // The entry is stamped again with its own lap, an earlier one, and later ones.
        let slot = ring + count % depth * REQUEST + 56;
        for lap in [count / depth + 1, count / depth, 0, u64::MAX, count / depth + 3] {
            attacker.memory.store(slot, lap);
        }
    }
    assert_eq!(attacker.try_read(1, own.address().0, key(own.credential), 8), Status::Success);
    assert_eq!(attacker.endpoint.arena().load(DATA), 2 * depth, "each addition happened once");
    drop(attacker);
    rig.clear();
}

#[test]
fn a_poster_that_never_stops_starves_nobody() {
    let rig = Rig::new();
    let mut attackers = [rig.attacker(), rig.attacker()];
    let length = 1 << 20;
    let posts = attackers.each_mut().map(|attacker| {
        let own = attacker.allocate(length.into(), Sharing::Exclusive);
        let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
        Operation::Read { local: attacker.local(DATA, length), remote }
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (attacker, &read) in attackers.iter_mut().zip(&posts) {
                    for number in 0..attacker.size.data_queue_pairs {
                        while attacker.post(number, 0, read) {}
                    }
                    while attacker.poll().is_some() {}
                }
            }
        });
        rig.others_go_on(500);
        stop.store(true, Ordering::Relaxed);
    });
    drop(attackers);
    rig.clear();
}

#[test]
fn whoever_never_polls_or_lies_about_it_stops_only_itself() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(4096, Sharing::Exclusive);
    let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
    let read = Operation::Read { local: attacker.local(DATA, 64), remote };
    let queues = [attacker.layout.data_completions(), attacker.layout.completions()];
    let depth = u64::from(queues[0].depth);
    for lie in [u64::MAX, 1 << 63, depth + 1, depth * 2, 1, 0] {
        for number in 0..attacker.size.data_queue_pairs {
            while attacker.post(number, 0, read) {}
        }
        queues.iter().for_each(|queue| attacker.memory.store(queue.cell, lie));
        rig.others_go_on(20);
    }
    // The first SEND waits for ever for a receive that is never posted. The second is longer than any message.
    for length in [64, u32::MAX] {
        let mut other = rig.attacker();
        let send = Operation::Send { local: other.local(0, length) };
        assert!(other.post(0, 0, send));
        rig.others_go_on(20);
    }
    drop(attacker);
    rig.clear();
}

#[test]
fn a_request_that_changes_while_it_is_executed_reads_what_it_may_or_nothing() {
    let rig = Rig::new();
    let mut canary = Canary::new(rig.host.connect(BLUE, SessionOptions::default()).expect("a session"), 4096);
    let mut sibling = Canary::new(rig.host.connect(RED, SessionOptions::default()).expect("a session"), 4096);
    let mut attacker = rig.attacker();
    let own = attacker.allocate(4096, Sharing::Exclusive);
    let (own_key, own_at) = (key(own.credential), own.address().0);
    let remote = RemoteSpan { address: RemoteAddress(own_at), rkey: Rkey(own_key) };
    let (memory, ring) = (attacker.memory.clone(), attacker.layout.data_send(0));
    let depth = u64::from(attacker.size.send_depth);
    let faces = [
        (own_at, own_key, 64),
        (canary.address(), canary.key(), 64),
        (canary.address(), own_key, 64),
        (own_at, own_key, 64 << 10),
        (sibling.address(), own_key, 64),
        (own_at + 4095, own_key, 64),
    ];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                let (address, rkey, length) = faces[turn % faces.len()];
                for slot in 0..depth {
                    memory.store(ring + slot * REQUEST + 24, address);
                    memory.store(ring + slot * REQUEST + 16, u64::from(rkey) << 32 | length);
                }
                turn += 1;
            }
        });
        for _ in 0..800 {
            let read = Operation::Read { local: attacker.local(DATA, 64), remote };
            if attacker.try_operation(0, read) != Status::Success && attacker.recover(0).is_err() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!Canary::is_in(attacker.endpoint.arena(), DATA, 1 << 20));
    canary.assert_untouched();
    sibling.assert_untouched();
    drop((canary, sibling, attacker));
    rig.clear();
}

#[test]
fn a_client_that_always_claims_to_sleep_costs_others_nothing() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64, Sharing::Exclusive);
    let memory = attacker.memory.clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // The values claim sleep on a futex, sleep on an alarm that the client never reads, and a state that
                // does not exist.
                for how in [1, 2, u32::MAX] {
                    memory.half_word(SLEEPING).store(how, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..300 {
            assert_eq!(attacker.try_read(0, own.address().0, key(own.credential), 8), Status::Success);
        }
        rig.others_go_on(50);
        stop.store(true, Ordering::Relaxed);
    });
    drop(attacker);
    rig.clear();
}

/// Ringing an alarm wakes all waiters at its other end, one after another.
#[test]
fn a_client_with_a_crowd_of_epolls_on_its_alarm_makes_only_its_own_ringer_slow() {
    const EACH: usize = 150;
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64, Sharing::Exclusive);
    let alarm = attacker.endpoint.descriptor();
    let copies: Vec<OwnedFd> = (0..EACH).map(|_| alarm.try_clone_to_owned().expect("a descriptor")).collect();
    let crowd: Vec<OwnedFd> = (0..EACH)
        .map(|_| {
            let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
            for copy in &copies {
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&waiting, copy, epoll::EventData::new_u64(0), flags).expect("one more watch");
            }
            waiting
        })
        .collect();
    for _ in 0..300 {
        attacker.endpoint.arm();
        assert_eq!(attacker.try_read(0, own.address().0, key(own.credential), 8), Status::Success);
    }
    rig.others_go_on(50);
    // The crowd of epolls still exists when the port is closed.
    drop(attacker);
    rig.others_go_on(50);
    drop((crowd, copies));
    rig.clear();
}

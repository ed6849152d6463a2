//! An attacker on the path, and an attacker that floods the node.

use crate::attacker::Attacker;
use crate::proxy::{Proxy, Sent, Way, pass};
use crate::rig::{BLUE, LONG, RED, Rig, config, goes_on, wait_for};
use portcullis::{Acquire, Allocate, Lifetime, Rights, connect};
use portcullis_onerma::{Action, Atomic, Status};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SECRET: &[u8; 32] = b"what nobody on the path may read";

/// Makes the conduct of an attacker that drops, repeats, cuts, alters, reflects, delays and forges datagrams.
fn offence(seed: u64) -> impl FnMut(Way, Vec<u8>) -> Vec<Sent> + Send {
    let (mut random, mut old) = (StdRng::seed_from_u64(seed), Vec::new());
    move |way, bytes| {
        let mut sent = pass(way, bytes.clone());
        old.push((way, bytes.clone()));
        match random.random_range(0..40) {
            0 => sent.clear(),
            1 => sent.push(sent[0].clone()),
            2 => {
                let mut altered = bytes;
                let at = random.random_range(0..altered.len());
                altered[at] ^= 1 << random.random_range(0..8);
                sent.insert(0, (way, Duration::ZERO, altered));
            }
            3 => {
                let length = random.random_range(0..bytes.len());
                sent.insert(0, (way, Duration::ZERO, bytes[..length].to_vec()));
            }
            4 => {
                let back = if way == Way::ToNode { Way::ToClient } else { Way::ToNode };
                sent.push((back, Duration::ZERO, bytes));
            }
            5 => sent[0].1 = Duration::from_millis(random.random_range(1..20)),
            6..=9 => {
                let (way, bytes) = old[random.random_range(0..old.len())].clone();
                sent.push((way, Duration::from_millis(random.random_range(0..80)), bytes));
            }
            10 => {
                let mut made_up = vec![0; random.random_range(1..200)];
                random.fill_bytes(&mut made_up);
                made_up[0] = 1;
                sent.push((way, Duration::ZERO, made_up));
            }
            _ => {}
        }
        sent
    }
}

#[test]
fn whoever_is_on_the_path_reads_nothing_and_has_nothing_carried_out_twice() {
    let rig = Rig::new();
    let proxy = Proxy::new(&rig.place(RED), 9, pass);
    let mut session = connect(&proxy.udp()).expect("a session");
    let block =
        session.allocate(Allocate::bytes(8192).keep().lifetime(Lifetime::seconds(9))).expect("memory");
    let object = block.object();
    let (mut done, mut uncertain) = (0, 0);
    for seed in 0..4 {
        proxy.behave(offence(seed));
        for round in 0..30u64 {
            // If an altered copy arrives before the request, the node refuses it, which ends the operation with an
            // error.
            match session.fetch_and_add(&block, 0, 1) {
                Ok(before) => {
                    assert!((done..=done + uncertain).contains(&before), "{before}: {done} and {uncertain}");
                    done += 1;
                }
                Err(_) => uncertain += 1,
            }
            let bytes = [SECRET.as_slice(), &round.to_le_bytes()].concat().repeat(100);
            if session.write(&block, 64, &bytes).is_ok() {
                let mut there = vec![0; bytes.len()];
                if session.read(&block, 64, &mut there).is_ok() {
                    assert!(there == bytes, "round {round} of seed {seed}");
                }
            }
        }
    }
    proxy.behave(pass);
    let total = session.fetch_and_add(&block, 0, 0).expect("nobody interferes");
    assert!((done..=done + uncertain).contains(&total), "{total}: {done} and {uncertain}");
    assert!(uncertain < done, "most of it gets through: {done} and {uncertain}");
    assert_eq!(rig.host.counters().violations, 0, "nobody is charged for what others send");
    session.revoke(block).expect("it has not ended");
    repeat_all_that_was_seen(&rig, &proxy, object);
    session.allocate(Allocate::bytes(64)).expect("whoever was copied is served as before");
    let seen = proxy.seen.lock().expect("not poisoned");
    assert!(
        !seen.iter().any(|(_, bytes)| bytes.windows(16).any(|it| SECRET.windows(16).any(|part| part == it)))
    );
    drop(seen);
    drop(session);
    wait_for("the client to go", || rig.host.counters().clients == 0);
}

/// Repeats all packets that have passed, after the end of their permission, while another session holds the object.
fn repeat_all_that_was_seen(rig: &Rig, proxy: &Proxy, object: portcullis::ObjectRef) {
    let mut other = rig.session(RED);
    let ask = Acquire::object(object).lifetime(Lifetime::seconds(9)).wait(Lifetime::seconds(5));
    let held = other.acquire(ask).expect("it is free");
    let mine = vec![0x5a; 8192];
    other.write(&held, 0, &mine).expect("written");
    let copies: Vec<Vec<u8>> =
        proxy.seen.lock().expect("not poisoned").iter().map(|(_, it)| it.clone()).collect();
    let somebody = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    somebody.set_nonblocking(true).expect("set");
    let (mut sent, mut came, mut bytes) = (0, 0, vec![0; 1 << 16]);
    for copy in copies {
        somebody.send_to(&copy, rig.place(RED)).expect("sent");
        sent += copy.len();
        while let Ok((length, _)) = somebody.recv_from(&mut bytes) {
            came += length;
        }
        let mut there = vec![0; 64];
        other.read(&held, 64, &mut there).expect("its own");
        assert!(there == mine[..64], "a copy has changed what is somebody else's");
    }
    let mut there = vec![0; 8192];
    other.read(&held, 0, &mut there).expect("its own");
    assert!(there == mine, "a copy has changed what is somebody else's");
    assert!(came <= sent, "the node answers copies with {came} bytes, of {sent}");
    other.revoke_and_free(held).expect("it has not ended");
}

/// Sends copies of the latest packet that has passed to the node, and waits until the node has refused each of them.
fn repeat_latest(rig: &Rig, proxy: &Proxy, copies: u32) {
    let seen = proxy.seen.lock().expect("not poisoned");
    let latest = seen.iter().rfind(|(way, _)| *way == Way::ToNode).map(|(_, bytes)| bytes.clone());
    drop(seen);
    let (copy, mut answer) = (latest.expect("something has passed"), [0; 2048]);
    let somebody = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    somebody.set_read_timeout(Some(LONG)).expect("set");
    for _ in 0..copies {
        somebody.send_to(&copy, rig.place(RED)).expect("sent");
        somebody.recv_from(&mut answer).expect("the node refuses the copy as it has refused the request");
    }
}

#[test]
fn copies_of_a_clients_refused_requests_cost_it_no_more_than_the_requests() {
    const COPIES: u32 = 60;
    let rig = Rig::new();
    let limits = config().violations;
    assert!(3 * COPIES > limits.free_max + limits.bar_after, "that many strays bar a client");
    let proxy = Proxy::new(&rig.place(RED), 10, pass);
    let mut client = Attacker::attach(&proxy.address.to_string());
    let (whole, read) = (client.allocate(64, Rights::all()), client.allocate(64, Rights::READ));
    let (to, to_read) = (client.to(&whole), client.to(&read));
    let (address, other) = (whole.address().0, read.address().0);
    let add = || Action::Atomic(Atomic::FetchAndAdd { add: 1 });
    let mistakes = [
        (&to, address + 1, Action::Read(64)),
        (&to, address + 4, add()),
        (&to_read, other, Action::Write(vec![1; 64])),
    ];
    let mut charged = 0;
    for (to, address, action) in mistakes {
        assert_eq!(client.try_once(to, address, action), Status::RemoteAuthenticationFailure);
        repeat_latest(&rig, &proxy, COPIES);
        // The node answers this request after it has handled the reports of the copies.
        client.allocate(64, Rights::READ);
        charged += 1;
        rig.assert_charged(charged);
    }
    client.revoke(read.permission);
    let late = client.try_once(&to_read, other, Action::Read(64));
    assert_eq!(late, Status::RemoteAuthenticationFailure);
    repeat_latest(&rig, &proxy, COPIES);
    client.allocate(64, Rights::READ);
    rig.assert_charged(charged + 1);
    assert_eq!(client.try_operation(&to, address, Action::Read(64)), Status::Ok);
    // The same mistake, made again, is a new request and is charged again.
    let again = client.try_once(&to, address + 1, Action::Read(64));
    assert_eq!(again, Status::RemoteAuthenticationFailure);
    rig.assert_charged(charged + 2);
    drop(client);
    rig.assert_empty();
}

#[test]
fn strangers_get_no_more_bytes_than_they_send() {
    let rig = Rig::new();
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    stranger.set_read_timeout(Some(Duration::from_millis(2))).expect("set");
    let mut random = StdRng::seed_from_u64(3);
    let mut bytes = vec![0; 1 << 16];
    for kind in 0..=12u8 {
        for of in 0..=5u8 {
            let mut packet = vec![0; random.random_range(60..1400)];
            random.fill_bytes(&mut packet);
            // The header is plausible: it is for 64 bytes of some region.
            packet[..4].copy_from_slice(&[1, kind, of, 255]);
            packet[4..8].copy_from_slice(&64u32.to_le_bytes());
            packet[16..24].copy_from_slice(&[0; 8]);
            stranger.send_to(&packet, rig.place(RED)).expect("sent");
            while let Ok((length, _)) = stranger.recv_from(&mut bytes) {
                assert!(length <= packet.len(), "kind {kind} of {of}: {length} bytes for {}", packet.len());
            }
        }
    }
}

#[test]
fn a_flood_of_garbage_leaves_honest_sessions_working() {
    let rig = Rig::new();
    let (place, stop) = (rig.place(RED), Arc::new(AtomicBool::new(false)));
    let mut honest = [rig.honest(BLUE), rig.honest(RED)];
    let its = Arc::clone(&stop);
    let flood = std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let mut random = StdRng::seed_from_u64(5);
        let mut packets: Vec<Vec<u8>> = (0..256).map(|_| vec![0; random.random_range(0..1400)]).collect();
        for packet in &mut packets {
            random.fill_bytes(packet);
            if let Some(head) = packet.first_chunk_mut() {
                *head = [1, random.random_range(0..12), random.random_range(0..5)];
            }
        }
        while !its.load(Ordering::Relaxed) {
            for packet in &packets {
                let _ = socket.send_to(packet, &place);
            }
            // Two cores must suffice for the flood, the node and the honest clients.
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    honest.iter().for_each(goes_on);
    stop.store(true, Ordering::Relaxed);
    flood.join().expect("it ends");
    honest.iter_mut().for_each(|it| it.stop());
    drop(honest);
    assert_eq!(rig.host.counters().violations, 0);
    rig.assert_empty();
}

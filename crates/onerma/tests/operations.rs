//! The promises of each operation on a path that loses nothing: its bytes, its status (1RMA Table 3), and its bounds.

use crate::rig;

use portcullis_memory::Memory;
use portcullis_onerma::{
    Action, Atomic, Command, HEADER_BYTES, InitiatorLimits, NotIssued, OperationType, RefusalCause,
    RegionKey, ResponderLimits, ServiceClass, Status, TAG_BYTES,
};
use rig::{Client, INITIATOR, LIFETIME_WORD, Node, RESPONDER, at, exchange, next};

#[test]
fn what_is_written_is_read_back_in_any_length() {
    let (mut node, mut client) = (Node::new(RESPONDER), Client::new(1, INITIATOR));
    let region = node.region(4096, 8192);
    let reads = node.grant(region, &client);
    let writes = node.grant(region, &client);
    for length in [1, 7, 64, 1200, 1201, 4095, 4096] {
        let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at % 253).expect("it is small")).collect();
        client.write(&writes, 100, &bytes, at(0));
        exchange(&mut node, &mut client, at(3));
        let done = client.completed().expect("an end");
        assert_eq!((done.status, done.total_delay), (Status::Ok, at(3)));
        assert_eq!(node.bytes(4096 + 100, length), bytes);
        let read = client.read(&reads, 100, length, at(3));
        exchange(&mut node, &mut client, at(5));
        let done = client.completed().expect("an end");
        assert_eq!((done.status, client.read_data(read)), (Status::Ok, bytes));
    }
    assert_eq!(client.initiator.pending(), 0);
}

#[test]
fn a_key_opens_its_own_bytes_for_its_own_client_on_its_own_host_and_nothing_else() {
    let wide = InitiatorLimits { slots: 32, window: 1 << 20, ..INITIATOR };
    let (mut node, mut client, mut other) =
        (Node::new(RESPONDER), Client::new(1, wide), Client::new(2, wide));
    let region = node.region_for(4096, 64, &[OperationType::Read]);
    let writable = node.region_for(4096, 64, &[OperationType::Write]);
    let neighbour = node.region(4160, 64);
    let reads = node.grant(region, &client);
    let writes = node.grant(writable, &client);
    let before = node.bytes(0, 8192);
    // Beyond the region.
    for (address, length) in [(0, 65), (64, 1), (60, 8), (u64::MAX, 1), (1 << 40, 8)] {
        client.read(&reads, address, length, at(0));
        client.write(&writes, address, &vec![9; length], at(0));
    }
    // The right key for the wrong type, the wrong region, the wrong generation.
    client.read(&writes, 0, 8, at(0));
    client.write(&reads, 0, &[9; 8], at(0));
    let mut statuses = Vec::new();
    let mut ends = |node: &mut Node, client: &mut Client| {
        exchange(node, client, at(1));
        statuses.extend(std::iter::from_fn(|| client.completed()).map(|it| it.status));
    };
    ends(&mut node, &mut client);
    let foreign = portcullis_onerma::Destination { region: neighbour, ..reads.clone() };
    client.read(&foreign, 0, 8, at(0));
    let next = portcullis_onerma::RegionId { generation: region.generation + 1, ..region };
    client.read(&portcullis_onerma::Destination { region: next, ..reads.clone() }, 0, 8, at(0));
    ends(&mut node, &mut client);
    // Stolen: with the thief's own number, and with the holder's.
    for client in [1, 2] {
        other.read(&portcullis_onerma::Destination { client, ..reads.clone() }, 0, 8, at(0));
        other.write(&portcullis_onerma::Destination { client, ..writes.clone() }, 0, &[9; 8], at(0));
    }
    ends(&mut node, &mut other);
    assert_eq!(statuses.len(), 18);
    assert!(statuses.iter().all(|&it| it == Status::RemoteAuthenticationFailure), "{statuses:?}");
    assert!(node.bytes(0, 8192) == before);
    let refusals: Vec<_> = std::iter::from_fn(|| node.responder.poll_refusal()).collect();
    assert_eq!(refusals.len(), 18);
    assert_eq!(
        refusals.iter().filter(|it| it.cause != RefusalCause::Unproven).count(),
        12,
        "these can be charged to the client"
    );
    assert_eq!(refusals.iter().filter(|it| it.cause == RefusalCause::Right).count(), 2);
}

#[test]
fn the_lifetime_word_is_open_to_atomics_of_each_holder_and_to_nothing_else() {
    let (mut node, mut client) = (Node::new(RESPONDER), Client::new(1, INITIATOR));
    let region = node.region_for(4096, 64, &[OperationType::Read]);
    let to = node.grant(region, &client);
    node.memory.store(4088, 7);
    client.act(&to, LIFETIME_WORD, Action::Atomic(Atomic::CompareAndSwap { expected: 7, new: 9 }), at(0));
    exchange(&mut node, &mut client, at(1));
    let done = client.completed().expect("it ended");
    assert_eq!((done.status, done.before, node.memory.load(4088)), (Status::Ok, Some(7), 9));
    // Other words, other types.
    client.act(&to, LIFETIME_WORD.wrapping_sub(8), Action::Atomic(Atomic::FetchAndAdd { add: 1 }), at(2));
    client.act(&to, 0, Action::Atomic(Atomic::FetchAndAdd { add: 1 }), at(2));
    client.read(&to, LIFETIME_WORD, 8, at(2));
    client.write(&to, LIFETIME_WORD, &[1; 8], at(2));
    exchange(&mut node, &mut client, at(3));
    for _ in 0..4 {
        let refused = client.completed().expect("it ended");
        assert_eq!(refused.status, Status::RemoteAuthenticationFailure);
    }
    assert_eq!(node.memory.load(4088), 9);
}

#[test]
fn an_operation_on_a_region_that_has_ended_is_proven_to_be_late_as_long_as_its_place_is_free() {
    let (mut node, mut client, mut thief) =
        (Node::new(RESPONDER), Client::new(1, INITIATOR), Client::new(2, INITIATOR));
    let region = node.region(4096, 64);
    let to = node.grant(region, &client);
    assert!(node.regions.remove(region));
    let cause = |node: &mut Node, client: &mut Client| {
        client.read(&to, 0, 8, at(0));
        exchange(node, client, at(1));
        let ended = client.completed().expect("it ended");
        assert_eq!(ended.status, Status::RemoteAuthenticationFailure);
        node.responder.poll_refusal().expect("it was refused").cause
    };
    assert_eq!(cause(&mut node, &mut client), RefusalCause::Ended);
    assert_eq!(cause(&mut node, &mut thief), RefusalCause::Unproven);
    while node.region(0, 64).index != region.index {}
    assert_eq!(cause(&mut node, &mut client), RefusalCause::Unproven);
}

#[test]
fn a_region_that_is_gone_or_has_another_key_is_closed_at_once_also_for_what_is_under_way() {
    for rekey in [false, true] {
        let (mut node, mut client) = (Node::new(RESPONDER), Client::new(1, INITIATOR));
        let region = node.region(0, 4096);
        let reads = node.grant(region, &client);
        let writes = node.grant(region, &client);
        client.read(&reads, 0, 64, at(0));
        client.write(&writes, 0, &[7; 64], at(0));
        // The requests have been authenticated, and the read waits to be served.
        while let Some((_, mut packet)) = next(|it| client.initiator.poll_transmit(it)) {
            node.responder.handle_packet(client.address, &mut packet, at(1));
        }
        if rekey {
            assert!(node.regions.rekey(region, RegionKey::new([200; 32])));
        } else {
            assert!(node.regions.remove(region));
        }
        while let Some((_, mut packet)) = next(|it| node.responder.poll_transmit(it)) {
            client.initiator.handle_packet(node.address, &mut packet, at(2));
        }
        exchange(&mut node, &mut client, at(3));
        let read = client.completed().expect("the read has ended");
        assert_eq!(read.status, Status::RemoteAuthenticationFailure);
        // The write's data is not accepted any more. A client that still has the region's key is sent that answer.
        let mut now = 3;
        let write = loop {
            if let Some(write) = client.completed() {
                break write;
            }
            now += 110;
            client.initiator.handle_timeout(at(now));
            exchange(&mut node, &mut client, at(now));
        };
        // A region that has ended causes a refusal at once, which is no sign of congestion.
        let status = if rekey { Status::Timeout } else { Status::RemoteAuthenticationFailure };
        assert_eq!((write.status, write.is_uncertain, now > 3), (status, rekey, rekey));
        assert_eq!(node.bytes(0, 64), [0; 64]);
        if rekey {
            let again = node.grant(region, &client);
            client.read(&again, 0, 64, at(500));
            exchange(&mut node, &mut client, at(501));
            assert_eq!(client.completed().expect("an end").status, Status::Ok);
        }
    }
}

/// Waiting reads share a key only if all terms of their keys are the same.
#[test]
fn a_read_that_waits_lends_its_key_to_no_other_holder_and_not_over_a_rekey() {
    let (mut node, mut client, mut other) =
        (Node::new(RESPONDER), Client::new(1, INITIATOR), Client::new(2, INITIATOR));
    let (region, neighbour) = (node.region(0, 4096), node.region(4096, 4096));
    let old = node.grant(region, &client);
    let deliver = |node: &mut Node, client: &mut Client| {
        while let Some((_, mut packet)) = next(|it| client.initiator.poll_transmit(it)) {
            node.responder.handle_packet(client.address, &mut packet, at(1));
        }
        node.responder.counters().refused
    };
    client.read(&old, 0, 64, at(0));
    client.read(&old, 64, 64, at(0));
    assert_eq!(deliver(&mut node, &mut client), 0);
    // Under that key, in another client's name, of another region, from another host.
    for wrong in [
        portcullis_onerma::Destination { client: 2, ..old.clone() },
        portcullis_onerma::Destination { region: neighbour, ..old.clone() },
    ] {
        client.read(&wrong, 0, 64, at(0));
    }
    assert_eq!(deliver(&mut node, &mut client), 2);
    other.read(&old, 0, 64, at(0));
    assert_eq!(deliver(&mut node, &mut other), 3);
    // The old reads still wait, and their key is valid for no new one.
    assert!(node.regions.rekey(region, RegionKey::new([200; 32])));
    client.read(&old, 0, 64, at(0));
    assert_eq!(deliver(&mut node, &mut client), 4);
    let new = node.grant(region, &client);
    client.read(&new, 0, 64, at(0));
    assert_eq!(deliver(&mut node, &mut client), 4);
    exchange(&mut node, &mut client, at(2));
    let ends: Vec<_> = std::iter::from_fn(|| client.completed()).map(|it| it.status).collect();
    assert_eq!(ends.iter().filter(|&&it| it == Status::Ok).count(), 1, "the read under the new key");
    assert_eq!(ends.len(), 6);
}

#[test]
fn nothing_enters_service_without_room_for_the_largest_operation_and_waits_no_longer_than_it_may() {
    let limits = InitiatorLimits { slots: 4, window: 4096 + 64, ..INITIATOR };
    let (mut node, mut client) = (Node::new(RESPONDER), Client::new(1, limits));
    let region = node.region(0, 4096);
    let reads = node.grant(region, &client);
    let slots: Vec<_> = [64, 64, 4096].map(|length| client.read(&reads, 0, length, at(0))).to_vec();
    let under_way: Vec<_> = std::iter::from_fn(|| next(|it| client.initiator.poll_transmit(it))).collect();
    assert_eq!(under_way.len(), 1 + 1, "two small ones leave less than the largest may need");
    assert_eq!(client.initiator.next_timeout(), Some(at(50)));
    client.initiator.handle_timeout(at(50));
    let ended = client.completed().expect("the third command has waited for too long");
    assert_eq!((ended.slot, ended.status, ended.issue_delay), (slots[2], Status::DispatchTimeout, at(50)));
    client.initiator.handle_timeout(at(110));
    let statuses: Vec<_> = std::iter::from_fn(|| client.completed()).map(|it| it.status).collect();
    assert_eq!(statuses, [Status::Timeout; 2]);
    // The window is whole again.
    client.read(&reads, 0, 4096, at(111));
    exchange(&mut node, &mut client, at(112));
    assert_eq!(client.completed().expect("an end").status, Status::Ok);
}

#[test]
fn commands_of_the_other_class_go_first_and_there_are_no_more_than_there_are_slots() {
    let limits = InitiatorLimits { slots: 3, window: 4096, ..INITIATOR };
    let (mut node, mut client) = (Node::new(RESPONDER), Client::new(1, limits));
    let region = node.region(0, 4096);
    let to = node.grant(region, &client);
    let command = |class, length| Command { action: Action::Read(length), to: to.clone(), address: 0, class };
    let [first, bulk, latency] = [ServiceClass::Bulk, ServiceClass::Bulk, ServiceClass::Latency]
        .map(|class| client.initiator.issue(command(class, 4096), at(0)).expect("a slot"));
    let (why, back) = client.initiator.issue(command(ServiceClass::Latency, 64), at(0)).expect_err("full");
    assert_eq!(why, NotIssued::NoSlot(3));
    assert!(matches!(back.action, Action::Read(64)), "the command comes back");
    exchange(&mut node, &mut client, at(1));
    let order: Vec<_> = std::iter::from_fn(|| client.completed()).map(|it| it.slot).collect();
    assert_eq!(order, [first, latency, bulk]);
    for length in [0, 4097] {
        let (why, _) =
            client.initiator.issue(command(ServiceClass::Bulk, length), at(2)).expect_err("length");
        assert_eq!(why, NotIssued::Length(length));
    }
}

#[test]
fn a_congested_responder_nacks_and_the_window_is_refunded_at_once() {
    let limits = ResponderLimits { waiting_max: 4096, changes_max: 1, ..RESPONDER };
    let (mut node, mut client) = (Node::new(limits), Client::new(1, INITIATOR));
    let region = node.region(0, 4096);
    let reads = node.grant(region, &client);
    let writes = node.grant(region, &client);
    for _ in 0..2 {
        client.read(&reads, 0, 4096, at(0));
        client.write(&writes, 0, &[1; 64], at(0));
    }
    while let Some((_, mut packet)) = next(|it| client.initiator.poll_transmit(it)) {
        node.responder.handle_packet(client.address, &mut packet, at(0));
    }
    exchange(&mut node, &mut client, at(1));
    let mut ended: Vec<_> = std::iter::from_fn(|| client.completed()).map(|it| it.status.name()).collect();
    ended.sort_unstable();
    assert_eq!(ended, ["NACK", "NACK", "OK", "OK"]);
    assert_eq!(node.responder.counters().nacks, 2);
}

#[test]
fn a_write_that_times_out_at_its_client_never_happens_later() {
    let (mut node, mut client) = (Node::new(RESPONDER), Client::new(1, INITIATOR));
    let region = node.region(0, 4096);
    let writes = node.grant(region, &client);
    client.write(&writes, 0, &[7; 64], at(0));
    let (_, mut request) = next(|it| client.initiator.poll_transmit(it)).expect("a request");
    node.responder.handle_packet(client.address, &mut request, at(10));
    let (_, mut solicit) = next(|it| node.responder.poll_transmit(it)).expect("a solicitation");
    client.initiator.handle_packet(node.address, &mut solicit, at(60));
    let (_, mut data) = next(|it| client.initiator.poll_transmit(it)).expect("the data");
    assert_eq!(client.initiator.next_timeout(), Some(at(60 + 110)), "later than the responder's: 10 + 100");
    client.initiator.handle_timeout(at(170));
    assert!(client.completed().is_none(), "it asks what became of the write");
    node.responder.handle_packet(client.address, &mut data, at(170));
    assert!(next(|it| node.responder.poll_transmit(it)).is_none());
    assert_eq!((node.bytes(0, 64), node.responder.counters().unwanted), (vec![0; 64], 1));
    exchange(&mut node, &mut client, at(171));
    let end = client.completed().expect("an end");
    assert_eq!((end.status, end.is_uncertain), (Status::Timeout, false));
}

#[test]
fn whoever_has_no_key_gets_fewer_bytes_than_it_sends_and_learns_nothing() {
    let mut node = Node::new(RESPONDER);
    node.region(0, 4096);
    node.memory.write(0, &[0x5a; 4096]);
    let stranger = Client::new(9, INITIATOR);
    for length in 0..200 {
        for seed in 0..40u8 {
            let mut packet: Vec<u8> = (0..length).map(|at| seed.wrapping_mul(at).wrapping_add(at)).collect();
            if packet.len() > 2 {
                (packet[0], packet[1], packet[2], packet[3 % length as usize]) = (1, seed % 9, 0, 0);
            }
            let sent = packet.len();
            node.responder.handle_packet(stranger.address, &mut packet, at(0));
            let answered: usize = std::iter::from_fn(|| next(|it| node.responder.poll_transmit(it)))
                .map(|(_, it)| it.len())
                .sum();
            assert!(answered <= sent, "{answered} bytes for {sent}");
            assert!(answered == 0 || answered == HEADER_BYTES && sent >= HEADER_BYTES + TAG_BYTES);
        }
    }
    assert_eq!(node.bytes(0, 4096), [0x5a; 4096]);
}

/// An attacker on the path repeats or alters a request whose write is in progress. The node's answer to that copy must
/// not be taken for the end of the write.
#[test]
fn what_is_said_to_a_copy_of_a_request_is_not_the_end_of_its_write() {
    let limits = ResponderLimits { changes_max: 1, ..RESPONDER };
    for alter in [false, true] {
        let (mut node, mut client) = (Node::new(limits), Client::new(1, INITIATOR));
        let region = node.region(0, 4096);
        let writes = node.grant(region, &client);
        client.write(&writes, 0, &[7; 64], at(0));
        let (_, request) = next(|it| client.initiator.poll_transmit(it)).expect("a request");
        node.responder.handle_packet(client.address, &mut request.clone(), at(0));
        let (_, mut solicit) = next(|it| node.responder.poll_transmit(it)).expect("a solicitation");
        client.initiator.handle_packet(node.address, &mut solicit, at(1));
        let (_, mut data) = next(|it| client.initiator.poll_transmit(it)).expect("the data");
        if alter {
            let mut copy = request.clone();
            *copy.last_mut().expect("a tag") ^= 1;
            node.responder.handle_packet(client.address, &mut copy, at(2));
        } else {
            // The first write has timed out at the node, and another one is in progress.
            node.responder.handle_timeout(at(101));
            let mut other = Client::new(2, INITIATOR);
            let theirs = node.grant(region, &other);
            other.write(&theirs, 64, &[8; 64], at(101));
            let (_, mut packet) = next(|it| other.initiator.poll_transmit(it)).expect("a request");
            node.responder.handle_packet(other.address, &mut packet, at(101));
            node.responder.handle_packet(client.address, &mut request.clone(), at(101));
        }
        while let Some((to, mut answer)) = next(|it| node.responder.poll_transmit(it)) {
            if to == client.address {
                client.initiator.handle_packet(
                    node.address,
                    &mut answer,
                    if alter { at(2) } else { at(102) },
                );
            }
        }
        assert!(client.completed().is_none(), "altered: {alter}");
        let arrives = if alter { at(3) } else { at(102) };
        node.responder.handle_packet(client.address, &mut data, arrives);
        exchange(&mut node, &mut client, arrives);
        client.initiator.handle_timeout(at(111));
        exchange(&mut node, &mut client, at(112));
        let end = client.completed().expect("an end").status;
        let is_there = node.bytes(0, 64) == [7; 64];
        assert_eq!((end, is_there), if alter { (Status::Ok, true) } else { (Status::Timeout, false) });
    }
}

const WORD: u64 = 8192;

/// A node with a word, a client with a key for atomics on it.
fn with_a_word(limits: ResponderLimits) -> (Node, Client, portcullis_onerma::Destination) {
    let (mut node, client) = (Node::new(limits), Client::new(1, INITIATOR));
    let region = node.region(WORD, 64);
    let atomics = node.grant(region, &client);
    (node, client, atomics)
}

#[test]
fn atomics_tell_what_was_there_before() {
    let (mut node, mut client, atomics) = with_a_word(RESPONDER);
    let swap = |expected, new| Action::Atomic(Atomic::CompareAndSwap { expected, new });
    let add = |add| Action::Atomic(Atomic::FetchAndAdd { add });
    for (action, before, after) in
        [(add(5), 0, 5), (swap(5, 9), 5, 9), (swap(5, 7), 9, 9), (add(u64::MAX), 9, 8)]
    {
        client.act(&atomics, 0, action, at(0));
        exchange(&mut node, &mut client, at(3));
        let done = client.completed().expect("an end");
        assert_eq!((done.status, done.before, done.is_uncertain), (Status::Ok, Some(before), false));
        assert_eq!(node.memory.load(WORD), after);
    }
    for address in [1, 4, 60, 64, u64::MAX - 15] {
        client.act(&atomics, address, add(1), at(5));
        exchange(&mut node, &mut client, at(6));
        let end = client.completed().expect("an end");
        assert_eq!((end.status, end.before), (Status::RemoteAuthenticationFailure, None), "{address}");
    }
    assert_eq!((node.memory.load(WORD), node.responder.counters().atomics), (8, 4));
}

/// Runs an atomic up to its data: the packet that makes it happen.
fn up_to_the_data(node: &mut Node, client: &mut Client) -> Vec<u8> {
    let (_, mut request) = next(|it| client.initiator.poll_transmit(it)).expect("a request");
    node.responder.handle_packet(client.address, &mut request, at(0));
    let (_, mut solicit) = next(|it| node.responder.poll_transmit(it)).expect("a solicitation");
    client.initiator.handle_packet(node.address, &mut solicit, at(1));
    next(|it| client.initiator.poll_transmit(it)).expect("the data").1
}

#[test]
fn an_atomic_whose_answer_is_lost_is_asked_for_and_not_repeated() {
    let (mut node, mut client, atomics) = with_a_word(RESPONDER);
    client.act(&atomics, 0, Action::Atomic(Atomic::FetchAndAdd { add: 3 }), at(0));
    let data = up_to_the_data(&mut node, &mut client);
    node.responder.handle_packet(client.address, &mut data.clone(), at(2));
    assert!(next(|it| node.responder.poll_transmit(it)).is_some(), "the answer, which is lost");
    client.initiator.handle_timeout(at(111));
    assert!(client.completed().is_none(), "the node is asked first");
    // The data arrives once more.
    node.responder.handle_packet(client.address, &mut data.clone(), at(112));
    exchange(&mut node, &mut client, at(112));
    let end = client.completed().expect("an end");
    assert_eq!((end.status, end.before, node.memory.load(WORD)), (Status::Ok, Some(0), 3));
}

#[test]
fn an_atomic_that_the_node_is_asked_for_too_early_never_happens() {
    let (mut node, mut client, atomics) = with_a_word(RESPONDER);
    client.act(&atomics, 0, Action::Atomic(Atomic::FetchAndAdd { add: 3 }), at(0));
    let mut data = up_to_the_data(&mut node, &mut client);
    client.initiator.handle_timeout(at(111));
    // The node's clock is behind: for the node the change is still in progress.
    exchange(&mut node, &mut client, at(50));
    let end = client.completed().expect("an end");
    assert_eq!((end.status, end.is_uncertain), (Status::Timeout, false));
    node.responder.handle_packet(client.address, &mut data, at(51));
    assert_eq!((node.memory.load(WORD), node.responder.counters().unwanted), (0, 1));
}

#[test]
fn an_atomic_that_the_node_has_forgotten_is_uncertain() {
    let (mut node, mut client, atomics) = with_a_word(ResponderLimits { finished_max: 1, ..RESPONDER });
    for lost in [true, false] {
        client.act(&atomics, 0, Action::Atomic(Atomic::FetchAndAdd { add: 1 }), at(0));
        let mut data = up_to_the_data(&mut node, &mut client);
        node.responder.handle_packet(client.address, &mut data, at(2));
        let (_, mut answer) = next(|it| node.responder.poll_transmit(it)).expect("the answer");
        if !lost {
            client.initiator.handle_packet(node.address, &mut answer, at(3));
        }
    }
    assert_eq!(client.completed().expect("the second").before, Some(1));
    client.initiator.handle_timeout(at(111));
    exchange(&mut node, &mut client, at(112));
    let end = client.completed().expect("the first");
    assert_eq!((end.status, end.is_uncertain, end.before), (Status::Timeout, true, None));
}

/// Returns a node with a small record of completed changes, and the data of an atomic in progress there while the node
/// has dropped a later one from the record.
fn beside_a_forgotten_change() -> (Node, Client, portcullis_onerma::Destination, Vec<u8>) {
    let (mut node, mut client, atomics) = with_a_word(ResponderLimits { finished_max: 1, ..RESPONDER });
    let add = || Action::Atomic(Atomic::FetchAndAdd { add: 1 });
    client.act(&atomics, 0, add(), at(0));
    let data = up_to_the_data(&mut node, &mut client);
    for _ in 0..2 {
        client.act(&atomics, 0, add(), at(1));
        exchange(&mut node, &mut client, at(1));
        assert_eq!(client.completed().map(|it| it.status), Some(Status::Ok));
    }
    (node, client, atomics, data)
}

#[test]
fn a_change_whose_region_ends_under_its_data_is_never_uncertain() {
    let (mut node, mut client, atomics, mut data) = beside_a_forgotten_change();
    assert!(node.regions.remove(atomics.region));
    node.responder.handle_packet(client.address, &mut data, at(2));
    exchange(&mut node, &mut client, at(2));
    let end = client.completed().expect("an end");
    assert_eq!((end.status, end.is_uncertain), (Status::RemoteAuthenticationFailure, false));
    assert_eq!(node.memory.load(WORD), 2);
}

#[test]
fn a_change_that_is_under_way_when_its_client_asks_is_never_uncertain() {
    let (mut node, mut client, _, mut data) = beside_a_forgotten_change();
    client.initiator.handle_timeout(at(111));
    exchange(&mut node, &mut client, at(111));
    let end = client.completed().expect("an end");
    assert_eq!((end.status, end.is_uncertain), (Status::Timeout, false));
    node.responder.handle_packet(client.address, &mut data, at(112));
    assert_eq!(node.memory.load(WORD), 2, "what was said not to have happened does not happen later");
}

#[test]
fn a_node_that_never_answers_is_asked_for_a_bounded_time() {
    let (mut node, mut client, atomics) = with_a_word(RESPONDER);
    client.act(&atomics, 0, Action::Atomic(Atomic::FetchAndAdd { add: 1 }), at(0));
    up_to_the_data(&mut node, &mut client);
    let mut asked = 0;
    while let Some(deadline) = client.initiator.next_timeout() {
        client.initiator.handle_timeout(deadline);
        asked += std::iter::from_fn(|| next(|it| client.initiator.poll_transmit(it))).count();
        assert!(deadline <= at(1 + 4 * 110));
    }
    let end = client.completed().expect("an end");
    assert_eq!((end.status, end.is_uncertain, asked), (Status::Timeout, true, 3));
    assert_eq!(client.initiator.pending(), 0);
}

#[test]
fn a_third_party_with_a_key_for_it_gives_a_region_another_key() {
    let (mut node, mut client) = (Node::new(RESPONDER), Client::new(1, INITIATOR));
    let mut manager = Client::new(2, INITIATOR);
    let region = node.region(0, 64);
    let reads = node.grant(region, &client);
    let rekeys = node.grant(region, &manager);
    manager.act(&rekeys, 0, Action::Rekey(RegionKey::new([99; 32])), at(0));
    exchange(&mut node, &mut manager, at(1));
    assert_eq!(manager.completed().expect("an end").status, Status::Ok);
    // Every earlier key is invalid, the manager's own too.
    client.read(&reads, 0, 8, at(2));
    exchange(&mut node, &mut client, at(3));
    assert_eq!(client.completed().expect("an end").status, Status::RemoteAuthenticationFailure);
    manager.act(&rekeys, 0, Action::Rekey(RegionKey::new([98; 32])), at(4));
    exchange(&mut node, &mut manager, at(5));
    assert_eq!(manager.completed().expect("an end").status, Status::RemoteAuthenticationFailure);
    let again = node.grant(region, &client);
    client.read(&again, 0, 8, at(6));
    exchange(&mut node, &mut client, at(7));
    assert_eq!(client.completed().expect("an end").status, Status::Ok);
    assert_eq!(node.responder.counters().rekeys, 1);
}

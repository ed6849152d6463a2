//! An attach over TCP, without TLS, with any bytes in any pieces at any time. The node's messages must make sense. It
//! must admit exactly the clients that bring the requested ends, and each of them once.

use crate::input::Input;
use portcullis_attach::Reason;
use portcullis_attach::tls::conversation::{ClientSays, Conversation, Frames, NodeSays, VERSION, framed};
use portcullis_attach::tls::{AdmissionPolicy, Admitted, Ends, Offer, Peer, Terms};
use portcullis_nic::{GuaranteeSet, QpAddress};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The most steps of one input.
const STEPS_MAX: u32 = 64;
/// How long an attach may take.
const WITHIN: Duration = Duration::from_secs(3);

/// The clients that are present, and how many there have been.
#[derive(Clone, Default)]
struct Hall(Arc<Mutex<(HashSet<u64>, u64)>>);

impl AdmissionPolicy for Hall {
    fn offer(&self, _: &Peer) -> Result<Offer, Reason> {
        Ok(Offer::QueuePairs(TERMS))
    }

    fn admit(&self, _: &Peer, ends: Ends) -> Result<Admitted, Reason> {
        ends.check(&TERMS).expect("nobody is let in with other ends than those that were asked for");
        match ends.control.number % 4 {
            3 => Err(format!("not today\u{7}: {}", "no ".repeat(600)).into()),
            // The node's own ends do not fit: the client is not admitted.
            2 => self.place(Ends { data: Vec::new(), ..ends }),
            _ => self.place(ends),
        }
    }

    fn depart(&self, client: u64) {
        assert!(self.0.lock().expect("one thread").0.remove(&client), "{client} left twice, or never came");
    }
}

impl Hall {
    fn place(&self, ends: Ends) -> Result<Admitted, Reason> {
        let mut hall = self.0.lock().expect("one thread");
        hall.1 += 1;
        let client = hall.1;
        hall.0.insert(client);
        Ok(Admitted { client, ends })
    }
}

const TERMS: Terms = Terms {
    data_queue_pairs: 2,
    send_depth: 4,
    control_depth: 2,
    message_bytes: 128,
    unenforced: GuaranteeSet::NONE,
};

fn end(input: &mut Input<'_>) -> QpAddress {
    let known = [1, 2, 3, 4, 5, 6, 7, 0x00ff_ffff, 0x0100_0000];
    let number = u32::try_from(input.number(&known) & 0xffff_ffff).expect("32 bits");
    let ports = [[2; 16], [0; 16], [0xff; 16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]];
    // The first address is the only usable one.
    let port = ports[input.choice(16) / 13];
    QpAddress { number, port, lid: input.short(), first_packet: input.half() }
}

fn message(input: &mut Input<'_>) -> Vec<u8> {
    match input.choice(8) {
        0 => framed(&ClientSays::Hello { version: input.half() }.encode()),
        1..4 => framed(&ClientSays::Hello { version: VERSION }.encode()),
        4..7 => {
            let control = end(input);
            let count = [2, 2, 2, 2, 2, 2, 0, 1, 3, 200][input.choice(10)];
            let data = (0..count).map(|_| end(input)).collect();
            framed(&ClientSays::Ends(Ends { control, data }).encode())
        }
        _ => {
            let length = usize::from(input.byte());
            framed(input.bytes(length))
        }
    }
}

/// The node's messages so far, checked against their allowed order.
#[derive(Default)]
struct Told {
    frames: Frames,
    said: Vec<NodeSays>,
}

impl Told {
    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let frame = self.frames.take_in(&[byte]).expect("a node's frames are sound");
            self.said.extend(frame.map(|frame| NodeSays::parse(&frame).expect("a node's words make sense")));
        }
    }

    fn check(&self) {
        let order = self.said.iter().map(|word| match word {
            NodeSays::Terms(_) => 1,
            NodeSays::Welcome { .. } => 2,
            NodeSays::OneShots { .. } => panic!("this node offers queue pairs"),
            NodeSays::Refused(_) => 3,
            NodeSays::TooLate => panic!("the acceptor ends what is late, and there is none here"),
        });
        let order: Vec<u8> = order.collect();
        assert!(
            [&[][..], &[1], &[3], &[1, 2], &[1, 3]].contains(&&order[..]),
            "no node says {:?}",
            self.said
        );
    }
}

/// Runs the steps that the bytes describe.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let hall = Hall::default();
    let start = Instant::now();
    let mut conversation = Conversation::new(hall.clone(), start + WITHIN);
    let (mut told, mut pending, mut half_closes, mut heard) = (Told::default(), Vec::new(), 0, 0);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.choice(8) {
            0..3 => pending.extend(message(&mut input)),
            3 => {
                let length = usize::from(input.byte());
                pending.extend_from_slice(input.bytes(length));
            }
            4 => told.take(&conversation.send(usize::from(input.byte()))),
            5 => told.take(&conversation.send(usize::MAX)),
            _ => {
                let length = [1, 2, 3, 7, usize::MAX][input.choice(5)].min(pending.len());
                let piece: Vec<u8> = pending.drain(..length).collect();
                let (client, was_over) = (conversation.client(), conversation.client().is_some());
                heard += piece.len();
                let outcome = conversation.hear(&piece);
                assert!(outcome.is_err() || !was_over, "nothing may be said after the attach");
                assert!(outcome.is_err() || heard <= 32 << 10, "more was heard than a node listens to");
                assert!(
                    client.is_none() || conversation.client() == client,
                    "one client in one conversation"
                );
                if outcome.is_err() {
                    break;
                }
            }
        }
        half_closes += u32::from(conversation.take_half_close());
        assert!(half_closes <= 1, "the own half is closed once");
        assert!(!conversation.is_late(start), "its time is not up");
        assert_eq!(conversation.is_late(start + WITHIN), !conversation.is_attached());
    }
    told.take(&conversation.send(usize::MAX));
    told.check();
    let there = hall.0.lock().expect("one thread").0.clone();
    assert_eq!(
        there,
        conversation.client().into_iter().collect(),
        "who is there is the client, and nobody else"
    );
    if conversation.is_attached() {
        assert!(matches!(told.said.last(), Some(NodeSays::Welcome { .. })), "it was told");
    }
}

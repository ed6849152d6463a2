//! Honest reads while somebody else sends the node what opens nothing.

use super::{BYTES, Client};
use portcullis_memory::pin;
use portcullis_onerma::{Action, Destination, Status, UdpSocket};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const UNDER_WAY: usize = 64;
const TIME: Duration = Duration::from_millis(400);

/// Reads in millions a second.
pub struct Figures {
    pub alone: f64,
    pub beside_idle: f64,
    pub beside_garbage: f64,
    pub beside_unproven: f64,
    /// Datagrams that the attacker sent under no key.
    pub sent: f64,
}

/// What the attacker does, on the client's processor.
#[derive(Clone, Copy)]
enum Attack {
    Nothing,
    Garbage,
    Unproven,
}

pub fn measure(client: &mut Client, key: &Destination) -> Figures {
    let alone = rate(client, key);
    let (beside_idle, _) = beside(Attack::Nothing, client, key);
    let (beside_garbage, _) = beside(Attack::Garbage, client, key);
    let (beside_unproven, sent) = beside(Attack::Unproven, client, key);
    Figures { alone, beside_idle, beside_garbage, beside_unproven, sent }
}

fn beside(attack: Attack, client: &mut Client, key: &Destination) -> (f64, f64) {
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let template = request(key);
    let rate = std::thread::scope(|scope| {
        scope.spawn(|| flood(attack, key.address, &template, (&stop, &sent)));
        let rate = rate(client, key);
        stop.store(true, Ordering::Relaxed);
        rate
    });
    (rate, sent.load(Ordering::Relaxed) as f64 / TIME.as_secs_f64() / 1e6)
}

/// A request as a client would send it, with a tag that opens under no key.
fn request(key: &Destination) -> Vec<u8> {
    let spare = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let mut other = Client::new(spare);
    other.begin(key, Action::Read(vec![0; BYTES]));
    let mut packet = Vec::new();
    other.initiator.poll_transmit(&mut packet).expect("a request");
    let last = packet.len() - 1;
    packet[last] ^= 1;
    packet
}

fn flood(attack: Attack, to: SocketAddr, template: &[u8], (stop, sent): (&AtomicBool, &AtomicU64)) {
    pin(super::CLIENT);
    let mut socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let garbage = [0xa5; 80];
    while !stop.load(Ordering::Relaxed) {
        let datagram = match attack {
            Attack::Nothing => {
                std::hint::spin_loop();
                continue;
            }
            Attack::Garbage => &garbage[..],
            Attack::Unproven => template,
        };
        let mut left = 32;
        let burst = |out: &mut Vec<u8>| {
            if left == 0 {
                return None;
            }
            left -= 1;
            out.extend_from_slice(datagram);
            Some(to)
        };
        let there = socket.send(burst).expect("sends");
        sent.fetch_add(there as u64, Ordering::Relaxed);
        // Answers of the node.
        while socket.receive(|_, _| {}).expect("receives") > 0 {}
    }
}

/// Reads with many under way, in millions a second. What is lost is asked for again.
fn rate(client: &mut Client, key: &Destination) -> f64 {
    let read = || Action::Read(vec![0; BYTES]);
    (0..UNDER_WAY).for_each(|_| client.begin(key, read()));
    let (start, mut done, mut ended) = (Instant::now(), 0_u64, Vec::new());
    while start.elapsed() < TIME {
        client.turn(&mut ended);
        for status in ended.drain(..) {
            done += u64::from(status == Status::Ok);
            client.begin(key, read());
        }
    }
    let elapsed = start.elapsed();
    while client.initiator.pending() > 0 {
        client.turn(&mut ended);
    }
    done as f64 / elapsed.as_secs_f64() / 1e6
}

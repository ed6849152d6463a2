//! The lower bounds: how long a cache line, and a datagram, takes to another processor and back.

use super::processors;
use crate::samples::Samples;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WARM_UP: u64 = 10_000;
const ROUNDS: u64 = 100_000;

/// A value alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// The typical round trip of one cache line between the processors of node and client, in microseconds. A node that
/// runs on its processor must be idle meanwhile.
pub fn round_trip() -> f64 {
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut samples = Samples::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some((node, _)) = processors::pair() {
                portcullis::host::pin(node);
            }
            for round in 1..=WARM_UP + ROUNDS {
                wait_for(&there, round);
                back.0.store(round, Ordering::Release);
            }
        });
        processors::pin_client();
        for round in 1..=WARM_UP + ROUNDS {
            let before = Instant::now();
            there.0.store(round, Ordering::Release);
            wait_for(&back, round);
            if round > WARM_UP {
                samples.add(before.elapsed());
            }
        }
    });
    samples.typical()
}

fn wait_for(line: &Line, value: u64) {
    let mut looks = 0u32;
    while line.0.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
        looks += 1;
        // If both ends share one processor, this lets the other end run.
        if looks.is_multiple_of(1 << 14) {
            std::thread::yield_now();
        }
    }
}

/// Datagrams to warm up, and to measure.
const DATAGRAMS_WARM_UP: u64 = 2_000;
const DATAGRAMS: u64 = 20_000;
/// The longest that one datagram is waited for. On loopback none is lost.
const DATAGRAM_WITHIN: Duration = Duration::from_secs(1);
/// The longest datagram that is sent whole on loopback.
const DATAGRAM_MAX: u64 = 60_000;

/// The typical round trip of one datagram of `size` bytes between the processors of node and client, in microseconds. Both
/// ends poll. `None`: the machine refuses sockets, or lost one.
pub fn udp_round_trip(size: u64) -> Option<f64> {
    let (ours, theirs) = (polled()?, polled()?);
    let (to, back) = (theirs.local_addr().ok()?, ours.local_addr().ok()?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some((node, _)) = processors::pair() {
                portcullis::host::pin(node);
            }
            let mut bytes = vec![0; 1 << 16];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((there, _)) = theirs.recv_from(&mut bytes) {
                    let _ = theirs.send_to(&bytes[..there], back);
                }
            }
        });
        processors::pin_client();
        let bytes = vec![7; usize::try_from(size.min(DATAGRAM_MAX)).expect("it is small")];
        let typical = times_of(&ours, to, &bytes);
        stop.store(true, Ordering::Relaxed);
        typical
    })
}

fn times_of(socket: &UdpSocket, to: SocketAddr, bytes: &[u8]) -> Option<f64> {
    let (mut samples, mut room) = (Samples::new(), vec![0; 1 << 16]);
    for round in 0..DATAGRAMS_WARM_UP + DATAGRAMS {
        let before = Instant::now();
        socket.send_to(bytes, to).ok()?;
        while socket.recv_from(&mut room).is_err() {
            if before.elapsed() > DATAGRAM_WITHIN {
                return None;
            }
        }
        if round >= DATAGRAMS_WARM_UP {
            samples.add(before.elapsed());
        }
    }
    Some(samples.typical())
}

fn polled() -> Option<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

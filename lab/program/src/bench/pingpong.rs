//! The lower bounds: the round trips of a cache line and of a datagram to another processor and back.

use super::pause::Pause;
use super::processors;
use super::turns::Spread;
use crate::output::complain;
use crate::samples::Samples;
use serde::Serialize;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WARM_UP: u64 = 10_000;
const ROUNDS: u64 = 100_000;

/// A value alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// Value that signals the end of the rounds to the other end.
const OVER: u64 = u64::MAX;
/// The longest time that the rounds of one measurement may take in all. If other processes use the processors, there are
/// fewer rounds.
const MEASURED_FOR: Duration = Duration::from_secs(2);

/// The typical round trip of one cache line between two processors, if there are two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct RoundTrip(Option<f64>);

impl RoundTrip {
    /// The time in microseconds. `None`: this process may use one processor only.
    pub fn microseconds(self) -> Option<f64> {
        self.0
    }

    /// The median of several times. `None` if there is one that could not be measured.
    pub fn median(all: &[Self]) -> Self {
        let times: Option<Vec<f64>> = all.iter().map(|time| time.0).collect();
        Self(times.map(|times| Spread::of(times).median))
    }
}

impl fmt::Display for RoundTrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{time:.3} usec"),
            None => f.write_str("not measured (one processor)"),
        }
    }
}

/// The typical round trip of one cache line between the processors of node and client. A node that runs on its
/// processor must be idle meanwhile.
///
/// On a single processor the two ends would take turns, and measure the kernel's scheduler. Then nothing is measured,
/// and the first call complains: the other figures of the run are those of a shared processor.
pub fn round_trip() -> RoundTrip {
    static COMPLAINT: Once = Once::new();
    if processors::pair().is_none() {
        COMPLAINT.call_once(|| complain(ONE_PROCESSOR));
        return RoundTrip(None);
    }
    RoundTrip(Some(round_trip_of_two()))
}

fn round_trip_of_two() -> f64 {
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut samples = Samples::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some((node, _)) = processors::pair() {
                portcullis::host::pin(node);
            }
            let (mut pause, mut last) = (Pause::new(), 0);
            while last != OVER {
                last = change_of(&there, last, &mut pause);
                back.0.store(last, Ordering::Release);
            }
        });
        processors::pin_client();
        let (mut pause, began) = (Pause::new(), Instant::now());
        for round in 1..=WARM_UP + ROUNDS {
            let before = Instant::now();
            if before - began > MEASURED_FOR {
                break;
            }
            there.0.store(round, Ordering::Release);
            change_of(&back, round - 1, &mut pause);
            if round > WARM_UP || before - began > MEASURED_FOR / 2 {
                samples.add(before.elapsed());
            }
        }
        there.0.store(OVER, Ordering::Release);
    });
    samples.typical()
}

/// Waits until a line holds another value than this one, and returns that.
fn change_of(line: &Line, value: u64, pause: &mut Pause) -> u64 {
    pause.reset();
    loop {
        match line.0.load(Ordering::Acquire) {
            same if same == value => pause.pass(),
            other => return other,
        }
    }
}

/// The complaint about a single processor.
const ONE_PROCESSOR: &str = "portcullis-lab bench: this process may use one processor only: node and client take turns on it, \
                             which all figures show, and the pingpong RTT is left out. Allow two, for example with \
                             taskset -c 0,1";

/// Datagrams to warm up, and to measure.
const DATAGRAMS_WARM_UP: u64 = 2_000;
const DATAGRAMS: u64 = 20_000;
/// The longest wait for one datagram. On loopback none is lost.
const DATAGRAM_WITHIN: Duration = Duration::from_secs(1);
/// The longest datagram that is sent whole on loopback.
const DATAGRAM_MAX: u64 = 60_000;

/// The typical round trip of one datagram of `size` bytes between the processors of node and client, in microseconds.
/// Both ends poll. `None`: this process may use one processor only, or the machine refuses sockets or lost a datagram.
pub fn udp_round_trip(size: u64) -> Option<f64> {
    processors::pair()?;
    let (ours, theirs) = (polled()?, polled()?);
    let (to, back) = (theirs.local_addr().ok()?, ours.local_addr().ok()?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some((node, _)) = processors::pair() {
                portcullis::host::pin(node);
            }
            let (mut bytes, mut pause) = (vec![0; 1 << 16], Pause::new());
            while !stop.load(Ordering::Relaxed) {
                match theirs.recv_from(&mut bytes) {
                    Ok((there, _)) => {
                        pause.reset();
                        let _ = theirs.send_to(&bytes[..there], back);
                    }
                    Err(_) => pause.pass(),
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
    let (mut pause, began) = (Pause::new(), Instant::now());
    for round in 0..DATAGRAMS_WARM_UP + DATAGRAMS {
        let before = Instant::now();
        if before - began > MEASURED_FOR {
            break;
        }
        socket.send_to(bytes, to).ok()?;
        pause.reset();
        while socket.recv_from(&mut room).is_err() {
            if before.elapsed() > DATAGRAM_WITHIN {
                return None;
            }
            pause.pass();
        }
        if round >= DATAGRAMS_WARM_UP || before - began > MEASURED_FOR / 2 {
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

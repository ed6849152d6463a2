//! Engines on threads: withdrawals while clients write, and atomics of two engines on one word.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Number of withdrawals. `PORTCULLIS_WITHDRAWALS` sets another.
const WITHDRAWALS: u64 = 1_000;
/// Number of withdrawals that must have found an engine in a turn.
const AWAITED_MIN: u64 = 10;
/// Bytes of each write: as many as an engine moves in one visit.
const WRITTEN: u32 = 64 << 10;
/// The bytes of the next owner: those that a write moves last.
const NEXT: std::ops::Range<u64> = WRITTEN as u64 - 1024..WRITTEN as u64;

#[derive(Debug)]
struct Yielding;

impl ThreadRunner for Yielding {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        std::thread::yield_now();
    }
}

/// The threads of engines.
struct Engines {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Engines {
    fn start(seats: &Seats) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let start = |seat: &Arc<Seat<Mapping>>| {
            let (seat, stop) = (Arc::clone(seat), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if seat.turn() != SeatTurn::Worked {
                        std::thread::yield_now();
                    }
                }
            })
        };
        let threads = seats.iter().map(start).collect();
        Self { stop, threads }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("an engine ends"));
    }
}

#[test]
fn no_byte_arrives_after_the_confirmation_that_ended_its_access() {
    let withdrawals = std::env::var("PORTCULLIS_WITHDRAWALS").ok().and_then(|text| text.parse().ok());
    let withdrawals: u64 = withdrawals.unwrap_or(WITHDRAWALS);
    let mut rig = Rig::with(1, |_| Arc::new(Yielding));
    let _engines = Engines::start(&rig.seats);
    let mut client = rig.attach();
    rig.bind(client.node_ends[1]);
    while rig.polled().is_empty() {
        rig.nic.turn();
    }
    let (mut awaited, mut refused) = (0_u64, 0_u64);
    let mut under_way = 0;
    client.arena.write(0, &vec![0xCC; WRITTEN as usize]);
    let mut round = 0;
    // On a busy machine engine and NIC seldom run at once.
    while round < withdrawals || (awaited < AWAITED_MIN && round < 100 * withdrawals) {
        round += 1;
        // The client writes, also with keys that have ended. Then another client takes its place, since one that comes and
        // goes is lent more and more seldom.
        if rig.nic.qp_state(client.node_ends[0]) == Ok(QpState::Error) {
            under_way = 0;
            rig.detach(client);
            client = rig.attach();
            client.arena.write(0, &vec![0xCC; WRITTEN as usize]);
            refused += 1;
        }
        while rig.lent() == 0 {
            client.post(1, round, Operation::Read { local: client.local(0, 8), remote: rig.span(0) });
            while client.poll().is_none() {
                rig.nic.turn();
            }
        }
        let opened = RemoteSpan { rkey: rig.key, ..rig.span(0) };
        while under_way < 8 {
            client.post(0, round, Operation::Write { local: client.local(0, WRITTEN), remote: opened });
            under_way += 1;
        }
        // The engine is at work when the first of the writes has ended.
        while client.poll().is_none() {
            rig.nic.turn();
        }
        under_way -= 1;
        rig.unbind(client.node_ends[1]);
        let mut turns = 0;
        while rig.polled().is_empty() {
            rig.nic.turn();
            turns += 1;
        }
        awaited += u64::from(turns > 1);
        // The memory is the next owner's.
        let next = [u8::try_from(round % 0xC0).expect("a byte"); 1024];
        rig.memory.write(NEXT.start, &next);
        for _ in 0..100 {
            rig.nic.turn();
            std::hint::spin_loop();
        }
        let mut found = [0; 1024];
        rig.memory.read(NEXT.start, &mut found);
        assert!(found == next, "round {round}: a byte has arrived after the confirmation");
        while client.poll().is_some() {
            under_way -= 1;
        }
        rig.bind(client.node_ends[1]);
        while rig.polled().is_empty() {
            rig.nic.turn();
        }
    }
    eprintln!("{round} withdrawals, {awaited} waited, {refused} refusals");
    assert!(awaited >= AWAITED_MIN, "an engine was in a turn at the end of {awaited} accesses only");
}

#[test]
fn atomics_of_two_engines_on_one_word_are_atomic() {
    const EACH: u64 = 20_000;
    let mut rig = Rig::with(2, |_| Arc::new(Yielding));
    let mut clients = [rig.attach(), rig.attach()];
    clients.iter_mut().for_each(|client| rig.make_busy(client));
    let _engines = Engines::start(&rig.seats);
    let remote = rig.span(1024);
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in &mut clients {
            let ended = &ended;
            scope.spawn(move || {
                let (mut posted, mut done) = (0, 0);
                while done < EACH {
                    while posted < EACH && posted - done < 16 {
                        client.post(
                            0,
                            posted,
                            Operation::FetchAndAdd { local: client.local(0, 8), remote, add: 1 },
                        );
                        posted += 1;
                    }
                    while let Some(completion) = client.poll() {
                        assert_eq!(completion.status, Status::Success);
                        done += 1;
                    }
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        while ended.load(Ordering::Relaxed) < 2 {
            rig.nic.turn();
        }
    });
    assert_eq!(rig.memory.load(1024), 2 * EACH);
    let loads = rig.nic.core().engine_loads();
    assert!(
        loads.iter().all(|load| load.requests > EACH / 2),
        "the engines have made the additions: {loads:?}"
    );
}

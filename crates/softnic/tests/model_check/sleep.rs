//! The protocol for sleeping and waking: no end sleeps if it has work to do and no wake-up is on its way.
//!
//! The rings and loom's atomics are real. The kernel's part is modelled, with no more order than the kernel promises.
//! No wait has a timeout here: a sleeper without a wake-up is a deadlock, which the checker reports. (The engine and
//! the clients do bound their sleep, but the protocol must not rely on that.)
//!
//! Each step is a function with the name of its original. A list (`_STEPS`) gives the original's accesses to memory and
//! their order; [`agreement`](crate::agreement) compares the list with the source.

use crate::entries::{request, request_words, send_completion};
use crate::exploration::{Bound, Tally, explore};
use crate::memory::LoomMemory;
use crate::orderings::Orderings;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use portcullis_softnic::core::{CompletionPoller, CompletionPoster, Ring, SendPoster, SendTaker};
use std::sync::Arc;

/// The ends that keep the protocol, with a fence between their store and their load.
#[derive(Clone, Copy, Debug)]
pub struct Fences {
    /// The end that has work for the other end and wakes it.
    pub waking: bool,
    /// The end that goes to sleep.
    pub sleeping: bool,
}

impl Fences {
    /// Both ends keep the protocol, as they must.
    pub const BOTH: Self = Self { waking: true, sleeping: true };
}

fn fence_if(kept: bool) {
    if kept {
        fence(Ordering::SeqCst);
    }
}

/// An event descriptor and the epoll on it. A write wakes the wait under way, or else the next one.
#[derive(Debug)]
struct Event {
    written: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn new() -> Self {
        Self { written: Mutex::new(false), changed: Condvar::new() }
    }

    fn write(&self) {
        *self.written.lock().expect("nobody panics") = true;
        self.changed.notify_one();
    }

    fn quiet(&self) {
        *self.written.lock().expect("nobody panics") = false;
    }

    fn wait(&self) {
        let mut written = self.written.lock().expect("nobody panics");
        while !*written {
            written = self.changed.wait(written).expect("nobody panics");
        }
        *written = false;
    }
}

/// The engine's state that posters see, and the event that wakes it.
#[derive(Debug)]
struct Engine {
    sleeping: AtomicU32,
    event: Event,
    fences: Fences,
}

/// Steps of `Waker::announce`.
pub const ANNOUNCE_STEPS: &[&str] = &["store Relaxed", "fence SeqCst"];
/// Steps of `Waker::awake`.
pub const AWAKE_STEPS: &[&str] = &["store Relaxed"];
/// Steps of `Doorbell::ring`, and of `Waker::wake` by it.
pub const RING_STEPS: &[&str] = &["fence SeqCst", "load Relaxed", "write"];
/// Steps of `EngineThread::sleep`: the engine checks all sources of work after it has announced its sleep, and again
/// after each sleep.
pub const SLEEP_STEPS: &[&str] =
    &["announce", "turn_all", "turn", "run_commands", "load Acquire", "sleep", "awake"];

impl Engine {
    fn announce(&self) {
        self.sleeping.store(1, Ordering::Relaxed);
        fence_if(self.fences.sleeping);
    }

    fn awake(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    fn ring(&self) {
        fence_if(self.fences.waking);
        if self.sleeping.load(Ordering::Relaxed) != 0 {
            self.event.write();
        }
    }

    fn sleep(&self, mut turn_all: impl FnMut() -> bool) {
        loop {
            self.announce();
            if turn_all() {
                break;
            }
            self.event.wait();
        }
        self.awake();
    }
}

/// A futex word and its waiters in the kernel. To a waker, the comparison and falling asleep are one step.
#[derive(Debug)]
struct Futex {
    word: AtomicU32,
    bucket: Mutex<Bucket>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct Bucket {
    waiting: bool,
    woken: bool,
}

impl Futex {
    fn new() -> Self {
        Self { word: AtomicU32::new(0), bucket: Mutex::new(Bucket::default()), woken: Condvar::new() }
    }

    fn wait(&self, expected: u32) {
        let mut bucket = self.bucket.lock().expect("nobody panics");
        if self.word.load(Ordering::Relaxed) != expected {
            return;
        }
        *bucket = Bucket { waiting: true, woken: false };
        while !bucket.woken {
            bucket = self.woken.wait(bucket).expect("nobody panics");
        }
        bucket.waiting = false;
    }

    fn wake(&self) {
        let mut bucket = self.bucket.lock().expect("nobody panics");
        if bucket.waiting {
            bucket.woken = true;
            self.woken.notify_one();
        }
    }
}

/// The way in which a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A thread sleeps on the futex.
    Futex,
    /// An event loop waits for the alarm.
    Alarm,
}

/// The means by which the NIC wakes a client.
#[derive(Debug)]
struct Client {
    sleeping: Futex,
    alarm: Event,
    /// Whether a waker finds how the client waits, and writes that the client is awake, in one step.
    is_one_step: bool,
}

/// Steps of `Mapping::sleep`, which `PortEndpoint::wait` calls.
pub const WAIT_STEPS: &[&str] = &["swap Relaxed", "fence SeqCst", "waiting", "futex::wait", "swap Relaxed"];
/// Steps of `Core::wake_sleepers`, for one client.
pub const WAKE_SLEEPERS_STEPS: &[&str] = &["fence SeqCst", "wake_client"];
/// Steps of `Mapping::wake_sleeper`, which `NicMemory::wake` calls.
pub const WAKE_STEPS: &[&str] = &["load Relaxed", "swap Relaxed", "ring", "futex::wake"];
/// Steps of `Mapping::watch`, which `PortEndpoint::arm` calls after it has handled earlier rings.
pub const WATCH_STEPS: &[&str] = &["swap Relaxed", "fence SeqCst", "waiting", "swap Relaxed"];

fn client_wait(client: &Client, wait: Wait, waiting: impl FnOnce() -> bool, fences: Fences) {
    let sleeping = &client.sleeping;
    if wait == Wait::Alarm {
        client.alarm.quiet();
        sleeping.word.swap(2, Ordering::Relaxed);
        fence_if(fences.sleeping);
        if waiting() {
            sleeping.word.swap(0, Ordering::Relaxed);
        } else {
            client.alarm.wait();
        }
        return;
    }
    sleeping.word.swap(1, Ordering::Relaxed);
    fence_if(fences.sleeping);
    if !waiting() {
        sleeping.wait(1);
    }
    sleeping.word.swap(0, Ordering::Relaxed);
}

fn wake_sleepers(client: &Client, fences: Fences) {
    fence_if(fences.waking);
    wake(client);
}

fn wake(Client { sleeping, alarm, is_one_step }: &Client) {
    let seen = sleeping.word.load(Ordering::Relaxed);
    if seen == 0 {
        return;
    }
    let found = sleeping.word.swap(0, Ordering::Relaxed);
    match if *is_one_step { found } else { seen } {
        0 => {}
        2 => alarm.write(),
        _ => sleeping.wake(),
    }
}

/// Lets each of `clients` post `requests` on its own queue and ring the bell after each. The engine sleeps whenever it
/// finds nothing.
pub fn the_engine_wakes(clients: u64, requests: u32, fences: Fences, bound: Bound) {
    let slept = Tally::default();
    let asleep = slept.clone();
    let runs = explore(bound, move || {
        let memory = LoomMemory::new(clients * 128, Orderings::OF_MAPPING);
        let ring = |client: u64| Ring::new(memory.clone(), client * 128, 2);
        let mut takers: Vec<_> = (0..clients).map(|client| SendTaker::new(ring(client))).collect();
        let engine = Arc::new(Engine { sleeping: AtomicU32::new(0), event: Event::new(), fences });
        let posting: Vec<_> = (0..clients)
            .map(|client| {
                let (engine, mut poster) = (Arc::clone(&engine), SendPoster::new(ring(client)));
                loom::thread::spawn(move || {
                    for id in 1..=requests {
                        assert_eq!(poster.post(&[request(id, true)]), 1);
                        engine.ring();
                    }
                })
            })
            .collect();
        let mut outstanding = clients * u64::from(requests);
        while outstanding > 0 {
            let mut turn_all = || {
                let before = outstanding;
                for taker in &mut takers {
                    if let Some(words) = taker.peek() {
                        let id = u32::try_from(taker.taken() + 1).expect("there are only a few");
                        assert_eq!(words, request_words(id, true, 1));
                        taker.advance();
                        outstanding -= 1;
                    }
                }
                outstanding < before
            };
            engine.sleep(|| {
                let worked = turn_all();
                if !worked {
                    asleep.add();
                }
                worked
            });
        }
        for posting in posting {
            posting.join().expect("a poster ends");
        }
    });
    println!("{runs} runs");
    assert!(slept.value() > 0, "the engine never slept");
}

/// Lets the NIC post `completions` and wake the client after each. The client sleeps whenever it finds none.
pub fn the_client_wakes(completions: u32, wait: Wait, fences: Fences, bound: Bound) {
    const CELL: u64 = 64;
    let slept = Tally::default();
    let asleep = slept.clone();
    let runs = explore(bound, move || {
        let memory = LoomMemory::new(72, Orderings::OF_MAPPING);
        let ring = || Ring::new(memory.clone(), 0, 2);
        let client = Arc::new(Client { sleeping: Futex::new(), alarm: Event::new(), is_one_step: true });
        let (mut poster, woken) = (CompletionPoster::new(ring(), CELL), Arc::clone(&client));
        let nic = loom::thread::spawn(move || {
            for id in 1..=completions {
                assert!(poster.has_room(1));
                poster.post(&send_completion(id), u64::from(id));
                wake_sleepers(&woken, fences);
            }
        });
        let mut poller = CompletionPoller::new(ring(), CELL);
        for id in 1..=completions {
            let got = loop {
                match poller.take() {
                    Some((completion, _)) => break completion,
                    None => {
                        asleep.add();
                        client_wait(&client, wait, || poller.waiting(), fences);
                    }
                }
            };
            assert_eq!(got, send_completion(id));
            poller.publish();
        }
        nic.join().expect("the NIC ends");
    });
    println!("{runs} runs");
    assert!(slept.value() > 0, "the client never slept");
}

/// Lets two threads of a node post a completion each, on queues of their own, and wake the client. The client first sleeps on
/// the futex if it finds none, and then waits for the alarm.
pub fn the_client_wakes_for_both(is_one_step: bool, bound: Bound) {
    const CELL: u64 = 64;
    let slept = Tally::default();
    let asleep = slept.clone();
    explore(bound, move || {
        let memories = [(); 2].map(|()| LoomMemory::new(72, Orderings::OF_MAPPING));
        let client = Arc::new(Client { sleeping: Futex::new(), alarm: Event::new(), is_one_step });
        let posting = memories.clone().map(|memory| {
            let client = Arc::clone(&client);
            loom::thread::spawn(move || {
                CompletionPoster::new(Ring::new(memory, 0, 2), CELL).post(&send_completion(1), 1);
                wake_sleepers(&client, Fences::BOTH);
            })
        });
        let mut pollers = memories.map(|memory| CompletionPoller::new(Ring::new(memory, 0, 2), CELL));
        let mut taken = 0;
        for (due, wait) in [(1, Wait::Futex), (2, Wait::Alarm)] {
            while taken < due {
                taken += pollers.iter_mut().filter_map(CompletionPoller::take).count();
                if taken < due {
                    asleep.add();
                    let waiting = || pollers.iter().any(CompletionPoller::waiting);
                    client_wait(&client, wait, waiting, Fences::BOTH);
                }
            }
        }
        posting.into_iter().for_each(|thread| thread.join().expect("a thread ends"));
    });
    assert!(slept.value() > 0, "the client never slept");
}

#[test]
fn two_threads_that_wake_a_client_at_once_do_not_leave_it_asleep() {
    the_client_wakes_for_both(true, Bound::Interruptions(3));
}

#[test]
fn the_engine_never_sleeps_with_a_request_posted_and_no_bell_rung() {
    the_engine_wakes(1, 2, Fences::BOTH, Bound::Every);
}

#[test]
fn two_clients_that_post_at_once_both_wake_the_engine() {
    the_engine_wakes(2, 1, Fences::BOTH, Bound::Interruptions(4));
}

#[test]
fn a_client_never_sleeps_with_a_completion_posted_and_no_wake_up_sent() {
    the_client_wakes(2, Wait::Futex, Fences::BOTH, Bound::Interruptions(5));
}

#[test]
fn an_event_loop_never_waits_with_a_completion_posted_and_no_alarm_rung() {
    the_client_wakes(2, Wait::Alarm, Fences::BOTH, Bound::Interruptions(5));
}

//! Clients and servers that break the rules, beside an honest pair.

use super::admission::{News, SocketAdmission};
use super::ends::{REPLIES, REQUESTS, Reader, ReplyLine, RequestLine, Status, Writer};
use super::messages::{Asked, TOLD_BYTES, Told};
use super::*;
use crate::heap::{Heap, HeapPlace, Owner};
use crate::{Boxed, ScopeRef};
use portcullis_attach::unix::MessageSocket;
use rand::{Rng, RngExt, SeedableRng};
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ADD: u32 = 1;
const LENGTH: u32 = 2;
/// How long a test waits for a condition before it fails. No successful test waits that long.
pub(super) const LONG: Duration = Duration::from_secs(20);

fn server() -> (Server, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.sock");
    let server = serve(&path)
        .copied(ADD, |numbers: Copied<'_, crate::Vector<u64>>, reply| {
            let numbers = numbers.get()?.get(numbers.view())?;
            let before: u64 = numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number));
            // The copy stays the same, whatever the sender does meanwhile.
            std::thread::yield_now();
            let after: u64 = numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number));
            assert_eq!(before, after, "bytes changed under a method");
            reply.set_word(before);
            Ok(())
        })
        .trusted(LENGTH, |list: Trusted<'_, crate::List<u64>>, reply| {
            let steps = list.read()?.read(list.heap()).take(1000);
            reply.set_word(steps.collect::<Result<Vec<u64>, _>>()?.len() as u64);
            Ok(())
        })
        .start()
        .unwrap();
    (server, path, folder)
}

/// A client that has a connection's memory and writes anything into it.
pub(super) struct Hostile {
    ring: Mapping,
    pub heap: Heap,
    requests: Writer,
    replies: Reader,
    doorbell: portcullis_memory::Doorbell,
    pub socket: MessageSocket,
    pub descriptors: Vec<OwnedFd>,
}

impl Hostile {
    pub fn connect(path: &Path) -> Self {
        Self::try_connect(path).expect("an offer")
    }

    /// Connects by hand. `None`: the server refuses.
    pub fn try_connect(path: &Path) -> Option<Self> {
        let socket = MessageSocket::connect(path, Instant::now() + LONG).unwrap();
        socket.say(&Asked::Hello { heap_bytes: 1 << 20 }.encode()).unwrap();
        let (bytes, descriptors) = socket.hear(TOLD_BYTES).unwrap();
        let Some(Told::Offer { address, length, owner, .. }) = Told::parse(&bytes) else { return None };
        let kept = descriptors.iter().map(|it| it.try_clone().unwrap()).collect();
        let [ring, heap, page, event]: [OwnedFd; 4] = descriptors.try_into().unwrap();
        let heap = Heap::open(heap, HeapPlace::new(address, length).unwrap(), Owner(owner)).unwrap();
        let ring = Mapping::of_peer(ring, RING_BYTES, true).unwrap();
        let doorbell = portcullis_memory::Doorbell::new(Mapping::of_peer(page, 4096, false).unwrap(), event);
        socket.say(&Asked::Mapped.encode()).unwrap();
        assert_eq!(Told::parse(&socket.hear(TOLD_BYTES).unwrap().0), Some(Told::Welcome));
        let (requests, replies) =
            (Writer::new(ring.clone(), REQUESTS, DEPTH), Reader::new(ring.clone(), REPLIES, DEPTH));
        Some(Self { ring, heap, requests, replies, doorbell, socket, descriptors: kept })
    }

    pub fn request(&mut self, method: u32, root: u64, scope: ScopeRef) {
        let request = RequestLine { method, call: 1, root, scope, deadline: 0, word: 0 };
        self.requests.write(method, request.words());
        self.doorbell.ring();
    }

    pub fn reply(&mut self) -> ReplyLine {
        let began = Instant::now();
        loop {
            if let Some((status, words, _)) = self.replies.read() {
                return ReplyLine::read(status, words);
            }
            assert!(began.elapsed() < LONG, "no reply");
            std::thread::yield_now();
        }
    }
}

/// Runs an honest client that checks every answer until `stop` is set. Returns the number of answers.
fn honest(path: &Path, stop: &AtomicBool) -> u64 {
    let mut connection = Connection::open(path).unwrap();
    let mut calls = 0;
    while !stop.load(Ordering::Acquire) || calls < 50 {
        let scope = connection.scope(4096).unwrap();
        let numbers: Vec<u64> = (calls..calls + 100).collect();
        let vector = crate::Vector::new(&scope, &numbers).unwrap();
        let root = Boxed::new(&scope, vector).unwrap();
        let answer = connection.call(ADD, &scope, root).unwrap();
        assert_eq!(answer.word(), numbers.iter().sum::<u64>());
        calls += 1;
    }
    calls
}

fn beside_honest(attack: impl FnOnce(&Path)) {
    let (server, path, _folder) = server();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| honest(&path, &stop));
        attack(&path);
        stop.store(true, Ordering::Release);
        assert!(client.join().unwrap() >= 50);
    });
    drop(server);
}

#[test]
fn arguments_that_change_while_they_are_used_stay_the_same() {
    beside_honest(|path| {
        let mut hostile = Hostile::connect(path);
        let scope = hostile.heap.scope(64 << 10).unwrap();
        let address = scope.address();
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let (heap, memory) = (hostile.heap.clone(), hostile.heap.memory().clone());
            let stop = &stop;
            threads.spawn(move || {
                // This writes through another mapping of the same file, so the same memory is mapped twice.
                let mut value = 0_u64;
                while !stop.load(Ordering::Acquire) {
                    value = value.wrapping_add(0x9e37_79b9);
                    let offset = heap.place().offset(address, 8).unwrap();
                    for word in (64..4096).step_by(8) {
                        memory.store(offset + word, value);
                    }
                    // The vector's length and address change as well.
                    memory.store(offset + 8, value % 9000);
                    memory.store(offset, if value.is_multiple_of(3) { address + 64 } else { value });
                }
            });
            for _ in 0..2000 {
                hostile.request(ADD, address, ScopeRef { address, length: 64 << 10 });
                let status = Status::read(hostile.reply().status);
                assert!(matches!(status, Some(Status::Done | Status::WildPointer)), "{status:?}");
            }
            stop.store(true, Ordering::Release);
        });
    });
}

#[test]
fn pages_that_are_punched_out_of_the_files_are_zeros() {
    beside_honest(|path| {
        let mut hostile = Hostile::connect(path);
        let place = hostile.heap.place();
        for descriptor in &hostile.descriptors[..2] {
            assert!(
                rustix::fs::ftruncate(descriptor, 0).is_err(),
                "no page can be taken from under the server"
            );
            let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(descriptor, hole, 0, 8192).unwrap();
        }
        // The server sees an empty ring, and its allocator an empty heap: the connection is useless, and there is no
        // other effect.
        hostile.requests = Writer::new(hostile.ring.clone(), REQUESTS, DEPTH);
        for _ in 0..DEPTH {
            hostile.request(ADD, place.start(), ScopeRef { address: place.start(), length: 4096 });
        }
    });
}

#[test]
fn lines_of_any_bytes_harm_nobody_else() {
    let seed = rand::rng().next_u64();
    println!("seed {seed}");
    beside_honest(|path| {
        let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
        let mut hostile = Hostile::connect(path);
        let place = hostile.heap.place();
        for turn in 0..20_000_u32 {
            let mut number = || match random.random_range(0..5) {
                0 => random.next_u64(),
                1 => 0,
                2 => place.start() + random.random_range(0..place.length),
                3 => random.random_range(0..9000),
                _ => place.start() + place.length - random.random_range(0..64),
            };
            let scope = ScopeRef { address: number(), length: number() };
            let request = RequestLine {
                method: turn % 4,
                call: number(),
                root: number(),
                scope,
                deadline: number(),
                word: number(),
            };
            hostile.requests.write(turn % 4, request.words());
            if turn % 7 == 0 {
                let at = (number() % (place.length - 8)) & !7;
                hostile.heap.memory().store(at, number());
                hostile.ring.store((number() % (RING_BYTES - 8)) & !7, number());
            }
            if turn % 64 == 0 {
                hostile.doorbell.ring();
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn whoever_stops_at_any_step_of_a_connection_costs_nobody_anything() {
    beside_honest(|path| {
        for step in 0..5 {
            for _ in 0..20 {
                let socket = MessageSocket::connect(path, Instant::now() + LONG).unwrap();
                if step == 0 {
                    continue;
                }
                socket.say(&Asked::Hello { heap_bytes: 1 << 20 }.encode()).unwrap();
                if step == 1 {
                    continue;
                }
                socket.hear(TOLD_BYTES).unwrap();
                if step == 2 {
                    continue;
                }
                let said = if step == 3 { Asked::Taken } else { Asked::Mapped };
                socket.say(&said.encode()).unwrap();
            }
        }
        // Malformed messages, and messages after the handshake.
        for garbage in [&b"GET / HTTP/1.1"[..], &[0xff; 16], &[]] {
            let socket = MessageSocket::connect(path, Instant::now() + LONG).unwrap();
            socket.say(garbage).unwrap();
        }
        let hostile = Hostile::connect(path);
        rustix::net::send(&hostile.socket, b"more", rustix::net::SendFlags::NOSIGNAL).unwrap();
    });
}

/// Number of descriptors that the epoll of a waker waits for.
fn watched(waker: &portcullis_memory::Waker) -> usize {
    // Other tests have epolls too: the waker's own is the one that waits for this event.
    let mark = waker.new_event().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&mark).to_string();
    let is_marked = |line: &str| {
        let rest = line.strip_prefix("tfd:");
        rest.and_then(|rest| rest.split_whitespace().next()) == Some(&number)
    };
    let folder = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let again = folder.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default());
    let mine = { again }.find(|info| info.lines().any(is_marked)).expect("the waker's epoll");
    mine.lines().filter(|line| line.starts_with("tfd:")).count() - 1
}

#[test]
fn whoever_is_not_let_in_leaves_no_event_behind() {
    let waker = portcullis_memory::Waker::new().unwrap();
    let before = watched(&waker);
    let event = portcullis_memory::WatchedEvent::new(&waker).unwrap();
    let kept = event.event().unwrap();
    assert_eq!(watched(&waker), before + 1);
    drop(event);
    assert_eq!(watched(&waker), before, "although the client has a descriptor of it");
    drop(kept);
}

#[test]
fn a_place_that_is_taken_is_not_offered_for_ever() {
    let (_server, path, _folder) = server();
    let socket = MessageSocket::connect(&path, Instant::now() + LONG).unwrap();
    socket.say(&Asked::Hello { heap_bytes: 0 }.encode()).unwrap();
    let mut places = std::collections::HashSet::new();
    loop {
        match Told::parse(&socket.hear(TOLD_BYTES).unwrap().0) {
            Some(Told::Offer { address, .. }) => {
                places.insert(address);
                socket.say(&Asked::Taken.encode()).unwrap();
            }
            Some(Told::Refused(reason)) => {
                assert!(reason.contains("taken"), "{reason}");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(places.len() > 8);
}

/// The server of this test answers with arbitrary bytes.
#[test]
fn replies_of_any_bytes_are_errors_or_values() {
    let seed = rand::rng().next_u64();
    println!("seed {seed}");
    let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.sock");
    let access = SocketAccess { mode: 0o600, group: None };
    let listener = portcullis_attach::unix::Listener::bind(&path, access).unwrap();
    let shards = shards::ServerShards::new(1).unwrap();
    let heap_bytes = (1 << 20, 1 << 20);
    let lending = lending::Lending::start(u64::MAX, u64::MAX).unwrap();
    let admission = SocketAdmission {
        shards: shards.clone(),
        heap_bytes,
        one_shots: None,
        next: 1.into(),
        shared: None,
        lending,
        withholds: false,
        source: None,
    };
    let _acceptor = portcullis_attach::Acceptor::start::<admission::Entry>(
        vec![listener],
        admission,
        portcullis_attach::Limits::UNIX,
    )
    .unwrap();
    let mut connection = Connection::open(&path).unwrap();
    let Some(News::Came(_, shared)) = shards[0].take_news().pop() else { panic!("no client came") };
    let mut replies = Writer::new(shared.ring.clone(), REPLIES, DEPTH);
    let place = shared.heap.place();
    for round in 1..=3000_u64 {
        let mut number = || match random.random_range(0..4) {
            0 => random.next_u64(),
            1 => 0,
            2 => place.start() + random.random_range(0..place.length),
            _ => random.random_range(0..9000),
        };
        let within = Some(LONG);
        let begun = connection.begin(1, ScopeRef::default(), Boxed::<u64>::NULL, 0, within).unwrap();
        let (call, scope) = (begun.0, ScopeRef { address: number(), length: number() });
        let status = u32::try_from(number() % 12).unwrap();
        // One answer belongs to no call, and the other one to the call.
        let stray = ReplyLine { status, call: call ^ number(), root: number(), scope, word: number() };
        let answer = ReplyLine { status, call, root: number(), scope, word: number() };
        if round.is_multiple_of(3) {
            replies.write(status, stray.words());
        }
        replies.write(status, answer.words());
        shared.heap.memory().store((number() % (place.length - 8)) & !7, number());
        if let Ok(answer) = connection.wait(begun) {
            let _ = answer.read::<[u64; 4]>();
            let looked = connection.look::<crate::List<crate::Text>>(&answer);
            if let Ok(list) = &looked
                && let Ok(root) = list.get()
            {
                for text in root.iter(list.view()) {
                    let _ = text.map(|text| text.get(list.view()));
                }
            }
        }
    }
}

//! Senders that lie about their seals, beside an honest sender whose bytes are all compared.

use super::super::admission::{SocketAdmission, find_place};
use super::super::ends::Status;
use super::super::lending::Lending;
use super::super::messages::{Asked, TOLD_BYTES, Told};
use super::super::shards::ServerShards;
use super::super::tests::{Hostile, LONG};
use super::super::{Connection, Copied, Server, ServerOptions, SocketAccess, Trusted, serve};
use super::{OPEN_MAX, OneShot, OneShotError, OneShotLimits};
use crate::{Boxed, ScopeRef, Vector};
use portcullis_attach::unix::Listener;
use portcullis_memory::{Mapping, Memory, SealError, SealedFile};
use rand::{Rng, RngExt, SeedableRng};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const SUM: u32 = 1;
const BACK: u32 = 2;
const COPIED: u32 = 3;
const TRUSTED: u32 = 4;
const PAGE: u64 = 4096;
const SCOPES: u32 = 8;
const BYTES: u64 = 64 * PAGE;

fn server() -> (Server, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.sock");
    let options =
        ServerOptions { one_shot_scopes: SCOPES, one_shot_bytes: BYTES, ..ServerOptions::default() };
    let server = serve(&path)
        .with(options)
        .one_shot(SUM, |numbers: OneShot<'_, Vector<u64>>, reply| {
            let numbers = numbers.get()?.get(numbers.view())?;
            let before: u64 = numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number));
            // The scope stays the same, whatever the sender does meanwhile.
            std::thread::yield_now();
            let after: u64 = numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number));
            assert_eq!(before, after, "bytes changed under a method");
            reply.set_word(before);
            Ok(())
        })
        .one_shot(BACK, |numbers: OneShot<'_, Vector<u64>>, reply| {
            let numbers = numbers.get()?.get(numbers.view())?;
            let scope = reply.scope(size_of_val(numbers) as u64 + 64)?;
            let copy = Vector::new(scope, numbers)?;
            let root = Boxed::new(scope, copy)?;
            reply.set_root(root);
            Ok(())
        })
        .copied(COPIED, |_: Copied<'_, u64>, _| Ok(()))
        .trusted(TRUSTED, |_: Trusted<'_, u64>, _| Ok(()))
        .start()
        .unwrap();
    (server, path, folder)
}

/// Runs an honest client, all bytes of whose scopes are compared, until `stop` is set.
fn honest(path: &Path, stop: &AtomicBool) -> u64 {
    let mut connection = Connection::open(path).unwrap();
    let mut scopes = 0_u64;
    while !stop.load(Ordering::Acquire) || scopes < 20 {
        let numbers: Vec<u64> = (scopes..scopes + 1000).map(|it| it * 0x9e37_79b9).collect();
        let scope = connection.one_shot(3 * PAGE).unwrap();
        let vector = Vector::new(&scope, &numbers).unwrap();
        let root = Boxed::new(&scope, vector).unwrap();
        let sealed = connection.seal(scope).unwrap();
        assert_eq!(root.get(&sealed.view()).unwrap().get(&sealed.view()).unwrap(), numbers);
        for _ in 0..3 {
            assert_eq!(
                connection.call_sealed(SUM, &sealed, root).unwrap().word(),
                numbers.iter().sum::<u64>()
            );
            let answer = connection.call_sealed(BACK, &sealed, root).unwrap();
            let back = connection.look::<Vector<u64>>(&answer).unwrap();
            assert_eq!(back.get().unwrap().get(back.view()).unwrap(), numbers);
        }
        scopes += 1;
    }
    scopes
}

fn beside_honest(attack: impl FnOnce(&Path)) {
    let (server, path, _folder) = server();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| honest(&path, &stop));
        attack(&path);
        stop.store(true, Ordering::Release);
        assert!(client.join().unwrap() >= 20);
    });
    drop(server);
}

/// A file that the server has given a client.
struct Given {
    number: u64,
    address: u64,
    file: SealedFile,
}

impl Given {
    fn descriptor(&self) -> OwnedFd {
        self.file.descriptor().try_clone_to_owned().unwrap()
    }

    fn writable(&self) -> Result<Mapping, portcullis_memory::MappingError> {
        Mapping::of_peer(self.descriptor(), self.file.length(), true)
    }

    /// Writes the vector 7, 8 into the file, with its header first.
    fn fill(&self) {
        let memory = self.writable().unwrap();
        for (at, word) in [(0, self.address + 64), (8, 2), (64, 7), (72, 8)] {
            memory.store(at, word);
        }
        self.file.allocate().unwrap();
    }

    fn scope(&self) -> ScopeRef {
        ScopeRef { address: self.number, length: self.file.length() }
    }
}

impl Hostile {
    fn ask(&self, asked: Asked) -> (Told, Vec<OwnedFd>) {
        self.socket.say(&asked.encode()).unwrap();
        let (bytes, descriptors) = self.socket.hear_until(TOLD_BYTES, Instant::now() + LONG).unwrap();
        (Told::parse(&bytes).expect("an answer"), descriptors)
    }

    fn file(&self, bytes: u64) -> Result<Given, String> {
        match self.ask(Asked::File { bytes }) {
            (Told::File { number, address, length }, mut descriptors) => {
                let file = SealedFile::of_peer(descriptors.remove(0), length).unwrap();
                Ok(Given { number, address, file })
            }
            (Told::Refused(reason), _) => Err(reason),
            (other, _) => panic!("{other:?}"),
        }
    }

    fn say_sealed(&self, number: u64) -> Result<(), String> {
        match self.ask(Asked::Sealed { number }).0 {
            Told::Held => Ok(()),
            Told::Refused(reason) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    fn sealed(&self) -> Given {
        let given = self.file(PAGE).unwrap();
        given.fill();
        given.file.seal().unwrap();
        self.say_sealed(given.number).unwrap();
        given
    }

    fn status(&mut self, method: u32, root: u64, scope: ScopeRef) -> Status {
        self.request(method, root, scope);
        Status::read(self.reply().status).unwrap()
    }
}

#[test]
fn whoever_can_still_write_is_not_believed() {
    beside_honest(|path| {
        let mut hostile = Hostile::connect(path);
        let given = hostile.file(PAGE).unwrap();
        given.fill();
        let kept = given.writable().unwrap();
        for _ in 0..3 {
            assert!(matches!(given.file.seal(), Err(SealError::Busy)));
            let refused = hostile.say_sealed(given.number).unwrap_err();
            assert!(refused.contains("F_SEAL_WRITE"), "{refused}");
            assert_eq!(hostile.status(SUM, given.address, given.scope()), Status::NotSealed);
            kept.store(64, 9);
        }
        drop(kept);
        given.file.seal().unwrap();
        // The server does not read a file that it has not checked, sealed or not.
        assert_eq!(hostile.status(SUM, given.address, given.scope()), Status::NotSealed);
        hostile.say_sealed(given.number).unwrap();
        hostile.say_sealed(given.number).unwrap();
        hostile.request(SUM, given.address, given.scope());
        assert_eq!(hostile.reply().word, 9 + 8);
    });
}

#[test]
fn a_process_that_keeps_a_writable_mapping_keeps_the_file_from_being_sealed() {
    const CHILD: &str = "PORTCULLIS_KEEPS";
    const READY: &str = "has a mapping";
    if std::env::var_os(CHILD).is_some() {
        let file = rustix::io::dup(rustix::stdio::stdin()).unwrap();
        let memory = Mapping::of_peer(file, PAGE, true).unwrap();
        println!("{READY}");
        // The process writes until it is killed.
        let (began, mut value) = (Instant::now(), 0_u64);
        while began.elapsed() < LONG {
            value += 1;
            memory.store(128, value);
        }
        return;
    }
    beside_honest(|path| {
        let mut hostile = Hostile::connect(path);
        let given = hostile.file(PAGE).unwrap();
        given.fill();
        let name = std::thread::current().name().unwrap().to_owned();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .stdin(Stdio::from(given.descriptor()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(READY)), "the child has a mapping");
        assert!(matches!(given.file.seal(), Err(SealError::Busy)));
        let refused = hostile.say_sealed(given.number).unwrap_err();
        assert!(refused.contains("F_SEAL_WRITE"), "{refused}");
        assert_eq!(hostile.status(SUM, given.address, given.scope()), Status::NotSealed);
        child.kill().unwrap();
        child.wait().unwrap();
        given.file.seal().unwrap();
        hostile.say_sealed(given.number).unwrap();
        assert_eq!(hostile.status(SUM, given.address, given.scope()), Status::Done);
    });
}

#[test]
fn nobody_changes_a_sealed_scope_through_what_was_kept() {
    beside_honest(|path| {
        let mut hostile = Hostile::connect(path);
        let given = hostile.file(PAGE).unwrap();
        given.fill();
        let descriptor = given.descriptor();
        let number = std::os::fd::AsRawFd::as_raw_fd(&descriptor);
        let open = || std::fs::File::options().read(true).write(true).open(format!("/proc/self/fd/{number}"));
        let before = open().unwrap();
        given.file.seal().unwrap();
        hostile.say_sealed(given.number).unwrap();
        let after = open().unwrap();
        for descriptor in [descriptor, before.into(), after.into()] {
            assert_eq!(rustix::io::pwrite(&descriptor, &[1; 8], 64), Err(Errno::PERM));
            for length in [0, 8, PAGE - 1, 2 * PAGE] {
                assert_eq!(rustix::fs::ftruncate(&descriptor, length), Err(Errno::PERM));
            }
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert_eq!(rustix::fs::fallocate(&descriptor, hole, 0, PAGE), Err(Errno::PERM));
            assert!(rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, 2 * PAGE).is_err());
            assert_eq!(rustix::fs::fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
            let again = SealedFile::of_peer(descriptor, PAGE).unwrap();
            let readable = again.descriptor().try_clone_to_owned().unwrap();
            assert!(Mapping::of_file(again, true).is_err());
            // A readable mapping stays read-only: the kernel does not grant it the right to be written.
            if let Ok(readable) = Mapping::of_peer(readable, PAGE, false) {
                assert!(readable.allow_writes(0, PAGE, true).is_err());
            }
            hostile.request(SUM, given.address, given.scope());
            assert_eq!(hostile.reply().word, 7 + 8);
        }
    });
}

#[test]
fn some_of_the_seals_are_none() {
    beside_honest(|path| {
        let mut hostile = Hostile::connect(path);
        let (write, later, last) = (SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL);
        for seals in [SealFlags::empty(), later, last, write, later | last, write | later] {
            let given = hostile.file(PAGE).unwrap();
            given.fill();
            rustix::fs::fcntl_add_seals(given.file.descriptor(), seals).unwrap();
            let refused = hostile.say_sealed(given.number).unwrap_err();
            for (seal, name) in [(write, "F_SEAL_WRITE"), (last, "F_SEAL_SEAL")] {
                assert_eq!(refused.contains(name), !seals.contains(seal), "{seals:?}: {refused}");
            }
            assert_eq!(hostile.status(SUM, given.address, given.scope()), Status::NotSealed);
            hostile.socket.say(&Asked::Release { number: given.number }.encode()).unwrap();
        }
    });
}

#[test]
fn a_file_with_holes_is_not_read() {
    beside_honest(|path| {
        let hostile = Hostile::connect(path);
        // The server would have to provide memory for the holes, again for each file that the client keeps.
        let given = hostile.file(8 * PAGE).unwrap();
        given.writable().unwrap().store(5 * PAGE, 1);
        given.file.seal().unwrap();
        let refused = hostile.say_sealed(given.number).unwrap_err();
        assert!(refused.contains("holes"), "{refused}");
    });
}

#[test]
fn only_its_own_sealed_numbers_are_a_connections() {
    beside_honest(|path| {
        let (mut hostile, mut other) = (Hostile::connect(path), Hostile::connect(path));
        let (mine, others) = (hostile.sealed(), other.sealed());
        let open = hostile.file(PAGE).unwrap();
        open.fill();
        assert_ne!(mine.number, others.number);
        for number in [0, others.number, open.number, u64::MAX, 1 << 40, mine.address, open.address] {
            let scope = ScopeRef { address: number, length: PAGE };
            assert_eq!(hostile.status(SUM, mine.address, scope), Status::NotSealed, "{number:#x}");
        }
        for length in [PAGE + 1, 2 * PAGE, u64::MAX, u64::MAX - PAGE] {
            let scope = ScopeRef { address: mine.number, length };
            assert_eq!(hostile.status(SUM, mine.address, scope), Status::NoArguments, "{length:#x}");
        }
        // No byte beyond the passed ones is read, although it exists.
        let part = ScopeRef { address: mine.number, length: 72 };
        assert_eq!(hostile.status(SUM, mine.address, part), Status::WildPointer);
        for number in [others.number, u64::MAX, 0] {
            assert!(hostile.say_sealed(number).unwrap_err().contains("no one-shot scope"));
            hostile.socket.say(&Asked::Release { number }.encode()).unwrap();
        }
        for method in [COPIED, TRUSTED] {
            assert_eq!(hostile.status(method, mine.address, mine.scope()), Status::NoSealedWanted);
            assert_eq!(hostile.status(method, open.address, open.scope()), Status::NoSealedWanted);
        }
        let heap = hostile.heap.scope(PAGE).unwrap();
        let scope = ScopeRef { address: heap.address(), length: PAGE };
        assert_eq!(hostile.status(SUM, heap.address(), scope), Status::NotSealed);
        assert_eq!(hostile.status(SUM, mine.address, mine.scope()), Status::Done);
        assert_eq!(other.status(SUM, others.address, others.scope()), Status::Done);
    });
}

#[test]
fn a_connection_has_as_many_scopes_and_bytes_as_it_may() {
    beside_honest(|path| {
        let hostile = Hostile::connect(path);
        let release = |given: &Given| {
            hostile.socket.say(&Asked::Release { number: given.number }.encode()).unwrap();
        };
        for _ in 0..20 {
            let mut given: Vec<Given> = (0..OPEN_MAX).map(|_| hostile.file(PAGE).unwrap()).collect();
            assert!(hostile.file(PAGE).err().unwrap().contains("not sealed yet"));
            given.iter().for_each(release);
            given = (0..SCOPES).map(|_| hostile.sealed()).collect();
            assert!(hostile.file(PAGE).err().unwrap().contains("one_shot_scopes"));
            release(&given.remove(3));
            let large = BYTES - u64::from(SCOPES - 1) * PAGE;
            assert!(hostile.file(large + 1).err().unwrap().contains("one_shot_bytes"));
            given.push(hostile.file(large).unwrap());
            given.iter().for_each(release);
            for bytes in [BYTES + 1, u64::MAX] {
                assert!(hostile.file(bytes).err().unwrap().contains("one_shot_bytes"));
            }
        }
    });
}

#[test]
fn whoever_stops_at_any_step_of_a_scope_costs_nobody_anything() {
    beside_honest(|path| {
        for step in 0..7 {
            for _ in 0..5 {
                let mut hostile = Hostile::connect(path);
                let Some(given) = (step > 0).then(|| hostile.file(PAGE).unwrap()) else {
                    hostile.socket.say(&Asked::File { bytes: PAGE }.encode()).unwrap();
                    continue;
                };
                given.fill();
                if step > 1 {
                    given.file.seal().unwrap();
                }
                match step {
                    3 => hostile.socket.say(&Asked::Sealed { number: given.number }.encode()).unwrap(),
                    4.. => hostile.say_sealed(given.number).unwrap(),
                    _ => {}
                }
                if step > 4 {
                    hostile.request(SUM, given.address, given.scope());
                }
                if step > 5 {
                    // The scope is released while the call is under way.
                    hostile.socket.say(&Asked::Release { number: given.number }.encode()).unwrap();
                    assert!(matches!(
                        Status::read(hostile.reply().status),
                        Some(Status::Done | Status::NotSealed)
                    ));
                }
            }
        }
    });
}

#[test]
fn whoever_asks_without_end_and_hears_nothing_is_hung_up_on() {
    beside_honest(|path| {
        let hostile = Hostile::connect(path);
        let began = Instant::now();
        let asked = Asked::File { bytes: u64::MAX }.encode();
        while rustix::net::send(&hostile.socket, &asked, SendFlags::NOSIGNAL).is_ok() {
            assert!(began.elapsed() < LONG, "nobody hangs up");
        }
        // Other messages than requests about scopes are refused.
        for asked in [Asked::Mapped, Asked::Taken, Asked::Hello { heap_bytes: 0 }] {
            let hostile = Hostile::connect(path);
            hostile.socket.say(&asked.encode()).unwrap();
            let heard = hostile.socket.hear_until(TOLD_BYTES, Instant::now() + LONG);
            assert!(heard.is_err() || heard.is_ok_and(|(bytes, _)| bytes.is_empty()));
        }
    });
}

#[test]
fn pointers_to_everywhere_are_errors_or_values() {
    let seed = rand::rng().next_u64();
    println!("seed {seed}");
    beside_honest(|path| {
        let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
        let mut hostile = Hostile::connect(path);
        for _ in 0..40 {
            let given = hostile.file(PAGE).unwrap();
            let mut number = || match random.random_range(0..5) {
                0 => random.next_u64(),
                1 => random.random_range(0..600),
                2 => given.address + random.random_range(0..PAGE),
                3 => given.address + 8 * random.random_range(0..PAGE / 8),
                _ => given.address.wrapping_sub(random.random_range(0..64)),
            };
            {
                let memory = given.writable().unwrap();
                (0..PAGE / 8).for_each(|word| memory.store(8 * word, number()));
            }
            given.file.seal().unwrap();
            hostile.say_sealed(given.number).unwrap();
            for _ in 0..50 {
                let scope = ScopeRef { address: given.number, length: number() % (PAGE + 2) };
                let status = hostile.status(SUM, number(), scope);
                assert!(
                    matches!(status, Status::Done | Status::WildPointer | Status::NoArguments),
                    "{status:?}"
                );
            }
            hostile.socket.say(&Asked::Release { number: given.number }.encode()).unwrap();
        }
    });
}

/// Sends a message by hand, with descriptors.
fn send(socket: &OwnedFd, told: &Told, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let bytes = told.encode();
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Runs a server that admits one client as it should, and answers its request for a file with anything.
fn answer(listener: Listener, limits: OneShotLimits, told: impl FnOnce(u64) -> (Told, Option<SealedFile>)) {
    let socket = loop {
        match rustix::net::accept(&listener) {
            Ok(socket) => break socket,
            Err(_) => std::thread::yield_now(),
        }
    };
    let hear = || rustix::net::recv(&socket, &mut [0; 64], rustix::net::RecvFlags::empty()).unwrap();
    let admission = SocketAdmission {
        shards: ServerShards::new(1).unwrap(),
        heap_bytes: (1 << 20, 1 << 20),
        one_shots: Some(limits),
        next: 1.into(),
        shared: None,
        lending: Lending::start(u64::MAX, u64::MAX).unwrap(),
        withholds: false,
        source: None,
    };
    hear();
    let places = find_place(1 << 20, Some(limits)).unwrap();
    let shared = admission.share(places, None).unwrap();
    let place = shared.heap.place();
    let (address, length) = (place.start(), place.length);
    let offer = Told::Offer { address, length, owner: 2, one_shot_bytes: limits.addresses() };
    let page = shared.event.page().file().unwrap();
    let [ring, event] = [shared.ring.file().unwrap(), shared.event.as_fd()];
    send(&socket, &offer, &[ring, shared.heap.file(), page, event]);
    hear();
    send(&socket, &Told::Welcome, &[]);
    hear();
    let (told, file) = told(place.end());
    send(&socket, &told, &file.iter().map(SealedFile::descriptor).collect::<Vec<_>>());
    // The socket stays open until the client has closed it.
    while hear().1 > 0 {}
}

#[test]
fn what_a_hostile_server_hands_out_is_an_error() {
    let limits = OneShotLimits { scopes: 4, bytes: 16 * PAGE };
    let file = |pages: u64| Some(SealedFile::new("test", pages * PAGE).unwrap());
    let of = |address, length| Told::File { number: 1, address, length };
    type Answer<'a> = Box<dyn FnOnce(u64) -> (Told, Option<SealedFile>) + Send + 'a>;
    let wrong: [Answer<'_>; 8] = [
        Box::new(|start| (of(start - PAGE, PAGE), file(1))),
        Box::new(|start| (of(start + 8, PAGE), file(1))),
        Box::new(|start| (of(start + limits.addresses(), PAGE), file(1))),
        Box::new(|start| (of(start, 2 * PAGE), file(1))),
        Box::new(|start| (of(start, u64::MAX), file(1))),
        Box::new(|start| (of(start, PAGE), None)),
        // The file is shorter than requested.
        Box::new(|start| (of(start, PAGE), file(1))),
        Box::new(|_| (Told::Welcome, None)),
    ];
    for wrong in wrong {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hostile.sock");
        let listener = Listener::bind(&path, SocketAccess { mode: 0o600, group: None }).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || answer(listener, limits, wrong));
            let mut connection = Connection::open(&path).unwrap();
            let error = connection.one_shot(2 * PAGE).unwrap_err();
            assert!(matches!(error, OneShotError::Nonsense | OneShotError::Memory(_)), "{error:?}");
        });
    }
}

//! Peers that may break any rule.

use super::client::Mailbox;
use super::mailbox::{
    ARGUMENTS_AT, CANCELS_AT, HELLO_BYTES, HeapHalves, Hello, REPLIES_AT, REPLY_BYTES, REQUEST_BYTES, Terms,
};
use super::open::ask;
use super::sealed::{REPLY_WORDS, RETURNED_MAX, SealedRequest, Turn, open_reply, seal_reply};
use super::{AtNode, ChannelAddress};
use crate::channel::ends::{DEPTH, ReplyLine, RequestLine, Status};
use crate::channel::{CallError, Channel, Connection, ConnectionOptions, Copied, Server, Trusted, serve};
use crate::heap::{HEAP_BYTES_MIN, HeapPlace};
use crate::{Boxed, ScopeRef, Vector};
use portcullis::host::{Host, HostConfig, Listen, NetworkListen, UdpConfig};
use portcullis::{
    Access, Acquire, Allocate, BarePermission, Error, Lifetime, NodeConfig, NodeSecurity, Permission, Rights,
    Session, SessionOptions, Unchecked, connect,
};
use portcullis_memory::Memory;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const RED: &str = "red";
const BLUE: &str = "blue";
const CHANNEL: &str = "library";
/// How long a test waits for a condition before it fails. No successful test waits that long.
const LONG: Duration = Duration::from_secs(30);
const HOUR: Lifetime = Lifetime::seconds(60 * 60);

const SUM: u32 = 1;
const TWICE: u32 = 2;

/// A node for clients in shared memory and over UDP, and a server of the channel.
struct Rig {
    server: Server,
    host: Host,
    folder: tempfile::TempDir,
}

fn node(folder: &std::path::Path) -> Host {
    let listen = |tenant: &str| NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some(tenant.to_owned()),
    };
    let socket = |tenant: &str| Listen { path: folder.join(tenant), tenant: Some(tenant.to_owned()) };
    let violations = portcullis::ViolationLimits { free_max: 1 << 24, ..Default::default() };
    let config = HostConfig {
        node: NodeConfig {
            pool_bytes: 32 << 20,
            longest_lifetime: HOUR,
            violations,
            ..NodeConfig::default()
        },
        listen: [RED, BLUE].map(socket).to_vec(),
        udp: Some(UdpConfig { listen: vec![listen(RED), listen(BLUE)], ..UdpConfig::default() }),
        ..HostConfig::default()
    };
    Host::start(config).expect("a node")
}

fn sum(values: &Copied<'_, Vector<u64>>) -> Result<u64, crate::channel::Failure> {
    Ok(values.get()?.get(values.view())?.iter().fold(0, |sum, &it| sum.wrapping_add(it)))
}

fn methods(channel: Channel) -> Channel {
    channel.copied(SUM, |values: Copied<'_, Vector<u64>>, reply| {
        let sum = sum(&values)?;
        let scope = reply.scope(4096)?;
        let root = Boxed::new(scope, sum)?;
        reply.set_root(root);
        reply.set_word(sum);
        Ok(())
    })
}

impl Rig {
    fn new(change: impl FnOnce(Channel) -> Channel) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let host = node(folder.path());
        let at = AtNode::channel(CHANNEL).admit(RED).admit(BLUE);
        let channel = change(methods(serve(folder.path().join("local.sock"))));
        let server = channel.at_node(&host, at).expect("a place").start().expect("a server");
        Self { server, host, folder }
    }

    fn addresses(&self, tenant: &str) -> [ChannelAddress; 2] {
        addresses(&self.host, self.folder.path(), tenant)
    }

    fn honest(&self) -> Connection {
        let [address, _] = self.addresses(BLUE);
        open(&address).expect("a connection")
    }
}

fn addresses(host: &Host, folder: &std::path::Path, tenant: &str) -> [ChannelAddress; 2] {
    let place = usize::from(tenant != RED);
    let udp = format!("udp:{}#{CHANNEL}", host.network_addresses()[place]);
    let shm = format!("shm:{}#{CHANNEL}", folder.join(tenant).display());
    [shm, udp].map(|address| address.parse().expect("an address"))
}

fn options() -> ConnectionOptions {
    ConnectionOptions { within: LONG, ..ConnectionOptions::default() }
}

fn open(address: &ChannelAddress) -> Result<Connection, crate::channel::ConnectionError> {
    Connection::open_at(address, &SessionOptions::default(), options())
}

fn check(honest: &mut Connection) {
    let scope = honest.scope(4096).expect("room");
    let values = Vector::new(&scope, &[1_u64, 2, 3]).expect("room");
    let values = Boxed::new(&scope, values).expect("room");
    let answer = honest.call(SUM, &scope, values).expect("a sum");
    assert_eq!((answer.word(), answer.read::<u64>()), (6, Ok(6)));
}

/// A client that is restricted by nothing but its permissions.
struct Hostile {
    session: Session,
    halves: HeapHalves,
    turn: Turn,
    answered: Turn,
    reading: Permission,
    /// Permission over requests and cancelled calls. The next one is over the arguments.
    lines: Permission,
    arguments: Option<Permission>,
}

impl Hostile {
    fn attach(address: &ChannelAddress) -> Self {
        let mut session = connect(&address.node.to_string()).expect("a session");
        let mailbox = ask(&mut session, address, options(), Instant::now() + LONG).expect("a mailbox");
        let Mailbox { object, halves, .. } = mailbox;
        let (read, length) = halves.read_part();
        let ask = Acquire::object(object).lifetime(HOUR);
        let reading = session.acquire(ask.part(read, length).read_only().shared()).expect("it may");
        let (written, _) = halves.written_part();
        let lines = ask.part(written, ARGUMENTS_AT).rights(Rights::WRITE);
        let lines = session.acquire(lines).expect("it may");
        let arguments = ask.part(written + ARGUMENTS_AT, halves.arguments.length).rights(Rights::WRITE);
        let arguments = Some(session.acquire(arguments).expect("it may"));
        let (turn, answered) = (Turn::FIRST, Turn::FIRST);
        Self { session, halves, turn, answered, reading, lines, arguments }
    }

    fn write_arguments(&mut self, offset: u64, bytes: &[u8]) {
        let arguments = self.arguments.as_ref().expect("it has them");
        self.session.write(arguments, offset, bytes).expect("its own");
    }

    fn say(&mut self, request: &SealedRequest) {
        let words = request.seal(self.turn);
        self.session
            .write(&self.lines, REQUEST_BYTES * self.turn.index(), words.as_bytes())
            .expect("its own");
        self.turn = self.turn.next();
    }

    fn call(&mut self, method: u32, scope: ScopeRef, root: u64) {
        let line = RequestLine { method, call: u64::from(self.turn.0), root, scope, deadline: 0, word: 0 };
        self.say(&SealedRequest { line, returned: [0; RETURNED_MAX] });
    }

    fn hear(&mut self) -> ReplyLine {
        let since = Instant::now();
        loop {
            let mut words = [0; REPLY_WORDS];
            let at = REPLIES_AT + REPLY_BYTES * self.answered.index();
            self.session.read(&self.reading, at, words.as_mut_bytes()).expect("its own");
            if let Some((reply, _)) = open_reply(self.answered, &words) {
                self.answered = self.answered.next();
                return reply;
            }
            assert!(since.elapsed() < LONG, "no answer");
        }
    }

    /// Writes with a credential that the client had before.
    fn try_write(&mut self, stale: &Stale, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut buffer = self.session.buffer(u32::try_from(bytes.len()).expect("few")).expect("room");
        buffer.write(0, bytes);
        let address = portcullis::RemoteAddress(stale.address.0 + offset);
        let write = Access::write(Unchecked::new(address, stale.credential), 0, buffer);
        let operation = self.session.client().dangerous_access(write).expect("it begins");
        self.session.wait(operation)?.result.map(|_| ())
    }
}

/// The credential of a permission that has ended.
struct Stale {
    address: portcullis::RemoteAddress,
    credential: portcullis::Credential,
}

impl Stale {
    fn of(permission: &BarePermission) -> Self {
        Self { address: permission.address(), credential: permission.credential() }
    }
}

#[test]
fn a_write_after_the_permissions_end_is_refused_by_the_nic_and_no_method_sees_it() {
    // The method reads its arguments in the client's half of the mailbox, twice.
    let (begun, begins) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (begun, goes_on) = (Mutex::new(begun), Mutex::new(goes_on));
    let rig = Rig::new(|channel| {
        channel.trusted(TWICE, move |value: Trusted<'_, u64>, reply| {
            let first = value.read()?;
            begun.lock().expect("not poisoned").send(first).expect("somebody listens");
            goes_on.lock().expect("not poisoned").recv_timeout(LONG).expect("it goes on");
            reply.set_word(value.read()?);
            Ok(())
        })
    });
    for address in rig.addresses(RED) {
        let mut hostile = Hostile::attach(&address);
        let (place, offset) = (hostile.halves.arguments.start(), 0x5000);
        // The client gives the permission up, and keeps its credential.
        let arguments = hostile.arguments.take().expect("it has them");
        let stale = Stale::of(&arguments);
        hostile.try_write(&stale, offset, &7_u64.to_ne_bytes()).expect("it has not ended");
        hostile.session.revoke(arguments).expect("it has not ended");
        hostile.call(TWICE, ScopeRef { address: place + offset, length: 8 }, place + offset);
        assert_eq!(begins.recv_timeout(LONG), Ok(7));
        hostile.try_write(&stale, offset, &8_u64.to_ne_bytes()).expect_err("it has ended");
        go_on.send(()).expect("the method waits");
        let reply = hostile.hear();
        assert_eq!((reply.status, reply.word), (Status::Done as u32, 7), "over {address}");
        check(&mut rig.honest());
    }
}

#[test]
fn what_a_client_had_is_refused_when_its_connection_has_ended() {
    let rig = Rig::new(|channel| channel);
    let [shm, udp] = rig.addresses(RED);
    let mut both = [shm, udp].map(|address| Hostile::attach(&address));
    let stale = [0, 1].map(|at| Stale::of(&both[at].lines));
    for (hostile, live) in both.iter_mut().zip(&stale) {
        hostile.try_write(live, 0, &[0xee; 64]).expect("its own");
    }
    let Rig { server, host, folder } = rig;
    drop(server);
    for (hostile, stale) in both.iter_mut().zip(&stale) {
        hostile.try_write(stale, 0, &[0xee; 64]).expect_err("the server has ended");
    }
    drop((both, host, folder));
}

#[test]
fn lines_with_anything_in_them_harm_their_client_alone() {
    let rig = Rig::new(|channel| channel);
    let mut honest = rig.honest();
    let seed: u64 = rand::rng().random();
    let mut random = Pcg64::seed_from_u64(seed);
    eprintln!("seed {seed}");
    for address in rig.addresses(RED) {
        let mut hostile = Hostile::attach(&address);
        for round in 0..300 {
            let HeapHalves { arguments, results } = hostile.halves;
            let any = |random: &mut Pcg64| match random.random_range(0..7) {
                0 => random.random(),
                1 => arguments.start() + random.random_range(0..arguments.length + 64),
                2 => results.start() + random.random_range(0..results.length + 64),
                3 => arguments.end().wrapping_sub(random.random_range(0..9)),
                4 => u64::MAX - random.random_range(0..9),
                5 => random.random_range(0..10_000),
                _ => 0,
            };
            let scope = ScopeRef { address: any(&mut random), length: any(&mut random) };
            let method = if random.random_bool(0.8) { SUM } else { random.random() };
            let (call, root, word) = (any(&mut random), any(&mut random), any(&mut random));
            // The server would not process a call with a deadline in the past any further.
            let deadline = if random.random_bool(0.2) { any(&mut random) } else { 0 };
            let line = RequestLine { method, call, root, scope, deadline, word };
            let returned = std::array::from_fn(|_| any(&mut random));
            let garbage: Vec<u8> = (0..random.random_range(1..600)).map(|_| random.random()).collect();
            let at = random.random_range(0..arguments.length - 600);
            hostile.write_arguments(at, &garbage);
            let cancel = CANCELS_AT + 8 * random.random_range(0..u64::from(DEPTH));
            hostile.session.write(&hostile.lines, cancel, &any(&mut random).to_ne_bytes()).expect("its own");
            hostile.say(&SealedRequest { line, returned });
            let reply = hostile.hear();
            assert_eq!(reply.call, call, "seed {seed}");
            if round % 50 == 0 {
                check(&mut honest);
            }
        }
        // The lines are malformed.
        for _ in 0..50 {
            let words: [u64; 16] = std::array::from_fn(|_| random.random());
            let at = REQUEST_BYTES * hostile.turn.index();
            hostile.session.write(&hostile.lines, at, words.as_bytes()).expect("its own");
            check(&mut honest);
        }
        let before = rig.server.counters().calls;
        check(&mut honest);
        assert_eq!(rig.server.counters().calls, before + 1, "no garbage was a call");
        // The client is still served when it follows the rules.
        hostile.call(SUM, ScopeRef::default(), 0);
        assert!(Status::read(hostile.hear().status).is_some());
    }
}

/// A server that may break any rule, as far as a client sees it.
struct FalseServer {
    session: Session,
    memory: portcullis_memory::Mapping,
}

/// Answers the next hello of the tenant RED with `terms`, in an object of `bytes` bytes.
fn answer(host: &Host, terms: &[u8], bytes: u64) -> FalseServer {
    let mut session = host.connect(CHANNEL, SessionOptions::default()).expect("a session");
    let since = Instant::now();
    let hello = loop {
        if let Some(hello) = session.list_of(RED).expect("the node is there").pop() {
            break hello;
        }
        assert!(since.elapsed() < LONG, "nobody says hello");
    };
    let permission = session.acquire(Acquire::object(hello.object).read_only().shared()).expect("it may");
    let mut said = [0; HELLO_BYTES];
    session.read(&permission, 0, &mut said).expect("it may");
    assert!(Hello::parse(said).is_some());
    let permission = session.allocate(Allocate::bytes(bytes).aligned(4096).keep()).expect("memory");
    let memory = host.lent_memory().and_then(|it| it.bytes(permission.address(), bytes)).expect("its own");
    memory.zero(0, bytes);
    memory.write(0, terms);
    let object = permission.object();
    session.revoke(permission).expect("it has not ended");
    session.publish(hello.name.as_str(), object).expect("a name");
    session.share(hello.name.as_str(), RED, Rights::READ | Rights::WRITE).expect("a share");
    FalseServer { session, memory }
}

fn halves() -> HeapHalves {
    let place = |at| HeapPlace::new(0x2345_0000_0000 + at, HEAP_BYTES_MIN).expect("a place");
    HeapHalves { arguments: place(0), results: place(HEAP_BYTES_MIN) }
}

#[test]
fn terms_that_are_none_are_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = node(folder.path());
    let [address, _] = addresses(&host, folder.path(), RED);
    let good = Terms::Welcome(halves(), 0).encode();
    let mut wild = good;
    wild[24..32].copy_from_slice(&5_u64.to_ne_bytes());
    let mut foreign = good;
    foreign[0] ^= 1;
    // The last terms name more bytes than the object has.
    for (terms, bytes) in [(wild, 1 << 20), (foreign, 1 << 20), (good, 8192)] {
        let error = std::thread::scope(|scope| {
            let client = scope.spawn(|| open(&address));
            let _server = answer(&host, &terms, bytes);
            client.join().expect("no panic")
        });
        error.expect_err("no such mailbox");
    }
}

#[test]
fn replies_with_anything_in_them_are_errors_of_their_calls() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = node(folder.path());
    let [address, _] = addresses(&host, folder.path(), RED);
    let (mut connection, server) = std::thread::scope(|scope| {
        let client = scope.spawn(|| open(&address).expect("a connection"));
        let server = answer(&host, &Terms::Welcome(halves(), 0).encode(), halves().bytes());
        (client.join().expect("no panic"), server)
    });
    let HeapHalves { results, .. } = halves();
    let (mut asked, mut turn) = (Turn::FIRST, Turn::FIRST);
    let (written, _) = halves().written_part();
    let mut serve = |connection: &mut Connection, status: u32, scope: ScopeRef, root: u64| {
        let call = connection.begin(1, ScopeRef::default(), Boxed::<u64>::NULL, 0, Some(LONG)).expect("room");
        let since = Instant::now();
        let request = loop {
            connection.has_ended(call);
            let mut words = [0; 16];
            server.memory.read(written + REQUEST_BYTES * asked.index(), words.as_mut_bytes());
            if let Some(request) = SealedRequest::open(asked, &words) {
                break request;
            }
            assert!(since.elapsed() < LONG, "no request");
        };
        asked = asked.next();
        let reply = ReplyLine { status, call: request.line.call, root, scope, word: 3 };
        let words = seal_reply(turn, reply, 0);
        server.memory.write(REPLIES_AT + REPLY_BYTES * turn.index(), words.as_bytes());
        turn = turn.next();
        connection.wait(call)
    };
    let none = ScopeRef::default();
    assert_eq!(serve(&mut connection, 999, none, 0).expect_err("no status"), CallError::Nonsense);
    for scope in [
        ScopeRef { address: 5, length: 64 },
        ScopeRef { address: results.end() - 8, length: 16 },
        ScopeRef { address: results.start(), length: results.length + 1 },
    ] {
        let answer = serve(&mut connection, 0, scope, scope.address).expect("it says that it is done");
        let error = connection.look::<u64>(&answer).expect_err("no scope of the heap");
        assert_eq!(error, CallError::Nonsense, "{scope:x?}");
    }
    let scope = ScopeRef { address: results.start(), length: u64::MAX };
    let error = serve(&mut connection, 0, scope, 0).expect_err("too long");
    assert!(matches!(error, CallError::ResultTooLong { .. }), "{error}");
    let scope = ScopeRef { address: results.start() + 4096, length: 8 };
    let answer = serve(&mut connection, 0, scope, results.end() - 4).expect("it says that it is done");
    answer.read::<u64>().expect_err("it leads out of the heap");
    let failed = serve(&mut connection, Status::Failed as u32, scope, u64::MAX - 3).expect_err("it failed");
    assert_eq!(failed, CallError::Failed { number: 3, text: String::new() });
    assert_eq!(serve(&mut connection, 0, none, 0).expect("an answer").word(), 3);
    drop(server.session);
}

#[test]
fn a_hello_that_is_none_is_refused_and_those_behind_it_are_heard() {
    let rig = Rig::new(|channel| channel);
    let [address, _] = rig.addresses(RED);
    let mut session = connect(&address.node.to_string()).expect("a session");
    let says = AtomicU64::new(0);
    let mut hello = |bytes: &[u8], exclusive: bool| {
        let ask = Allocate::bytes(bytes.len() as u64).lifetime(HOUR);
        let object = session.allocate(if exclusive { ask } else { ask.shared() }).expect("memory");
        session.write(&object, 0, bytes).expect("its own");
        let name = format!("{}{}", super::mailbox::NAME, says.fetch_add(1, Ordering::Relaxed));
        session.publish(&name, object.object()).expect("a name");
        session.share(&name, CHANNEL, Rights::READ).expect("a share");
        object
    };
    // The hellos are too short, of another version, and one that its client lets no tenant read.
    let _held = [hello(&[1; 4], false), hello(&[1; 16], false), hello(&[1; 16], true)];
    check(&mut open(&address).expect("a connection"));
    check(&mut rig.honest());
}

//! The Unix socket for attaching, with its server. Any number of peers send any messages with any descriptors in any
//! order. Each peer must be answered or hung up on, and each admitted client must depart.

use crate::input::Input;
use portcullis_attach::unix::{
    AdmissionPolicy, Admitted, AttachReply, AttachRequest, Listener, Peer, PortOffer, SocketAccess,
    UnixHandshake,
};
use portcullis_attach::{Acceptor, Errand, Limits, Reason};
use portcullis_memory::{Mapping, Waker};
use portcullis_nic::EndpointSize;
use portcullis_softnic::PortLayout;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The most connections at a time.
const CONNECTIONS_MAX: usize = 4;
/// The most steps of one input.
const STEPS_MAX: u32 = 32;
/// How long anything that must happen may take.
const PATIENCE: Duration = Duration::from_secs(8);
const SIZE: EndpointSize = EndpointSize {
    chunk_queue_pairs: 0,
    data_queue_pairs: 1,
    send_depth: 2,
    control_depth: 2,
    message_bytes: 128,
    arena_bytes: 4096,
};

/// The clients that are present.
#[derive(Clone)]
struct Hall {
    waker: Waker,
    present: Arc<Mutex<HashSet<u64>>>,
    offered: Arc<AtomicU64>,
    next: Arc<AtomicU64>,
}

/// An offer that counts as made until it is dropped.
struct Offered {
    memory: Mapping,
    page: Mapping,
    event: OwnedFd,
    watched: Option<OwnedFd>,
    offered: Arc<AtomicU64>,
}

impl Drop for Offered {
    fn drop(&mut self) {
        self.offered.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PortOffer for Offered {
    fn size(&self) -> EndpointSize {
        SIZE
    }

    fn memory_bytes(&self) -> u64 {
        PortLayout::new(SIZE).bytes()
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        let [memory, page] = [&self.memory, &self.page].map(|it| it.file().expect("a port is a file"));
        let watched = self.watched.as_ref().expect("it is offered once");
        [memory, page, self.event.as_fd(), watched.as_fd()]
    }

    fn was_offered(&mut self) {
        assert!(self.watched.take().is_some(), "an offer is sent once");
    }

    fn preparation(&self) -> Errand {
        let memory = self.memory.clone();
        Box::new(move || {
            memory.seal_future_writes()?;
            Ok(memory.make_resident()?)
        })
    }

    fn give_up(&mut self) {}
}

impl AdmissionPolicy for Hall {
    type Offer = Offered;

    fn offer(&self, _: &Peer, arena_bytes: u64) -> Result<Offered, Reason> {
        if arena_bytes > 1 << 20 {
            return Err("too much".into());
        }
        let memory = Mapping::shareable("port", PortLayout::new(SIZE).bytes())?;
        let event = self.waker.new_event()?;
        let (_, watched) = portcullis_memory::ends()?;
        self.offered.fetch_add(1, Ordering::SeqCst);
        let offered = Arc::clone(&self.offered);
        Ok(Offered { memory, page: self.waker.page().clone(), event, watched: Some(watched), offered })
    }

    fn admit(&self, _: &Peer, _: &mut Offered) -> Result<Admitted, Reason> {
        let client = self.next.fetch_add(1, Ordering::SeqCst);
        if client % 5 == 4 {
            return Err("not today".into());
        }
        assert!(self.present.lock().expect("no panic").insert(client));
        Ok(Admitted { client, arena_key: 7 })
    }

    fn depart(&self, client: u64) {
        assert!(self.present.lock().expect("no panic").remove(&client), "{client} left twice, or never came");
    }
}

/// The server that all inputs use.
struct Scene {
    hall: Hall,
    path: PathBuf,
    _folder: tempfile::TempDir,
    _acceptor: Acceptor,
}

fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
    SCENE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.sock");
        let waker = Waker::new().expect("a page");
        let hall = Hall { waker, present: Arc::default(), offered: Arc::default(), next: Arc::default() };
        let listener = Listener::bind(&path, SocketAccess { mode: 0o600, group: None }).expect("a socket");
        // The test takes descriptors even where the kernel could refuse them.
        listener.dangerous_take_descriptors();
        let limits = Limits { connections_max: 64, ..Limits::UNIX };
        let acceptor = Acceptor::start::<UnixHandshake<Hall>>(vec![listener], hall.clone(), limits);
        Scene { hall, path, _folder: folder, _acceptor: acceptor.expect("an acceptor") }
    })
}

struct Connection {
    socket: OwnedFd,
    /// A message was sent: the node must answer it or hang up.
    unanswered: bool,
    over: bool,
}

impl Connection {
    fn new(scene: &Scene) -> Option<Self> {
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).ok()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&scene.path).ok()?).ok()?;
        Some(Self { socket, unanswered: false, over: false })
    }

    fn say(&mut self, bytes: &[u8], gifts: usize) {
        let null = std::fs::File::open("/dev/null").expect("a file");
        let gifts = [null.as_fd(); 4][..gifts].to_vec();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !gifts.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&gifts));
        }
        let parts = [std::io::IoSlice::new(bytes)];
        let said = rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
        self.unanswered |= said.is_ok();
    }

    /// Waits until the node answers or hangs up.
    fn hear(&mut self) {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        // The fuzzer's own alarm may interrupt a poll. The poll then starts again.
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&patience))).expect("a poll");
        assert!(ready > 0, "the node neither answers nor hangs up");
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let length = got.map_or(0, |got| got.bytes);
        let gifts = control.drain().map(|it| match it {
            RecvAncillaryMessage::ScmRights(rights) => rights.count(),
            _ => 0,
        });
        let gifts: usize = gifts.sum();
        self.unanswered = false;
        match AttachReply::parse(&bytes[..length]) {
            Some(AttachReply::Offer { size, .. }) => {
                assert_eq!(
                    (size, gifts),
                    (SIZE, 4),
                    "an offer comes with its file, a page, an event and an alarm"
                );
            }
            Some(_) => assert_eq!(gifts, 0, "nothing comes with other words"),
            None => {
                assert_eq!(length, 0, "a node's words make sense");
                self.over = true;
            }
        }
    }
}

/// Runs the steps that the bytes describe.
pub fn run(bytes: &[u8]) {
    let scene = scene();
    let mut input = Input::new(bytes);
    let mut connections: Vec<Connection> = Vec::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        step(scene, &mut input, &mut connections);
        connections.retain(|connection| !connection.over);
    }
    drop(connections);
    let until = Instant::now() + PATIENCE;
    while !scene.hall.present.lock().expect("no panic").is_empty()
        || scene.hall.offered.load(Ordering::SeqCst) > 0
    {
        assert!(Instant::now() < until, "somebody stays when all have hung up");
        std::thread::yield_now();
    }
}

fn step(scene: &Scene, input: &mut Input<'_>, connections: &mut Vec<Connection>) {
    let action = input.choice(12);
    let number = if connections.is_empty() { None } else { Some(input.choice(connections.len())) };
    let Some(number) = number.filter(|_| action > 1) else {
        if connections.len() < CONNECTIONS_MAX {
            connections.extend(Connection::new(scene));
        }
        return;
    };
    let connection = &mut connections[number];
    match action {
        2 => drop(connections.swap_remove(number)),
        3..6 => {
            let arena_bytes = input.number(&[0, 4096, 1 << 20, 1 << 40]);
            connection.say(&AttachRequest::Hello { arena_bytes }.encode(), 0);
        }
        6..8 => connection.say(&AttachRequest::Mapped.encode(), 0),
        8 => {
            let hello = AttachRequest::Hello { arena_bytes: 4096 }.encode();
            connection.say(&hello, 1 + input.choice(4));
        }
        9 => {
            let length = usize::from(input.byte());
            connection.say(input.bytes(length), input.choice(3));
        }
        _ if connection.unanswered => connection.hear(),
        _ => {}
    }
}

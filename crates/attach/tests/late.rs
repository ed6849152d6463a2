//! Clients that are stopped in the middle of an attach, and nodes that hang up: the client reports that it was too
//! late, and never that the peer is not a node.

use crate::rig;

use portcullis_attach::tls::{AttachError as TlsError, ClientSecurity, attach as attach_by_tls};
use portcullis_attach::unix::{
    AdmissionPolicy, Admitted, AttachError, AttachReply, AttachRequest, Listener, MessageSocket, Offer, Peer,
    PortOffer, SocketAccess, UnixHandshake, attach,
};
use portcullis_attach::{Acceptor, Errand, Limits, Reason};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::EndpointSize;
use rig::papers::Papers;
use rig::{HURRIED, PATIENCE, Rig, ends};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SIZE: EndpointSize = EndpointSize {
    data_queue_pairs: 1,
    chunk_queue_pairs: 0,
    send_depth: 256,
    control_depth: 16,
    message_bytes: 128,
    arena_bytes: 4096,
};

/// Offers every client the same file four times.
struct Hall(File);
struct Offered(File);

impl PortOffer for Offered {
    fn size(&self) -> EndpointSize {
        SIZE
    }

    fn memory_bytes(&self) -> u64 {
        4096
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [self.0.as_fd(); 4]
    }

    fn was_offered(&mut self) {}

    fn preparation(&self) -> Errand {
        Box::new(|| Ok(()))
    }

    fn give_up(&mut self) {}
}

impl AdmissionPolicy for Hall {
    type Offer = Offered;

    fn offer(&self, _: &Peer, _: u64) -> Result<Offered, Reason> {
        Ok(Offered(self.0.try_clone()?))
    }

    fn admit(&self, _: &Peer, _: &mut Offered) -> Result<Admitted, Reason> {
        Ok(Admitted { client: 1, arena_key: 1 })
    }

    fn depart(&self, _: u64) {}
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.sock");
    (folder, path)
}

fn node(path: &Path, limits: Limits) -> Acceptor {
    let listener = Listener::bind(path, SocketAccess { mode: 0o600, group: None }).expect("a socket");
    let hall = Hall(File::open("/dev/null").expect("it is there"));
    Acceptor::start::<UnixHandshake<Hall>>(vec![listener], hall, limits).expect("a node")
}

fn attach_at(path: &Path, within: Duration, make: impl FnOnce()) -> Result<u64, AttachError> {
    let made = |_: Offer| -> Result<(), Reason> {
        make();
        Ok(())
    };
    attach(path, 4096, within, made).map(|attached| attached.client)
}

/// Starts a node that accepts one client, and acts on it as given.
fn fake(path: &Path, act: impl FnOnce(&OwnedFd) + Send + 'static) -> JoinHandle<()> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("bound");
    rustix::net::listen(&socket, 1).expect("it listens");
    std::thread::spawn(move || act(&rustix::net::accept(&socket).expect("a client")))
}

fn send(socket: &OwnedFd, reply: &AttachReply) {
    rustix::net::send(socket, &reply.encode(), SendFlags::NOSIGNAL).expect("sent");
}

fn send_offer(socket: &OwnedFd) {
    let null = File::open("/dev/null").expect("it is there");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [null.as_fd(); 4];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let offer = AttachReply::Offer { size: SIZE, memory_bytes: 4096 }.encode();
    rustix::net::sendmsg(socket, &[IoSlice::new(&offer)], &mut control, SendFlags::NOSIGNAL).expect("sent");
}

#[test]
fn a_client_that_stands_still_before_its_hello_is_told_that_it_is_too_late() {
    let (_folder, path) = folder();
    let _node = node(&path, HURRIED);
    let client = MessageSocket::connect(&path, Instant::now() + PATIENCE).expect("a connection");
    let (told, _) = client.hear(4096).expect("it is told");
    assert_eq!(AttachReply::parse(&told), Some(AttachReply::TooLate));
    // Bytes that the client sends now have no receiver, and that is no error either.
    client.say(&AttachRequest::Hello { arena_bytes: 4096 }.encode()).expect("no error");
}

#[test]
fn a_client_that_stands_still_between_its_messages_learns_that_it_came_too_late() {
    let (_folder, path) = folder();
    let _node = node(&path, HURRIED);
    let late = attach_at(&path, PATIENCE, || sleep(HURRIED.attach_within * 3)).expect_err("too late");
    assert!(matches!(late, AttachError::TooLate { .. }), "{late}");
    assert_eq!(late.code(), ErrorCode::HungUp);
    assert!(attach_at(&path, PATIENCE, || ()).is_ok(), "the next attempt succeeds");
}

#[test]
fn a_client_whose_own_time_is_up_takes_the_answer_that_has_come_meanwhile() {
    let (_folder, path) = folder();
    let node = fake(&path, |client| {
        send_offer(client);
        send(client, &AttachReply::Welcome { client: 7, arena_key: 1 });
    });
    let within = Duration::from_millis(500);
    let attached = attach_at(&path, within, || sleep(2 * within));
    assert_eq!(attached.expect("it was welcomed in time"), 7);
    node.join().expect("a node");
}

#[test]
fn a_node_that_hangs_up_without_a_word_is_not_called_none() {
    let (_folder, path) = folder();
    let node = fake(&path, |_| ());
    let error = attach_at(&path, PATIENCE, || ()).expect_err("it hangs up");
    assert!(matches!(error, AttachError::HungUp { .. }), "{error}");
    node.join().expect("a node");
}

#[test]
fn a_client_that_attaches_while_the_node_stops_is_told_so() {
    let (_folder, path) = folder();
    let node = node(&path, Limits { attach_within: PATIENCE, ..HURRIED });
    let error = attach_at(&path, PATIENCE, || drop(node)).expect_err("the node has stopped");
    assert!(matches!(&error, AttachError::Refused(why) if why.contains("stopping")), "{error}");
}

#[test]
fn over_tcp_too_a_client_that_stands_still_learns_that_it_came_too_late() {
    let papers = Papers::new();
    let tls = ClientSecurity::Tls(papers.tenant("orange"));
    for (rig, security) in [
        (Rig::plain(HURRIED), ClientSecurity::Plain { anywhere: false }),
        (Rig::secured(&papers, HURRIED), tls),
    ] {
        let address = format!("127.0.0.1:{}", rig.address.port());
        for within in [PATIENCE, HURRIED.attach_within * 2] {
            let late = attach_by_tls(&address, &security, within, |_| {
                sleep(HURRIED.attach_within * 3);
                Ok((ends(1), ()))
            });
            let late = late.expect_err("too late");
            assert!(matches!(late, TlsError::TooLate { .. }), "{late}");
        }
        rig.assert_untouched();
    }
}

#[test]
fn a_connection_that_ends_when_a_nodes_time_is_up_means_too_late_although_nothing_was_said() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let node = std::thread::spawn(move || {
        let client = listener.accept().expect("a client");
        sleep(Limits::TCP.attach_within);
        drop(client);
    });
    let plain = ClientSecurity::Plain { anywhere: false };
    let late = attach_by_tls(&address, &plain, PATIENCE, |_| Ok((ends(1), ()))).expect_err("it hangs up");
    assert!(matches!(late, TlsError::TooLate { .. }), "{late}");
    node.join().expect("a node");
}

//! Tests of the state machine alone: any bytes, in any pieces, at any time.

use super::*;
use crate::tls::identity::NodeIdentity;
use portcullis_nic::QpAddress;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const TERMS: Terms = Terms {
    data_queue_pairs: 1,
    send_depth: 2,
    control_depth: 2,
    message_bytes: 128,
    unenforced: portcullis_nic::GuaranteeSet::NONE,
};
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
const WITHIN: Duration = Duration::from_secs(3);

/// Admits clients that bring an even number, and remembers the clients that are present.
#[derive(Default)]
struct Hall {
    present: RefCell<HashSet<u64>>,
    next: Cell<u64>,
}

impl AdmissionPolicy for Hall {
    fn offer(&self, _: &Peer) -> Result<Offer, Reason> {
        Ok(Offer::QueuePairs(TERMS))
    }

    fn admit(&self, _: &Peer, ends: Ends) -> Result<Admitted, Reason> {
        if ends.control.number % 2 == 1 {
            return Err("odd".into());
        }
        self.next.set(self.next.get() + 1);
        self.present.borrow_mut().insert(self.next.get());
        Ok(Admitted { client: self.next.get(), ends })
    }

    fn depart(&self, client: u64) {
        assert!(self.present.borrow_mut().remove(&client), "{client} is not there");
    }
}

fn visit(channel: Channel) -> ServerSide {
    let address = "127.0.0.1:1".parse().expect("an address");
    ServerSide::new(Peer { tenant: None, address, listener: 0 }, channel, *START + WITHIN)
}

fn ends(control: u32) -> Ends {
    let end = |number| QpAddress { number, port: [2; 16], lid: 0, first_packet: 0 };
    Ends { control: end(control), data: vec![end(control + 1)] }
}

fn hello() -> Vec<u8> {
    framed(&ClientSays::Hello { version: VERSION }.encode())
}

fn bring(control: u32) -> Vec<u8> {
    framed(&ClientSays::Ends(ends(control)).encode())
}

fn drain(visit: &mut ServerSide) -> Vec<u8> {
    let said = visit.outgoing().to_vec();
    visit.sent(said.len());
    said
}

#[test]
fn nobody_is_attached_before_the_welcome_has_been_sent() {
    let (mut visit, hall) = (visit(Channel::plain()), Hall::default());
    visit.hear(&hello(), &hall).expect("a hello");
    drain(&mut visit);
    visit.hear(&bring(4), &hall).expect("ends");
    assert_eq!(visit.client(), Some(1));
    while !visit.outgoing().is_empty() {
        assert!(!visit.is_attached() && visit.is_late(*START + WITHIN), "a peer that does not read is late");
        visit.sent(1);
    }
    assert!(visit.is_attached() && !visit.is_late(*START + WITHIN * 1000));
    assert!(matches!(visit.hear(&[0], &hall), Err(Breach::AfterTheEnd)));
    assert_eq!(visit.client(), Some(1), "whoever closes it knows who departs");
}

#[test]
fn a_byte_before_the_welcome_is_out_is_a_breach_too() {
    let (mut visit, hall) = (visit(Channel::plain()), Hall::default());
    visit.hear(&hello(), &hall).expect("a hello");
    visit.hear(&bring(4), &hall).expect("ends");
    assert!(matches!(visit.hear(&[0], &hall), Err(Breach::AfterTheEnd)));
}

#[test]
fn time_is_up_at_the_deadline_and_not_before() {
    let (mut visit, hall) = (visit(Channel::plain()), Hall::default());
    visit.hear(&hello()[..3], &hall).expect("a beginning");
    assert!(!visit.is_late(*START + WITHIN - Duration::from_nanos(1)));
    assert!(visit.is_late(*START + WITHIN));
}

#[test]
fn who_is_refused_is_told_and_then_hung_up_on_once() {
    let (mut visit, hall) = (visit(Channel::plain()), Hall::default());
    visit.hear(&hello(), &hall).expect("a hello");
    drain(&mut visit);
    visit.hear(&bring(5), &hall).expect("ends that are not let in");
    assert!(!visit.take_half_close(), "it has not been told yet");
    let told = drain(&mut visit);
    assert_eq!(NodeSays::parse(&told[2..]), Some(NodeSays::Refused("odd".to_owned())));
    assert!(visit.take_half_close() && !visit.take_half_close());
    visit.hear(b"but why", &hall).expect("nobody listens");
    assert!(visit.outgoing().is_empty() && visit.client().is_none());
    assert!(matches!(visit.hear(&vec![0; HEARD_MAX], &hall), Err(Breach::Volume)));
}

/// Acts as the acceptor does, without sockets: hands in pieces, sends everything, closes on a breach or when time is
/// up.
fn live_through(visit: &mut ServerSide, pieces: &[Vec<u8>], hall: &Hall) {
    for piece in pieces {
        let outcome = visit.hear(piece, hall);
        assert!(visit.outgoing().len() < 64 << 10, "a peer makes it say more than it should");
        if outcome.is_err() {
            break;
        }
        drain(visit);
        visit.take_half_close();
    }
    if let Some(client) = visit.client() {
        hall.depart(client);
    }
    assert!(hall.present.borrow().is_empty(), "somebody is left behind");
}

/// A message that may be right, wrong, or not a message.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..80);
    prop_oneof![
        bytes(),
        bytes().prop_map(|body| framed(&body)),
        Just(hello()),
        (0..8u32).prop_map(bring),
        (0..8u32, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(control, at, byte)| {
            let mut bytes = bring(control);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        }),
        (any::<prop::sample::Index>()).prop_map(|cut| hello()[..cut.index(hello().len())].to_vec()),
    ]
}

static IDENTITY: LazyLock<NodeIdentity> = LazyLock::new(|| {
    use crate::tls::certificates::{Validity, make_authority, make_node};
    let folder = tempfile::tempdir().expect("a folder");
    let validity = Validity { now: std::time::SystemTime::now(), days: 1 };
    make_authority(folder.path(), validity).expect("an authority");
    let made = make_node(folder.path(), "n", &["localhost".to_owned()], validity).expect("a node");
    NodeIdentity::load(&folder.path().join("ca.pem"), &made.certificate, &made.key).expect("an identity")
});

fn secured() -> ServerSide {
    let connection = rustls::ServerConnection::new(Arc::clone(&IDENTITY.config)).expect("a connection");
    visit(Channel::secured(connection))
}

/// The first bytes of an honest client.
static CLIENT_HELLO: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let config = rustls::ClientConfig::builder_with_provider(crate::tls::trust::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).expect("a connection");
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).expect("written");
    bytes
});

proptest! {
    #[test]
    fn whatever_is_said_nothing_panics_and_nobody_is_left_behind(
        pieces in prop::collection::vec(piece(), 0..8),
        well_begun: bool,
    ) {
        let (mut visit, hall) = (visit(Channel::plain()), Hall::default());
        if well_begun {
            visit.hear(&hello(), &hall).expect("a hello");
            drain(&mut visit);
        }
        live_through(&mut visit, &pieces, &hall);
    }

    #[test]
    fn an_attach_works_in_whatever_pieces(cuts in prop::collection::vec(1..20usize, 1..20)) {
        let (mut visit, hall) = (visit(Channel::plain()), Hall::default());
        let mut cuts = cuts.into_iter().cycle();
        for message in [hello(), bring(4)] {
            let mut rest = &message[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                visit.hear(now, &hall).expect("an honest client");
                rest = later;
            }
            drain(&mut visit);
        }
        prop_assert!(visit.is_attached());
    }

    #[test]
    fn before_a_handshake_nobody_gets_in(pieces in prop::collection::vec(piece(), 0..8)) {
        let (mut visit, hall) = (secured(), Hall::default());
        live_through(&mut visit, &pieces, &hall);
        prop_assert_eq!(hall.next.get(), 0);
    }

    #[test]
    fn a_handshake_with_mistakes_panics_nowhere(
        mistakes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        pieces in prop::collection::vec(piece(), 0..4),
    ) {
        let (mut visit, hall) = (secured(), Hall::default());
        let mut bytes = CLIENT_HELLO.clone();
        for (at, byte) in mistakes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let (now, later) = bytes.split_at(cut.index(bytes.len()));
        let pieces: Vec<_> = [now.to_vec(), later.to_vec()].into_iter().chain(pieces).collect();
        live_through(&mut visit, &pieces, &hall);
        prop_assert_eq!(hall.next.get(), 0);
    }
}

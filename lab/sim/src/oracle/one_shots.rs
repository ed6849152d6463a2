//! Checks of operations without queue pairs: each change is executed once, each nonce is used once, an unsealed
//! packet has no effect, and a stranger gets no more bytes than it has sent.

use super::permission::Wanted;
use super::{Oracle, Promise, Session, SessionId};
use crate::clock::Nanos;
use crate::over_udp::Label;
use portcullis_nic::OneShotRequest;
use portcullis_protocol::{ClientId, Moment, RegionName, Rights, Rkey};
use std::collections::{HashMap, HashSet};
use std::hash::Hasher;
use std::net::SocketAddr;
use twox_hash::XxHash64;

/// The number that stands for the queue pair of accesses that have none.
pub(crate) const ONE_SHOT: Option<u32> = Some(u32::MAX);

/// Returns a key that stands for a region, since other accesses show a key. No NIC has so many regions.
pub(crate) fn key_of(region: RegionName) -> Rkey {
    Rkey(1 << 31 | (region.index & 0xffff) << 15 | region.generation & 0x7fff)
}

/// A party that seals packets under a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Sealer {
    Client(SessionId),
    /// A life of a node, and the node's number for the client.
    Node(usize, u64, ClientId),
}

/// The traffic of an address from which a node receives datagrams.
#[derive(Clone, Copy, Default, Debug)]
struct Stranger {
    heard: u64,
    told: u64,
    is_known: bool,
}

/// The operations without queue pairs that the network has shown.
#[derive(Debug, Default)]
pub(super) struct OneShots {
    /// The client that has sealed a packet, by the packet.
    sealed: HashMap<u64, SessionId>,
    /// Nonces that were used, by key.
    nonces: HashSet<(Sealer, RegionName, u64)>,
    /// Operations by the numbers that their packets carry, and how often each change was executed.
    begun: HashMap<(SessionId, u64), (OneShotRequest, u32)>,
    /// Accesses that were refused to sessions and charged: key, first byte, length, and needed right.
    refused: HashSet<(SessionId, Rkey, u64, u64, Rights)>,
    strangers: HashMap<(usize, SocketAddr), Stranger>,
    /// How often each node has started.
    lives: HashMap<usize, u64>,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = XxHash64::with_seed(0);
    hash.write(bytes);
    hash.finish()
}

impl Oracle {
    /// Records that a session's accesses use no queue pairs.
    pub fn goes_over_udp(&mut self, session: SessionId) {
        self.operations.has_no_order(session);
    }

    /// Records that a node has started or stopped. Earlier packets have no meaning any more.
    pub(super) fn another_life(&mut self, node: usize) {
        *self.one_shots.lives.entry(node).or_default() += 1;
        self.one_shots.strangers.retain(|&(its, _), _| its != node);
        let Self { one_shots, sessions, .. } = self;
        one_shots.sealed.retain(|_, session| sessions[*session].node != node);
    }

    /// Records the number of a client's operation on the wire.
    pub fn began_on_the_wire(&mut self, session: SessionId, operation: u64, request: OneShotRequest) {
        self.one_shots.begun.insert((session, operation), (request, 0));
    }

    /// Returns the operation with this number on the wire.
    pub fn begun_on_the_wire(&self, session: SessionId, operation: u64) -> Option<OneShotRequest> {
        self.one_shots.begun.get(&(session, operation)).map(|it| it.0)
    }

    /// Records that a change was executed, which must be the first time. Returns its request.
    pub fn carried_out_on_the_wire(
        &mut self,
        session: SessionId,
        operation: u64,
        now: Nanos,
    ) -> Option<OneShotRequest> {
        let Some((request, times)) = self.one_shots.begun.get_mut(&(session, operation)) else {
            let what =
                format!("operation {operation} of session {session}, which was never begun, was carried out");
            self.fail(Promise::Proof, now, what);
            return None;
        };
        *times += 1;
        let (request, times) = (*request, *times);
        if times > 1 {
            let what = format!("{request:x?} of session {session} was carried out {times} times");
            self.fail(Promise::Once, now, what);
        }
        Some(request)
    }

    /// Records that a client has sealed a packet and sent it.
    pub fn sealed_by_client(&mut self, session: SessionId, packet: &[u8], now: Nanos) {
        self.one_shots.sealed.insert(hash(packet), session);
        self.use_nonce(Sealer::Client(session), packet, now);
    }

    /// Returns the client that has sealed exactly this packet.
    pub fn sealer(&self, packet: &[u8]) -> Option<SessionId> {
        self.one_shots.sealed.get(&hash(packet)).copied()
    }

    fn use_nonce(&mut self, sealer: Sealer, packet: &[u8], now: Nanos) {
        let Some(label) = Label::read(packet).filter(Label::is_sealed) else { return };
        if !self.one_shots.nonces.insert((sealer, label.region, label.counter)) {
            let what = format!("{sealer:?} used a nonce twice under one key: {label:x?}");
            self.fail(Promise::Nonce, now, what);
        }
    }

    /// Records a datagram that a node receives. `is_known`: one of its clients has sealed it, and sent it from this
    /// host.
    pub fn heard_from(&mut self, from: (usize, SocketAddr), bytes: usize, is_known: bool) {
        let stranger = self.one_shots.strangers.entry(from).or_default();
        stranger.heard += bytes as u64;
        stranger.is_known |= is_known;
    }

    /// Checks a datagram that a node has sent.
    pub fn sent_by_node(&mut self, to: (usize, SocketAddr), packet: &[u8], now: Nanos) {
        let (node, address) = to;
        let stranger = self.one_shots.strangers.entry(to).or_default();
        stranger.told += packet.len() as u64;
        let Stranger { heard, told, is_known } = *stranger;
        if told > heard && !is_known {
            let what =
                format!("node {node} sent {told} bytes to {address}, and has received {heard} from there");
            self.fail(Promise::Amplification, now, what);
        }
        if let Some(label) = Label::read(packet) {
            let life = self.one_shots.lives.get(&node).copied().unwrap_or(0);
            self.use_nonce(Sealer::Node(node, life, ClientId(label.client)), packet, now);
        }
    }

    /// Records that an operation that its client has sealed was refused: key, first byte, length, and needed right.
    pub fn refused_without_queue_pair(
        &mut self,
        session: SessionId,
        (key, from, length, right): (Rkey, u64, u64, Rights),
        is_charged: bool,
        (now, node_now): (Nanos, Moment),
    ) {
        let Session { node, tenant, .. } = self.sessions[session];
        let wanted = Wanted { queue_pair: (session, ONE_SHOT), key, from, length, right };
        if is_charged {
            let is_first = self.one_shots.refused.insert((session, key, from, length, right));
            let it = &mut self.sessions[session];
            it.refusals += 1;
            it.copies += u64::from(!is_first);
            self.note_refusal(session, node, &wanted);
        }
        self.tally.violations_tried += 1;
        self.tally.violations_refused += 1;
        let Some(model) = &self.nodes[node] else { return };
        if length > 0 && model.was_due(tenant, &wanted, node_now) {
            let what = format!(
                "session {session} was refused {wanted:x?} under a live permission, at {} µs of the node's time",
                node_now.0
            );
            self.fail(Promise::Service, now, what);
        }
    }
}

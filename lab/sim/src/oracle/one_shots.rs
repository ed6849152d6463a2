//! Operations without queue pairs: each change once, each nonce once, nothing for what nobody has sealed, and no more bytes
//! for strangers than they have sent.

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

/// The number that stands for a queue pair of accesses that have none.
pub(crate) const ONE_SHOT: Option<u32> = Some(u32::MAX);

/// What stands for the key of a region, where other accesses show a key. No NIC has so many regions.
pub(crate) fn key_of(region: RegionName) -> Rkey {
    Rkey(1 << 31 | (region.index & 0xffff) << 15 | region.generation & 0x7fff)
}

/// Who seals packets under a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Sealer {
    Client(SessionId),
    /// A life of a node, and the node's number for the client.
    Node(usize, u64, ClientId),
}

/// What is known of an address that a node hears from.
#[derive(Clone, Copy, Default, Debug)]
struct Stranger {
    heard: u64,
    told: u64,
    is_known: bool,
}

/// What the network has shown of such operations.
#[derive(Debug, Default)]
pub(super) struct OneShots {
    /// Who has sealed a packet, by the packet.
    sealed: HashMap<u64, SessionId>,
    /// Nonces that were used, by key.
    nonces: HashSet<(Sealer, RegionName, u64)>,
    /// Operations by the numbers that their packets carry, and how often each change was carried out.
    begun: HashMap<(SessionId, u64), (OneShotRequest, u32)>,
    /// What was refused to sessions and charged: key, first byte, length, and needed right.
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
    /// A session's accesses use no queue pairs.
    pub fn goes_over_udp(&mut self, session: SessionId) {
        self.ledger.has_no_order(session);
    }

    /// A node has started or stopped: no packet of before means anything.
    pub(super) fn another_life(&mut self, node: usize) {
        *self.one_shots.lives.entry(node).or_default() += 1;
        self.one_shots.strangers.retain(|&(its, _), _| its != node);
        let Self { one_shots, sessions, .. } = self;
        one_shots.sealed.retain(|_, session| sessions[*session].node != node);
    }

    /// A client's operation goes by this number on the wire.
    pub fn began_on_the_wire(&mut self, session: SessionId, operation: u64, request: OneShotRequest) {
        self.one_shots.begun.insert((session, operation), (request, 0));
    }

    /// The operation that goes by this number.
    pub fn begun_on_the_wire(&self, session: SessionId, operation: u64) -> Option<OneShotRequest> {
        self.one_shots.begun.get(&(session, operation)).map(|it| it.0)
    }

    /// A change was carried out. Returns which. It must be the first time.
    pub fn carried_out_on_the_wire(
        &mut self,
        session: SessionId,
        operation: u64,
        now: Nanos,
    ) -> Option<OneShotRequest> {
        let Some((request, times)) = self.one_shots.begun.get_mut(&(session, operation)) else {
            let what = format!(
                "operation {operation} of session {session}, which nobody has begun, was carried out"
            );
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

    /// A client has sealed a packet and sent it.
    pub fn sealed_by_client(&mut self, session: SessionId, packet: &[u8], now: Nanos) {
        self.one_shots.sealed.insert(hash(packet), session);
        self.use_nonce(Sealer::Client(session), packet, now);
    }

    /// The client that has sealed this very packet.
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

    /// A node takes in a datagram. `is_known`: one of its clients has sealed it, and sent it from this host.
    pub fn heard_from(&mut self, from: (usize, SocketAddr), bytes: usize, is_known: bool) {
        let stranger = self.one_shots.strangers.entry(from).or_default();
        stranger.heard += bytes as u64;
        stranger.is_known |= is_known;
    }

    /// A node has sent a datagram.
    pub fn sent_by_node(&mut self, to: (usize, SocketAddr), packet: &[u8], now: Nanos) {
        let (node, address) = to;
        let stranger = self.one_shots.strangers.entry(to).or_default();
        stranger.told += packet.len() as u64;
        let Stranger { heard, told, is_known } = *stranger;
        if told > heard && !is_known {
            let what =
                format!("node {node} sent {told} bytes to {address}, and has heard {heard} from there");
            self.fail(Promise::Amplification, now, what);
        }
        if let Some(label) = Label::read(packet) {
            let life = self.one_shots.lives.get(&node).copied().unwrap_or(0);
            self.use_nonce(Sealer::Node(node, life, ClientId(label.client)), packet, now);
        }
    }

    /// An operation that its client has sealed was refused: key, first byte, length, and needed right.
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

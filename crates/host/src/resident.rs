//! The node on its engine's thread: which clients it admits, which leave and which it evicts, and its audit records.

use crate::Run;
use crate::admin::{Order, OrderOutcome};
use crate::at_end::AtEnd;
use crate::engine::{Engine, EngineGone, Resident, TurnCounts};
use crate::fabric::{Fabric, Made};
use crate::outlet::Outlet;
#[cfg(feature = "udp")]
use crate::udp::UdpEnd;
use portcullis_attach::{AcceptorPlace, RefusedPeer};
use portcullis_memory::{Mapping, Watched, ends};
#[cfg(feature = "udp")]
use portcullis_nic::Nic;
use portcullis_nic::VerbsError;
use portcullis_node::{Node, StartError};
#[cfg(feature = "udp")]
use portcullis_onerma::NodeSocket;
#[cfg(feature = "udp")]
use portcullis_protocol::Incarnation;
use portcullis_protocol::{ClientId, Moment, Refusal};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
#[cfg(feature = "udp")]
use std::fmt::Debug;

/// The most clients that are evicted in one turn.
const SHOWN_OUT_PER_TURN: u32 = 8;

/// Why a client is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAdmitted {
    /// The node refuses clients of this tenant.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The NIC has no room for the client's end.
    #[error(transparent)]
    Nic(#[from] VerbsError),
    /// The node has ended.
    #[error(transparent)]
    Ended(#[from] EngineGone),
}

/// A node and the ends of its clients.
#[derive(Debug)]
pub(crate) struct NodeResident<F: Fabric> {
    node: Node<F::Nic>,
    ends: HashMap<ClientId, F::End>,
    /// Dropped when the node evicts a client of this process, which has no connection to close.
    eviction_alarms: HashMap<ClientId, OwnedFd>,
    /// The rest of the ends of evicted clients that have not hung up yet: freeing it may take milliseconds, for
    /// which others' operations would wait here.
    leftovers: HashMap<ClientId, F::Leftovers>,
    /// Evicted, and the acceptors are not told yet.
    evicted: Vec<ClientId>,
    /// Messages to clients without queue pairs that the acceptors do not have yet.
    replies: Vec<(u64, Vec<u8>)>,
    /// The end of operations without queue pairs, if there are such clients.
    #[cfg(feature = "udp")]
    udp: Option<UdpEnd<<F::Nic as Nic>::Memory>>,
    records: Option<Outlet>,
    acceptors: AcceptorPlace,
    /// What waits for the end of the thread.
    at_end: Vec<AtEnd>,
    /// The node takes no turns.
    is_held: bool,
}

impl<F: Fabric> NodeResident<F> {
    pub fn new(
        nic: &mut F::Nic,
        run: Run,
        records: Option<Outlet>,
        acceptors: AcceptorPlace,
    ) -> Result<Self, StartError> {
        Ok(Self {
            node: Node::new(nic, run.config, run.incarnation, run.secret)?,
            ends: HashMap::new(),
            eviction_alarms: HashMap::new(),
            leftovers: HashMap::new(),
            evicted: Vec::new(),
            replies: Vec::new(),
            #[cfg(feature = "udp")]
            udp: None,
            records,
            acceptors,
            at_end: Vec::new(),
            is_held: false,
        })
    }

    /// Keeps something for as long as the thread runs.
    pub fn keep(&mut self, at_end: AtEnd) {
        self.at_end.push(at_end);
    }

    /// Admits a client: its tenant's domain, the node's end of it, its place on the node.
    fn admit(
        &mut self,
        nic: &mut F::Nic,
        (tenant, process): (&str, Option<u32>),
        request: F::Request,
        now: Moment,
    ) -> Result<(ClientId, F::Reply), NotAdmitted> {
        let admission = self.node.admit(nic, tenant, now)?;
        let attached =
            F::make(nic, admission, request).and_then(|Made { end, queue_pairs, reply }| {
                match self.node.attach(nic, admission.tenant, process, queue_pairs, now) {
                    Ok(client) => Ok((client, end, reply)),
                    Err(error) => {
                        F::destroy(nic, end);
                        Err(error)
                    }
                }
            });
        match attached {
            Ok((client, end, reply)) => {
                self.ends.insert(client, end);
                Ok((client, reply))
            }
            Err(error) => {
                self.node.abandon(nic, admission.tenant, now);
                Err(error.into())
            }
        }
    }

    /// A client has left, or an evicted one has hung up. Returns what is left of its end, for the caller to free.
    fn depart(&mut self, nic: &mut F::Nic, client: ClientId, now: Moment) -> Option<F::Leftovers> {
        self.take_down(nic, client, now);
        self.leftovers.remove(&client)
    }

    fn take_down(&mut self, nic: &mut F::Nic, client: ClientId, now: Moment) {
        self.node.detach(nic, client, now);
        if let Some(end) = self.ends.remove(&client) {
            self.leftovers.extend(F::destroy(nic, end).map(|leftovers| (client, leftovers)));
        }
        self.eviction_alarms.remove(&client);
    }

    fn keep_eviction_alarm(&mut self, client: ClientId, alarm: OwnedFd) {
        // Of a client that has been evicted already the alarm goes at once.
        if self.ends.contains_key(&client) {
            self.eviction_alarms.insert(client, alarm);
        }
    }

    /// Evicts some of the clients that the node cannot serve any more. Returns whether there may be more.
    fn show_out_evicted(&mut self, nic: &mut F::Nic, now: Moment) -> bool {
        let mut shown_out = 0;
        while shown_out < SHOWN_OUT_PER_TURN
            && let Some(client) = self.node.poll_evicted()
        {
            self.take_down(nic, client, now);
            self.evicted.push(client);
            shown_out += 1;
        }
        // Never waits: the lock is held only for a moment, and its holder may wait for this thread. A later turn tries
        // again.
        if !self.evicted.is_empty()
            && let Some(acceptors) = self.acceptors.try_look()
        {
            for client in self.evicted.drain(..) {
                // Those that do not know it have another's clients.
                acceptors.iter().for_each(|acceptor| acceptor.evict(client.0));
            }
        }
        shown_out == SHOWN_OUT_PER_TURN
    }

    /// Hands the node's messages for clients without queue pairs to the acceptors, whose connections carry them.
    fn send_replies(&mut self) {
        while let Some((client, message)) = self.node.poll_reply() {
            self.replies.push((client.0, message.to_vec()));
        }
        // Never waits, as above.
        if !self.replies.is_empty()
            && let Some(acceptors) = self.acceptors.try_look()
        {
            let [others @ .., last] = &acceptors[..] else { return };
            others.iter().for_each(|acceptor| acceptor.say(self.replies.iter().cloned()));
            last.say(self.replies.drain(..));
        }
    }

    /// Has clients without queue pairs served.
    #[cfg(feature = "udp")]
    pub fn serve_udp(
        &mut self,
        config: &crate::UdpConfig,
        incarnation: Incarnation,
        sockets: Vec<NodeSocket>,
    ) {
        let end = crate::udp::make_end(config, incarnation, self.node.memory());
        self.node.lend_regions(Box::new(crate::udp::regions(&end)));
        self.udp = Some(UdpEnd::new(end, sockets));
    }

    #[cfg(feature = "udp")]
    fn admit_without_queue_pairs(
        &mut self,
        nic: &mut F::Nic,
        tenant: &str,
        (host, depth): ([u8; 16], u32),
        now: Moment,
    ) -> Result<ClientId, NotAdmitted> {
        let admission = self.node.admit(nic, tenant, now)?;
        let attached = self.node.attach_without_queue_pairs(admission.tenant, host, depth, now);
        if attached.is_err() {
            self.node.abandon(nic, admission.tenant, now);
        }
        Ok(attached?)
    }
}

impl<F: Fabric> Resident<F::Nic> for NodeResident<F> {
    fn turn(&mut self, nic: &mut F::Nic, now: Moment) -> bool {
        // Operations without queue pairs take the node's CPU, and none of the node's turns.
        #[cfg(feature = "udp")]
        let served = self.udp.as_mut().is_some_and(|udp| udp.turn(&mut self.node, now));
        #[cfg(not(feature = "udp"))]
        let served = false;
        if self.is_held {
            return served;
        }
        let mut worked = self.node.turn(nic, now) | served;
        self.send_replies();
        // Also without work: a client's message, which came between two turns, can be the reason.
        worked |= self.show_out_evicted(nic, now);
        if let Some(records) = &mut self.records {
            worked |= records.fill(|| self.node.poll_audit());
        }
        worked
    }

    /// The clients' connections are closed: otherwise they would wait for a node that is not there.
    fn on_panic(&self) -> Box<dyn FnOnce() + Send> {
        let acceptors = self.acceptors.clone();
        Box::new(move || acceptors.clear())
    }

    fn next_wake(&self) -> Option<Moment> {
        #[cfg(feature = "udp")]
        let udp = self.udp.as_ref().and_then(UdpEnd::next_wake);
        #[cfg(not(feature = "udp"))]
        let udp = None;
        let node = if self.is_held { None } else { self.node.next_wake() };
        node.into_iter().chain(udp).min()
    }

    fn end(&mut self, nic: &mut F::Nic, now: Moment) {
        self.node.end(nic, now);
        for (_, end) in self.ends.drain() {
            F::destroy(nic, end);
        }
        if let Some(records) = self.records.take() {
            records.drain(|| self.node.poll_audit());
        }
    }
}

/// A node as other threads use it.
impl<F: Fabric> Engine<F::Driver, NodeResident<F>> {
    /// Admits a client of the tenant called `tenant`.
    pub fn admit(
        &self,
        tenant: &str,
        process: Option<u32>,
        request: F::Request,
    ) -> Result<(ClientId, F::Reply), NotAdmitted> {
        let tenant = tenant.to_owned();
        self.call(move |nic, resident, now| resident.admit(nic, (&tenant, process), request, now))?
    }

    /// Admits a client of the tenant called `tenant` that has no queue pairs: its packets come from `host`, and it may have
    /// `depth` requests without an answer.
    #[cfg(feature = "udp")]
    pub fn admit_without_queue_pairs(
        &self,
        tenant: &str,
        host: [u8; 16],
        depth: u32,
    ) -> Result<ClientId, NotAdmitted> {
        let tenant = tenant.to_owned();
        self.call(move |nic, resident, now| {
            resident.admit_without_queue_pairs(nic, &tenant, (host, depth), now)
        })?
    }

    /// Records that an acceptor has refused a peer. Does not wait.
    pub fn report(&self, refused: RefusedPeer) {
        let RefusedPeer { peer, reason, further } = refused;
        // Where the engine has ended, nothing is recorded any more.
        let _ = self.post(move |_, resident, now| resident.node.note_refused(peer, reason, further, now));
    }

    /// A message of a client without queue pairs has come. Does not wait.
    #[cfg(feature = "udp")]
    pub fn hear(
        &self,
        client: ClientId,
        message: [u8; portcullis_protocol::MESSAGE_BYTES],
    ) -> Result<(), EngineGone> {
        self.post(move |_, resident, _| resident.node.hear(client, message))
    }

    /// A descriptor that closes when the node evicts this client of its own process, or has done so already, and when the engine ends.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(dead_code, reason = "clients of the software NIC have alarms of their port")
    )]
    pub fn eviction_alarm(&self, client: ClientId) -> std::io::Result<Watched> {
        let (alarm, watched) = ends()?;
        // When the engine is gone, the alarm goes with this call.
        let _ = self.call(move |_, resident, _| resident.keep_eviction_alarm(client, alarm));
        Ok(Watched::new(watched))
    }

    /// A client has left.
    pub fn depart(&self, client: ClientId) {
        // If the engine has ended, the client has ended with it.
        let _ = self.call(move |nic, resident, now| resident.depart(nic, client, now));
    }

    /// Stops the node's own turns, or lets them go on.
    pub fn hold_turns(&self, hold: bool) {
        // A node that has ended takes none.
        let _ = self.call(move |_, resident, _| resident.is_held = hold);
    }

    /// The memory that the node lends.
    pub fn lent_memory(&self) -> Result<Mapping, EngineGone> {
        self.call(|_, resident, _| resident.node.memory())
    }

    /// Has a worker of the chunk pool fail.
    pub fn break_worker(&self) {
        // A node that has ended has none.
        let _ = self.call(move |nic, resident, _| resident.node.dangerous_break_worker(nic));
    }

    /// Carries out an operator's order.
    pub fn carry_out(&self, order: Order) -> Result<OrderOutcome, EngineGone> {
        let turns: TurnCounts = self.turn_times();
        self.call(move |_, resident, now| order.carry_out(&mut resident.node, turns, now))
    }
}

/// Tells the node, when it is dropped, that a client in this process has gone.
pub(crate) struct Departure<F: Fabric> {
    engine: Engine<F::Driver, NodeResident<F>>,
    client: ClientId,
}

impl<F: Fabric> Departure<F> {
    pub fn new(engine: Engine<F::Driver, NodeResident<F>>, client: ClientId) -> Self {
        Self { engine, client }
    }
}

impl<F: Fabric> Drop for Departure<F> {
    fn drop(&mut self) {
        self.engine.depart(self.client);
    }
}

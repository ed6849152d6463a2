//! The node on its engine's thread: it admits clients, removes those that leave, evicts others, and passes on audit
//! records.

use crate::Run;
use crate::admin::{NodeLoad, Order, OrderOutcome, UdpLaneLoad};
use crate::at_end::AtEnd;
use crate::engine::{Engine, EngineGone, Resident, TurnCounts};
use crate::fabric::{Fabric, Made};
use crate::outlet::Outlet;
#[cfg(feature = "udp")]
use crate::udp::UdpEnd;
use portcullis_attach::{AcceptorList, RefusedPeer};
use portcullis_memory::{Mapping, Watched, ends};
use portcullis_nic::VerbsError;
#[cfg(feature = "udp")]
use portcullis_node::Regions;
use portcullis_node::{Node, StartError};
use portcullis_protocol::{ClientId, Moment, Refusal};
use rustix::fd::OwnedFd;
use std::collections::HashMap;

/// The most clients that are evicted in one turn.
const SHOWN_OUT_PER_TURN: u32 = 8;

/// Error of a client that is not admitted.
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
    /// The eviction alarms, for clients of this process, which have no connection to close. An alarm is dropped when
    /// the node evicts its client.
    eviction_alarms: HashMap<ClientId, OwnedFd>,
    /// The remains of the ends of evicted clients that have not closed their connection yet. Freeing them may take
    /// milliseconds, during which others' operations would wait here.
    leftovers: HashMap<ClientId, F::Leftovers>,
    /// Evicted clients that are not reported to the acceptors yet.
    evicted: Vec<ClientId>,
    /// Messages to clients without queue pairs that are not passed to the acceptors yet.
    replies: Vec<(u64, Vec<u8>)>,
    /// The node's end of operations without queue pairs, if there are such clients.
    #[cfg(feature = "udp")]
    udp: Option<UdpEnd>,
    records: Option<Outlet>,
    acceptors: AcceptorList,
    /// Values to drop at the end of the thread.
    at_end: Vec<AtEnd>,
    /// Whether the node takes no turns.
    is_held: bool,
}

impl<F: Fabric> NodeResident<F> {
    pub fn new(
        nic: &mut F::Nic,
        run: Run,
        records: Option<Outlet>,
        acceptors: AcceptorList,
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

    /// Keeps `at_end` for as long as the thread runs.
    pub fn keep(&mut self, at_end: AtEnd) {
        self.at_end.push(at_end);
    }

    /// Admits a client: makes its tenant's domain, the node's end of it, and its place on the node.
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

    /// Removes a client that has left, or an evicted one that has closed its connection. Returns the remains of its
    /// end, for the caller to free.
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
        // If the client has been evicted already, its alarm is dropped at once.
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
        // This thread must not wait for the lock: it is held only for a moment, but its holder may wait for this
        // thread. A later turn tries again.
        if !self.evicted.is_empty()
            && let Some(acceptors) = self.acceptors.try_look()
        {
            for client in self.evicted.drain(..) {
                // An acceptor that does not know the number has other clients.
                acceptors.iter().for_each(|acceptor| acceptor.evict(client.0));
            }
        }
        shown_out == SHOWN_OUT_PER_TURN
    }

    /// Passes the node's messages for clients without queue pairs to the acceptors, whose connections carry them.
    fn send_replies(&mut self) {
        while let Some((client, message)) = self.node.poll_reply() {
            self.replies.push((client.0, message.to_vec()));
        }
        // This must not wait either, for the reason above.
        if !self.replies.is_empty()
            && let Some(acceptors) = self.acceptors.try_look()
        {
            let [others @ .., last] = &acceptors[..] else { return };
            others.iter().for_each(|acceptor| acceptor.say(self.replies.iter().cloned()));
            last.say(self.replies.drain(..));
        }
    }

    /// Returns the memory that the node lends.
    pub fn memory(&self) -> Mapping {
        self.node.memory()
    }

    /// Starts to serve clients without queue pairs: `end` carries out their operations on the regions of a table.
    #[cfg(feature = "udp")]
    pub fn serve_udp(&mut self, regions: Box<dyn Regions>, end: UdpEnd) {
        self.node.lend_regions(regions);
        self.udp = Some(end);
    }

    /// Returns the work of each lane so far.
    fn udp_lane_loads(&self) -> Vec<UdpLaneLoad> {
        #[cfg(feature = "udp")]
        let counters = self.udp.as_ref().map_or_else(Vec::new, UdpEnd::counters);
        #[cfg(feature = "udp")]
        return counters.iter().map(UdpLaneLoad::from).collect();
        #[cfg(not(feature = "udp"))]
        Vec::new()
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
        // Operations without queue pairs use the node's CPU, but none of the node's turns.
        #[cfg(feature = "udp")]
        let served = self.udp.as_mut().is_some_and(|udp| udp.turn(&mut self.node, now));
        #[cfg(not(feature = "udp"))]
        let served = false;
        if self.is_held {
            return served;
        }
        let mut worked = self.node.turn(nic, now) | served;
        self.send_replies();
        // This runs even if the node had no work: the reason can be a client's message that arrived between two turns.
        worked |= self.show_out_evicted(nic, now);
        if let Some(records) = &mut self.records {
            worked |= records.fill(|| self.node.poll_audit());
        }
        worked
    }

    /// Closes the clients' connections: otherwise the clients would wait for a node that has ended.
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
        // The threads of lanes end first: the node waits for no operation of theirs.
        #[cfg(feature = "udp")]
        {
            self.udp = None;
        }
        self.node.end(nic, now);
        for (_, end) in self.ends.drain() {
            F::destroy(nic, end);
        }
        if let Some(records) = self.records.take() {
            records.drain(|| self.node.poll_audit());
        }
    }
}

/// The interface of a node to other threads.
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

    /// Admits a client of the tenant called `tenant` that has no queue pairs: its packets are sent from `host`, and it
    /// may have `depth` requests without an answer.
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
        // If the engine has ended, nothing is recorded any more.
        let _ = self.post(move |_, resident, now| resident.node.note_refused(peer, reason, further, now));
    }

    /// Passes a message of a client without queue pairs to the node. Does not wait.
    #[cfg(feature = "udp")]
    pub fn hear(
        &self,
        client: ClientId,
        message: [u8; portcullis_protocol::MESSAGE_BYTES],
    ) -> Result<(), EngineGone> {
        self.post(move |_, resident, _| resident.node.hear(client, message))
    }

    /// Returns a descriptor that closes when the node evicts this client of its own process (at once if it has done so
    /// already), and when the engine ends.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(dead_code, reason = "clients of the software NIC have alarms of their port")
    )]
    pub fn eviction_alarm(&self, client: ClientId) -> std::io::Result<Watched> {
        let (alarm, watched) = ends()?;
        // If the engine has ended, this call drops the alarm.
        let _ = self.call(move |_, resident, _| resident.keep_eviction_alarm(client, alarm));
        Ok(Watched::new(watched))
    }

    /// Removes a client that has left.
    pub fn depart(&self, client: ClientId) {
        // If the engine has ended, the client has ended with it.
        let _ = self.call(move |nic, resident, now| resident.depart(nic, client, now));
    }

    /// Stops the node's own turns (`true`), or resumes them.
    pub fn hold_turns(&self, hold: bool) {
        // A node that has ended takes no turns.
        let _ = self.call(move |_, resident, _| resident.is_held = hold);
    }

    /// The memory that the node lends.
    pub fn lent_memory(&self) -> Result<Mapping, EngineGone> {
        self.call(|_, resident, _| resident.memory())
    }

    /// Makes a worker of the chunk pool fail.
    pub fn break_worker(&self) {
        // A node that has ended has no workers.
        let _ = self.call(move |nic, resident, _| resident.node.dangerous_break_worker(nic));
    }

    /// Carries out an operator's order.
    pub fn carry_out(&self, order: Order) -> Result<OrderOutcome, EngineGone> {
        let turns: TurnCounts = self.turn_times();
        self.call(move |nic, resident, now| {
            let load = NodeLoad { turns, of_nic: F::thread_loads(nic), udp_lanes: resident.udp_lane_loads() };
            order.carry_out(&mut resident.node, load, now)
        })
    }
}

/// Notifies the node, when this value is dropped, that a client in this process has left.
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

//! The node on its engine's thread: the clients that it lets in, that leave and that it shows out, and its audit records.

use crate::Run;
use crate::admin::{Order, OrderOutcome};
use crate::engine::{Engine, EngineGone, Resident, TurnCounts};
use crate::fabric::{Fabric, Made};
use crate::outlet::Outlet;
use portcullis_attach::Acceptor;
use portcullis_nic::VerbsError;
use portcullis_node::{Node, StartError};
use portcullis_protocol::{ClientId, Moment, Refusal};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Clients that are shown out in one turn.
const SHOWN_OUT_PER_TURN: u32 = 8;

/// Why a client does not get in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAdmitted {
    /// The node lets nobody of the tenant in.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The NIC has no room for the client's end.
    #[error(transparent)]
    Nic(#[from] VerbsError),
    /// The node has ended.
    #[error(transparent)]
    Ended(#[from] EngineGone),
}

/// Where the acceptor is put when it is there: its clients are let in by the engine, so that one is there first.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptorPlace(Arc<Mutex<Option<Acceptor>>>);

impl AcceptorPlace {
    pub fn put(&self, acceptor: Acceptor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(acceptor);
    }

    /// Ends the acceptor and waits until it has.
    pub fn clear(&self) {
        // Out of the lock before it goes: its thread may be waiting for the engine, and the engine for the lock.
        let acceptor = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(acceptor);
    }
}

/// A node and the ends of its clients.
#[derive(Debug)]
pub(crate) struct NodeResident<F: Fabric> {
    node: Node<F::Nic>,
    ends: HashMap<ClientId, F::End>,
    /// Told to clients of this process that are shown out: they have no connection that could be closed.
    farewells: HashMap<ClientId, Arc<AtomicBool>>,
    /// What is left of the ends of clients that have been shown out and have not hung up yet: to let go of it may take
    /// milliseconds, which others' operations would wait for here.
    remains: HashMap<ClientId, F::Remains>,
    /// Shown out by the node, and still connected.
    evicted: Vec<ClientId>,
    records: Option<Outlet>,
    acceptor: AcceptorPlace,
}

impl<F: Fabric> NodeResident<F> {
    pub fn new(
        nic: &mut F::Nic,
        run: Run,
        records: Option<Outlet>,
        acceptor: AcceptorPlace,
    ) -> Result<Self, StartError> {
        Ok(Self {
            node: Node::new(nic, run.config, run.incarnation, run.secret)?,
            ends: HashMap::new(),
            farewells: HashMap::new(),
            remains: HashMap::new(),
            evicted: Vec::new(),
            records,
            acceptor,
        })
    }

    /// Lets a client in: its tenant's domain, the node's end of it, its place on the node.
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

    /// A client has left, or one that was shown out has hung up. Returns what is left of its end, for the caller's thread
    /// to let go of.
    fn depart(&mut self, nic: &mut F::Nic, client: ClientId, now: Moment) -> Option<F::Remains> {
        self.take_down(nic, client, now);
        self.remains.remove(&client)
    }

    fn take_down(&mut self, nic: &mut F::Nic, client: ClientId, now: Moment) {
        self.node.detach(nic, client, now);
        if let Some(end) = self.ends.remove(&client) {
            self.remains.extend(F::destroy(nic, end).map(|remains| (client, remains)));
        }
        if let Some(shown_out) = self.farewells.remove(&client) {
            shown_out.store(true, Ordering::Release);
        }
    }

    fn on_farewell(&mut self, client: ClientId, shown_out: Arc<AtomicBool>) {
        if self.ends.contains_key(&client) {
            self.farewells.insert(client, shown_out);
        } else {
            shown_out.store(true, Ordering::Release);
        }
    }

    /// Shows some of those out that the node cannot serve any more. Returns whether there may be more.
    fn show_out_evicted(&mut self, nic: &mut F::Nic, now: Moment) -> bool {
        let mut shown_out = 0;
        while shown_out < SHOWN_OUT_PER_TURN
            && let Some(client) = self.node.poll_evicted()
        {
            self.take_down(nic, client, now);
            self.evicted.push(client);
            shown_out += 1;
        }
        // Never waits: the lock is held for a moment only, and who holds it may be waiting for us. A later turn tries
        // again.
        if !self.evicted.is_empty()
            && let Ok(acceptor) = self.acceptor.0.try_lock()
        {
            for client in self.evicted.drain(..) {
                if let Some(acceptor) = acceptor.as_ref() {
                    acceptor.evict(client.0);
                }
            }
        }
        shown_out == SHOWN_OUT_PER_TURN
    }
}

impl<F: Fabric> Resident<F::Nic> for NodeResident<F> {
    fn turn(&mut self, nic: &mut F::Nic, now: Moment) -> bool {
        let mut worked = self.node.turn(nic, now);
        if worked || !self.evicted.is_empty() {
            worked |= self.show_out_evicted(nic, now);
        }
        if let Some(records) = &mut self.records {
            worked |= records.fill(|| self.node.poll_audit());
        }
        worked
    }

    fn next_wake(&self) -> Option<Moment> {
        self.node.next_wake()
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

/// A node as other threads know it.
impl<F: Fabric> Engine<F::Driver, NodeResident<F>> {
    /// Lets a client of the tenant called `tenant` in.
    pub fn admit(
        &self,
        tenant: &str,
        process: Option<u32>,
        request: F::Request,
    ) -> Result<(ClientId, F::Reply), NotAdmitted> {
        let tenant = tenant.to_owned();
        self.call(move |nic, resident, now| resident.admit(nic, (&tenant, process), request, now))?
    }

    /// What is set when the node shows this client of its own process out, or has done so already.
    pub fn farewell(&self, client: ClientId) -> Arc<AtomicBool> {
        let shown_out = Arc::new(AtomicBool::new(false));
        let kept = Arc::clone(&shown_out);
        // When the engine is gone, its own end says so.
        let _ = self.call(move |_, resident, _| resident.on_farewell(client, kept));
        shown_out
    }

    /// A client has left.
    pub fn depart(&self, client: ClientId) {
        // When the engine is gone, so is the client.
        let _ = self.call(move |nic, resident, now| resident.depart(nic, client, now));
    }

    /// Carries an operator's order out.
    pub fn carry_out(&self, order: Order) -> Result<OrderOutcome, EngineGone> {
        let turns: TurnCounts = self.turn_times();
        self.call(move |_, resident, now| order.carry_out(&mut resident.node, turns, now))
    }
}

/// Tells the node, when it is dropped, that a client of this process is gone.
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

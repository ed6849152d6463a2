//! Clients attach to the node and leave it.

use crate::chunks::OffloadedChunks;
use crate::ends::{Admission, ClientEnds};
use crate::enforcement::Regions;
use crate::mailbox::MessageQueue;
use crate::node::Node;
use portcullis_nic::{Nic, QpChange, RefusedAccess, SendQueue, VerbsError};
use portcullis_planted::planted;
use portcullis_protocol::{ClientId, MESSAGE_BYTES, Moment, Refusal, SealedPacket, TenantId};

impl<N: Nic> Node<N> {
    /// Admits a client of the tenant called `name`, if the tenant may have it. The tenant's domain exists after this
    /// call. The caller then calls [`Node::attach`], or [`Node::abandon`] if the client does not attach.
    ///
    /// # Errors
    /// The tenant is barred or paused, or the node or its NIC is full.
    pub fn admit(&mut self, nic: &mut N, name: &str, now: Moment) -> Result<Admission, Refusal> {
        let tenant = match self.books.admit(name, now)? {
            Some(tenant) => tenant,
            None => self.settle(nic, name).map_err(|error| match error {
                VerbsError::Exhausted { limit, .. } => Refusal::NodeFull { limit },
                _ => Refusal::NicFailed,
            })?,
        };
        self.books.hold_tenant(tenant);
        let own = self.enforcement.pd(tenant);
        let other = self.books.tenants().map(|tenant| self.enforcement.pd(tenant)).find(|&pd| pd != own);
        let pd = other.filter(|_| planted!(QueuePairInWrongDomain)).unwrap_or(own);
        let chunks = self.chunks.as_ref().map(OffloadedChunks::domain);
        let cq = self.mailbox.cq();
        // If nothing is posted on the data queue pairs, they need no send queue of their own.
        let data_sends = self.enforcement.mechanism.data_sends().unwrap_or(SendQueue { cq, depth: 1 });
        Ok(Admission { tenant, pd, cq, data_sends, chunks })
    }

    /// Enters a tenant that the node does not know yet.
    fn settle(&mut self, nic: &mut N, name: &str) -> Result<TenantId, VerbsError> {
        self.enforcement.drop_domains(nic);
        let tenant = self.books.next_tenant().ok_or(used_up("marks of tenants"))?;
        let shared_key = self.enforcement.enter_tenant(nic, tenant)?;
        self.books.enter_tenant(name, shared_key);
        Ok(tenant)
    }

    /// Undoes [`Node::admit`], for a client that does not attach.
    pub fn abandon(&mut self, nic: &mut N, tenant: TenantId, now: Moment) {
        self.books.leave_tenant(tenant, now);
        self.go_on_taking_apart(nic, now);
    }

    /// Attaches a client. `ends` are the node's ends of its queue pairs. From here on the node destroys them.
    ///
    /// # Errors
    /// The NIC refuses. The client is still admitted, and its ends are destroyed.
    pub fn attach(
        &mut self,
        nic: &mut N,
        tenant: TenantId,
        process: Option<u32>,
        ends: ClientEnds,
        now: Moment,
    ) -> Result<ClientId, VerbsError> {
        let attached = self.enter_client(nic, (tenant, process), ends.clone(), now);
        attached.inspect_err(|_| ends.destroy(nic))
    }

    fn enter_client(
        &mut self,
        nic: &mut N,
        (tenant, process): (TenantId, Option<u32>),
        ends: ClientEnds,
        now: Moment,
    ) -> Result<ClientId, VerbsError> {
        let client = self.books.next_client().ok_or(used_up("numbers of clients"))?;
        let access = self.enforcement.mechanism.access(client);
        for &qp in &ends.data {
            nic.modify_qp(qp, QpChange::Access { access })?;
        }
        let (qp, depth, message_bytes) = (ends.control, ends.control_depth, ends.message_bytes);
        let queue = MessageQueue { qp, depth, message_bytes };
        self.mailbox.attach(nic, client, self.enforcement.pd(tenant), queue)?;
        if let Some(chunks) = &mut self.chunks {
            chunks.enter(nic, client, tenant, ends.chunks.clone())?;
        }
        self.enforcement.mechanism.enter_client(tenant, &ends.data);
        self.ends.insert(client, ends);
        self.books.handle_attached(client, tenant, process, now);
        Ok(client)
    }

    /// Gives the node a table of regions. From here on clients without queue pairs can attach, and region keys enforce
    /// their permissions ([`Mechanism::RegionKey`](portcullis_protocol::Mechanism::RegionKey)). A tenant gets at most
    /// [`NodeConfig::tenant_regions_max`](crate::NodeConfig::tenant_regions_max) places of the table.
    pub fn lend_regions(&mut self, regions: Box<dyn Regions>) {
        let tenant_max = self.config().tenant_regions_max;
        self.enforcement.lend_regions(regions, tenant_max);
    }

    /// Attaches a client without queue pairs, whose packets arrive from `host`: an IPv6 address, or the IPv6 form of an
    /// IPv4 address. The client may have `depth` requests without a reply. [`Node::hear`] receives its messages.
    ///
    /// # Errors
    /// The node has no more numbers for clients. The client is still admitted.
    ///
    /// # Panics
    /// The node has no table of regions.
    pub fn attach_without_queue_pairs(
        &mut self,
        tenant: TenantId,
        host: [u8; 16],
        depth: u32,
        now: Moment,
    ) -> Result<ClientId, VerbsError> {
        let client = self.books.next_client().ok_or(used_up("numbers of clients"))?;
        let region_keys =
            self.enforcement.region_keys_mut().expect("a node that admits such clients has lent regions");
        region_keys.enter_client(client, tenant, host);
        self.mailbox.streams.insert(client, depth);
        self.ends.insert_without(client);
        self.books.handle_attached(client, tenant, None, now);
        Ok(client)
    }

    /// Receives a message of a client without queue pairs. Evicts a client with more requests under way than its terms
    /// allow.
    pub fn hear(&mut self, client: ClientId, message: [u8; MESSAGE_BYTES]) {
        if !self.mailbox.streams.hear(client, message) {
            self.books.evict(client);
        }
    }

    /// Takes out the next message to a client without queue pairs.
    pub fn poll_reply(&mut self) -> Option<(ClientId, [u8; MESSAGE_BYTES])> {
        self.mailbox.streams.poll_reply()
    }

    /// Handles the refusal of an operation on a region that its client's key had sealed. Charges the client, if at all:
    /// copies of a packet cost the client nothing.
    pub fn handle_refused_operation(
        &mut self,
        client: ClientId,
        packet: SealedPacket,
        refused: RefusedAccess,
        now: Moment,
    ) {
        self.books.handle_refused_operation(client, packet, refused, now);
        self.apply_effects();
    }

    /// Detaches a client: its queue pairs stop, and the node destroys its ends of them. The client's permissions end
    /// now, or in the next turns if there are many. Does nothing if the client is not attached.
    pub fn detach(&mut self, nic: &mut N, client: ClientId, now: Moment) {
        // After this the client can send nothing more, and the NIC can report all that it refused.
        if !self.ends.stop(nic, client) {
            return;
        }
        // Refused accesses are charged to the tenant even if the client leaves at once.
        self.take_events(nic, now);
        let ends = self.ends.remove(client);
        self.mailbox.detach(nic, client);
        match ends {
            Some(ends) => {
                // The node does not process messages that the client sent before. A device that fails to destroy the
                // queue pair has failed.
                let _ = nic.destroy_qp(ends.control);
                if let Some(chunks) = &mut self.chunks {
                    chunks.leave(nic, client, now);
                }
                self.enforcement.mechanism.forget_client(nic, client, ends.data);
            }
            None => self.enforcement.region_keys_mut().expect("it attached").forget_client(client),
        }
        self.books.handle_detached(client, now);
        self.go_on_taking_apart(nic, now);
    }
}

/// Error of a counter that has reached its end. The counter's numbers identify objects, so the node refuses instead of
/// starting again.
fn used_up(what: &'static str) -> VerbsError {
    VerbsError::Exhausted { what, limit: u64::MAX }
}

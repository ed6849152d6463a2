//! How clients attach and leave.

use crate::chunks::Chunks;
use crate::ends::{Admission, ClientEnds};
use crate::enforcement::Regions;
use crate::mailbox::MessageQueue;
use crate::node::Node;
use portcullis_nic::{Nic, QpChange, RefusedAccess, SendQueue, VerbsError};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{ClientId, MESSAGE_BYTES, Moment, Refusal, SealedPacket, TenantId};

impl<N: Nic> Node<N> {
    /// Admits a client of the tenant called `name`, if the tenant may have it: the tenant's domain exists after this.
    /// Then call [`Node::attach`], or [`Node::abandon`] if the client does not attach.
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
        let pd = other.filter(|_| planted::is(Fault::QueuePairInWrongDomain)).unwrap_or(own);
        let chunks = self.chunks.as_ref().map(Chunks::domain);
        let cq = self.mailbox.cq();
        // Where nothing is posted on them, they need no queue of their own.
        let data_sends = self.enforcement.data_sends().unwrap_or(SendQueue { cq, depth: 1 });
        Ok(Admission { tenant, pd, cq, data_sends, chunks })
    }

    /// Enters a tenant that the node does not know.
    fn settle(&mut self, nic: &mut N, name: &str) -> Result<TenantId, VerbsError> {
        self.enforcement.drop_domains(nic);
        let tenant = self.books.next_tenant().ok_or(used_up("marks of tenants"))?;
        let shared_key = self.enforcement.enter_tenant(nic, tenant)?;
        self.books.enter_tenant(name, shared_key);
        Ok(tenant)
    }

    /// Undoes [`Node::admit`]: the client does not attach.
    pub fn abandon(&mut self, nic: &mut N, tenant: TenantId, now: Moment) {
        self.books.leave_tenant(tenant, now);
        self.go_on_taking_apart(nic, now);
    }

    /// Attaches a client. `ends` are the node's ends of its queue pairs, which are the node's to destroy from here on.
    ///
    /// # Errors
    /// The NIC refuses. The client is still admitted. The ends are gone.
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
        let access = self.enforcement.client_access(client);
        for &qp in &ends.data {
            nic.modify_qp(qp, QpChange::Access { access })?;
        }
        let (qp, depth, message_bytes) = (ends.control, ends.control_depth, ends.message_bytes);
        let queue = MessageQueue { qp, depth, message_bytes };
        self.mailbox.attach(nic, client, self.enforcement.pd(tenant), queue)?;
        if let Some(chunks) = &mut self.chunks {
            chunks.enter(nic, client, tenant, ends.chunks.clone())?;
        }
        self.enforcement.enter_client(tenant, &ends.data);
        self.ends.insert(client, ends);
        self.books.handle_attached(client, tenant, process, now);
        Ok(client)
    }

    /// Gives the node a table of regions: from here on clients without queue pairs can attach, whose permissions are enforced
    /// by region keys ([`Mechanism::RegionKey`](portcullis_protocol::Mechanism::RegionKey)). A tenant gets at most
    /// [`NodeConfig::tenant_regions_max`](crate::NodeConfig::tenant_regions_max) of its places.
    pub fn lend_regions(&mut self, regions: Box<dyn Regions>) {
        let tenant_max = self.config().tenant_regions_max;
        self.enforcement.lend_regions(regions, tenant_max);
    }

    /// Attaches a client without queue pairs, whose packets come from `host`: an IPv6 address, or an IPv4 address mapped to
    /// one. It may have `depth` requests without an answer. [`Node::hear`] takes its messages in.
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
            self.enforcement.region_keys().expect("whoever admits such clients has lent regions");
        region_keys.enter_client(client, tenant, host);
        self.mailbox.streams.insert(client, depth);
        self.ends.insert_without(client);
        self.books.handle_attached(client, tenant, None, now);
        Ok(client)
    }

    /// Takes in a message of a client without queue pairs. A client with more requests under way than its terms allow is
    /// evicted.
    pub fn hear(&mut self, client: ClientId, message: [u8; MESSAGE_BYTES]) {
        if !self.mailbox.streams.hear(client, message) {
            self.books.evict(client);
        }
    }

    /// The next message to a client without queue pairs.
    pub fn poll_reply(&mut self) -> Option<(ClientId, [u8; MESSAGE_BYTES])> {
        self.mailbox.streams.poll_reply()
    }

    /// An operation on a region was refused although its client's key had sealed it: the client is charged, or
    /// nobody. Copies of a packet cost its client nothing.
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

    /// Detaches a client: its queue pairs stop, and the node's ends of them go. Its permissions end now, or in the next
    /// turns if there are many. Does nothing if the client is not attached.
    pub fn detach(&mut self, nic: &mut N, client: ClientId, now: Moment) {
        // After this nothing more comes from the client, and the NIC can report all that it refused.
        if !self.ends.stop(nic, client) {
            return;
        }
        // Refused accesses are charged to the tenant even if the client leaves at once.
        self.take_events(nic, now);
        let ends = self.ends.remove(client);
        self.mailbox.detach(nic, client);
        match ends {
            Some(ends) => {
                // What the client sent before is heard no more. A device that does not let the queue pair go has failed.
                let _ = nic.destroy_qp(ends.control);
                if let Some(chunks) = &mut self.chunks {
                    chunks.leave(nic, client, now);
                }
                self.enforcement.forget_client(nic, client, ends.data);
            }
            None => self.enforcement.region_keys().expect("it attached").forget_client(client),
        }
        self.books.handle_detached(client, now);
        self.go_on_taking_apart(nic, now);
    }
}

/// A counter is at its end. The node tells what it counts apart by number, so it refuses instead of beginning anew.
fn used_up(what: &'static str) -> VerbsError {
    VerbsError::Exhausted { what, limit: u64::MAX }
}

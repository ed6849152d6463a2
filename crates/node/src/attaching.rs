//! Clients that come and go.

use crate::ends::{Admission, ClientEnds};
use crate::mailbox::MessageQueue;
use crate::node::Node;
use portcullis_nic::{Nic, QpChange, VerbsError};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{ClientId, Moment, Refusal, TenantId};

impl<N: Nic> Node<N> {
    /// Lets a client of the tenant called `name` come, if the tenant may: the tenant's domain is there after this.
    /// Follow it with [`Node::attach`], or with [`Node::abandon`] if that cannot be.
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
        Ok(Admission { tenant, pd, cq: self.mailbox.cq() })
    }

    /// A tenant comes that the node does not know.
    fn settle(&mut self, nic: &mut N, name: &str) -> Result<TenantId, VerbsError> {
        self.enforcement.drop_domains(nic);
        let tenant = self.books.next_tenant().ok_or(used_up("marks of tenants"))?;
        let shared_key = self.enforcement.enter_tenant(nic, tenant)?;
        self.books.enter_tenant(name, shared_key);
        Ok(tenant)
    }

    /// The client that [`Node::admit`] let come does not come.
    pub fn abandon(&mut self, nic: &mut N, tenant: TenantId, now: Moment) {
        self.books.leave_tenant(tenant, now);
        self.go_on_taking_apart(nic, now);
    }

    /// Takes a client in, whose queue pairs are connected to `ends`.
    ///
    /// # Errors
    /// The NIC refuses. The client is as [`Node::admit`] left it.
    pub fn attach(
        &mut self,
        nic: &mut N,
        tenant: TenantId,
        process: Option<u32>,
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
        self.ends.insert(client, ends);
        self.books.handle_attached(client, tenant, process, now);
        Ok(client)
    }

    /// A client is gone: its queue pairs stop, and can be destroyed after this. Its permissions end now, or in the next
    /// turns where they are many. Nothing happens where the client is not attached.
    pub fn detach(&mut self, nic: &mut N, client: ClientId, now: Moment) {
        // Nothing more comes from it, and a NIC that has not told yet what it refused knows now.
        if !self.ends.stop(nic, client) {
            return;
        }
        // What it has broken is charged to its tenant, also if it leaves at once.
        self.take_events(nic, now);
        self.ends.remove(client);
        self.mailbox.detach(nic, client);
        self.enforcement.forget_client(client);
        self.books.handle_detached(client, now);
        self.go_on_taking_apart(nic, now);
    }
}

/// A counter is at its end. What it counts is told apart by number, so the node rather refuses than begins anew.
fn used_up(what: &'static str) -> VerbsError {
    VerbsError::Exhausted { what, limit: u64::MAX }
}

//! A client as its node sees it: queue pairs, messages in, messages out.

use crate::client_ends::ClientEnds;
use crate::recent_keys::RecentKeys;
use crate::violations::{Conduct, ViolationLimits};
use portcullis_nic::{
    Access, LocalSpan, Memory, Nic, Operation, PdId, QpId, ReceiveRequest, Region, RemoteAddress, VerbsError,
    WorkRequest,
};
use portcullis_protocol::{ClientId, MESSAGE_BYTES, Reply};
use std::collections::VecDeque;

/// Replies that may wait for a client that takes none, in units of its control queue's depth. Beyond that the client
/// does not keep its side, and is let go.
const BACKLOG_DEPTHS_MAX: usize = 4;

/// Whose a queue pair is, and which of its data queue pairs, by the NIC's number. NICs number theirs from zero, so a
/// table does: each message is looked up here.
#[derive(Debug, Default)]
pub(crate) struct QpOwners {
    owners: Vec<Option<(u64, Option<u32>)>>,
}

impl QpOwners {
    pub fn insert(&mut self, qp: QpId, owner: (u64, Option<u32>)) {
        let index = qp.0 as usize;
        if self.owners.len() <= index {
            self.owners.resize(index + 1, None);
        }
        self.owners[index] = Some(owner);
    }

    pub fn remove(&mut self, qp: QpId) {
        if let Some(owner) = self.owners.get_mut(qp.0 as usize) {
            *owner = None;
        }
    }

    pub fn get(&self, qp: QpId) -> Option<(u64, Option<u32>)> {
        *self.owners.get(qp.0 as usize)?
    }
}

/// What a client holds: counted along, so that looking at all clients does not take a walk over all permissions.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Holdings {
    pub permissions: u64,
    pub bytes: u64,
}

impl Holdings {
    /// A permission over an object of so many bytes began.
    pub fn add(&mut self, bytes: u64) {
        self.permissions += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// One ended.
    pub fn take(&mut self, bytes: u64) {
        self.permissions = self.permissions.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// An attached client.
#[derive(Debug)]
pub(crate) struct Client<M> {
    pub id: ClientId,
    pub tenant: u32,
    pub process: Option<u32>,
    pub ends: ClientEnds,
    /// The first of its permissions.
    pub first: u32,
    /// How many they are, and the bytes of their objects.
    pub held: Holdings,
    /// What its data queue pairs let it do, where that is what enforces permissions: holders of each right.
    pub rights_held: [u32; 3],
    pub conduct: Conduct,
    /// Keys that it held until a moment ago.
    pub recent: RecentKeys,
    messages: M,
    region: Region,
    outgoing: VecDeque<(Reply, Vec<u8>)>,
    /// Room for the requests of one run, kept from run to run.
    requests: Vec<WorkRequest>,
    sent: u32,
    finished: u32,
    /// In the list of clients with replies to send.
    pub queued: bool,
    /// It broke the rules of its control queue pair, or cannot be reached on it.
    pub lost: bool,
}

impl<M: Memory> Client<M> {
    /// Takes a client in: memory for its messages, and receives for them.
    pub fn new<N: Nic<Memory = M>>(
        nic: &mut N,
        (id, tenant, process): (ClientId, u32, Option<u32>),
        pd: PdId,
        ends: ClientEnds,
        limits: ViolationLimits,
    ) -> Result<Self, VerbsError> {
        let bytes = 2 * u64::from(ends.control_depth) * u64::from(ends.message_bytes);
        let messages = nic.allocate_memory(bytes)?;
        let region = nic.register_region(pd, &messages, 0..bytes, RemoteAddress(0), Access::LOCAL_WRITE)?;
        let client = Self {
            id,
            tenant,
            process,
            first: crate::permissions::NONE,
            held: Holdings::default(),
            rights_held: [0; 3],
            conduct: Conduct::new(limits),
            recent: RecentKeys::default(),
            messages,
            region,
            outgoing: VecDeque::new(),
            requests: Vec::new(),
            sent: 0,
            finished: 0,
            queued: false,
            lost: false,
            ends,
        };
        for slot in 0..client.ends.control_depth {
            if let Err(error) = client.post_receive(nic, slot) {
                let _ = nic.deregister_region(region.id);
                return Err(error);
            }
        }
        Ok(client)
    }

    /// Lets go of what it holds on the NIC, but for its queue pairs, which are not the node's.
    pub fn end(&self, nic: &mut impl Nic) {
        let _ = nic.deregister_region(self.region.id);
    }

    fn span(&self, slot: u32) -> LocalSpan {
        let length = self.ends.message_bytes;
        LocalSpan { address: u64::from(slot) * u64::from(length), length, lkey: self.region.lkey }
    }

    /// Posts the receive of slot `slot` again.
    pub fn post_receive(&self, nic: &mut impl Nic, slot: u32) -> Result<(), VerbsError> {
        let request = ReceiveRequest { id: u64::from(slot), local: self.span(slot) };
        nic.post_receive(self.ends.control, &[request]).map(|_| ())
    }

    /// The message in receive slot `slot`, read once: who sent it has no more part in it.
    pub fn message(&self, slot: u32) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        self.messages.read(self.span(slot).address, &mut bytes);
        bytes
    }

    /// How much data a message of this client's can carry.
    pub fn data_bytes_max(&self) -> usize {
        (self.ends.message_bytes as usize).saturating_sub(MESSAGE_BYTES)
    }

    /// The data behind the message in receive slot `slot`: as much as came, at most `length` bytes.
    pub fn data(&self, slot: u32, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length.min(self.data_bytes_max())];
        self.messages.read(self.span(slot).address + MESSAGE_BYTES as u64, &mut bytes);
        bytes
    }

    /// A reply is to go out, with data behind it. Returns whether the client keeps up.
    pub fn reply(&mut self, reply: Reply, data: Vec<u8>) -> bool {
        self.outgoing.push_back((reply, data));
        self.outgoing.len() <= BACKLOG_DEPTHS_MAX * self.ends.control_depth as usize
    }

    /// Replies up to number `sent` have gone.
    pub fn finish(&mut self, sent: u32) {
        self.finished = sent;
    }

    /// Sends what fits. Returns whether something is left.
    pub fn send(&mut self, nic: &mut impl Nic) -> Result<bool, VerbsError> {
        let depth = self.ends.control_depth;
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear();
        while self.sent.wrapping_sub(self.finished) < depth {
            let Some((reply, data)) = self.outgoing.pop_front() else { break };
            let slot = depth + self.sent % depth;
            let mut local = self.span(slot);
            self.messages.write(local.address, &reply.encode());
            if !data.is_empty() {
                self.messages.write(local.address + MESSAGE_BYTES as u64, &data);
            }
            local.length = u32::try_from(MESSAGE_BYTES + data.len()).unwrap_or(local.length);
            self.sent = self.sent.wrapping_add(1);
            // One completion a run is enough to know which slots are free.
            let signalled = self.outgoing.is_empty() || self.sent.is_multiple_of((depth / 2).max(1));
            requests.push(WorkRequest {
                id: u64::from(self.sent),
                signalled,
                operation: Operation::Send { local },
            });
        }
        if let Some(last) = requests.last_mut() {
            last.signalled = true;
        }
        let posted = if requests.is_empty() { Ok(0) } else { nic.post_send(self.ends.control, &requests) };
        self.requests = requests;
        posted?;
        Ok(!self.outgoing.is_empty())
    }
}

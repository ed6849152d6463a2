//! The node's own end of a worker's message queue pair: it sends requests and receives the replies.

use crate::chain::REQUEST_BYTES;
use crate::message::{Handle, Reply, reply_bytes};
use crate::objects::Objects;
use portcullis_nic::{
    Access, Completion, CompletionKind, CqId, LocalSpan, Memory, Nic, Operation, PdId, QpAddress,
    QpAttributes, QpId, ReceiveRequest, Region, RemoteAddress, Status, VerbsError, WorkRequest, connect_qp,
};

/// Offset of the reply. The request is at offset zero, before it.
const REPLY_AT: u64 = 64;
const DEPTH: u32 = 4;

/// Sends requests to one worker, one after another.
#[derive(Clone, Debug)]
pub(crate) struct Asker<M, const GROUP: usize> {
    qp: QpId,
    cq: CqId,
    memory: M,
    region: Region,
    objects: Objects,
}

/// Result of [`Asker::answer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer<const GROUP: usize> {
    /// No reply has arrived yet.
    Pending,
    /// The worker's reply.
    Reply(Reply<GROUP>),
    /// The connection is broken.
    Broken,
}

impl<M: Memory, const GROUP: usize> Asker<M, GROUP> {
    /// Creates the queue pair in a domain, not connected yet.
    ///
    /// # Errors
    /// A limit of the NIC is reached. No object is left behind.
    pub fn new<N: Nic<Memory = M>>(nic: &mut N, pd: PdId) -> Result<Self, VerbsError> {
        let mut objects = Objects::default();
        let made = Self::make(nic, pd, &mut objects);
        match made {
            Ok((qp, cq, memory, region)) => Ok(Self { qp, cq, memory, region, objects }),
            Err(error) => {
                let _ = objects.destroy(nic);
                Err(error)
            }
        }
    }

    fn make<N: Nic<Memory = M>>(
        nic: &mut N,
        pd: PdId,
        objects: &mut Objects,
    ) -> Result<(QpId, CqId, M, Region), VerbsError> {
        let bytes = REPLY_AT + reply_bytes::<GROUP>();
        let memory = nic.allocate_memory(bytes)?;
        let region = nic.register_region(pd, &memory, 0..bytes, RemoteAddress(0), Access::LOCAL_WRITE);
        let region = objects.region(region)?;
        let cq = objects.cq(nic.create_cq(2 * DEPTH))?;
        let attributes =
            QpAttributes { send_cq: cq, receive_cq: cq, send_depth: DEPTH, receive_depth: DEPTH };
        let qp = objects.queue_pair(nic.create_qp(pd, attributes))?;
        Ok((qp, cq, memory, region))
    }

    pub fn queue_pair(&self) -> QpId {
        self.qp
    }

    pub fn address<N: Nic>(&self, nic: &N) -> Result<QpAddress, VerbsError> {
        nic.qp_address(self.qp)
    }

    pub fn connect<N: Nic>(&self, nic: &mut N, peer: QpAddress) -> Result<(), VerbsError> {
        connect_qp(nic, self.qp, peer)
    }

    /// Sends a request. The reply to the previous request must have arrived.
    pub fn ask<N: Nic>(&self, nic: &mut N, handle: Handle) -> Result<(), VerbsError> {
        let local = |address, bytes: u64| LocalSpan {
            address,
            length: u32::try_from(bytes).expect("messages are short"),
            lkey: self.region.lkey,
        };
        self.memory.write(0, &handle.to_request());
        let receive = ReceiveRequest { id: 0, local: local(REPLY_AT, reply_bytes::<GROUP>()) };
        let posted = nic.post_receive(self.qp, &[receive])?;
        // The completion of the SEND frees its slot in the send queue.
        let send = Operation::Send { local: local(0, REQUEST_BYTES) };
        let sent = nic.post_send(self.qp, &[WorkRequest { id: 0, signalled: true, operation: send }])?;
        assert_eq!((posted, sent), (1, 1), "one request is under way at a time");
        Ok(())
    }

    /// Polls for the reply.
    pub fn answer<N: Nic>(&self, nic: &mut N) -> Result<Answer<GROUP>, VerbsError> {
        let mut completions = Vec::new();
        nic.poll(self.cq, DEPTH as usize, &mut completions)?;
        if completions.iter().any(|completion| completion.status != Status::Success) {
            return Ok(Answer::Broken);
        }
        let is_reply = |it: &Completion| matches!(it.kind, CompletionKind::Receive { .. });
        if !completions.iter().any(is_reply) {
            return Ok(Answer::Pending);
        }
        let mut bytes = vec![0; usize::try_from(reply_bytes::<GROUP>()).unwrap_or(0)];
        self.memory.read(REPLY_AT, &mut bytes);
        Ok(Reply::from_bytes(&bytes).map_or(Answer::Broken, Answer::Reply))
    }

    pub fn end<N: Nic>(self, nic: &mut N) -> Result<(), VerbsError> {
        self.objects.destroy(nic)
    }
}

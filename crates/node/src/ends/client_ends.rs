//! The node's ends of a client's queue pairs.

use crate::chunks::ChunkEnds;
use portcullis_nic::{
    CqId, EndpointSize, Nic, PdId, QpAddress, QpAttributes, QpId, SendQueue, VerbsError, connect_qp,
};
use portcullis_protocol::TenantId;

/// The NIC's objects that a tenant's clients need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The tenant.
    pub tenant: TenantId,
    /// The tenant's protection domain, for the node's ends of its clients' queue pairs.
    pub pd: PdId,
    /// The completion queue of the node's ends, except for `data_sends`.
    pub cq: CqId,
    /// The send queues of the data queue pairs.
    pub data_sends: SendQueue,
    /// The protection domain of the node's ends of the client's queue pairs for chunks, if the node has chunks.
    pub chunks: Option<PdId>,
}

/// The node's ends of a client's queue pairs, connected and in the state RTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEnds {
    /// The queue pair for control messages.
    pub control: QpId,
    /// The queue pairs for one-sided operations, by the client's numbers for them.
    pub data: Vec<QpId>,
    /// The addresses of the client's ends of `data`. Both ends increase their first packet number by one with every
    /// rebuild, so that no packet of the old connection is taken for one of the new.
    pub peers: Vec<QpAddress>,
    /// The queue pairs for chunks, if the node's NIC hands them out.
    pub chunks: ChunkEnds,
    /// Number of requests that the control queue pair holds, and of receives.
    pub control_depth: u32,
    /// Number of bytes of a control message.
    pub message_bytes: u32,
}

impl ClientEnds {
    /// Makes ends for a client that [`Node::admit`](crate::Node::admit) admitted, and connects them to the client's own
    /// ends at these addresses. Returns them with their addresses: the control queue pair's and the data queue pairs'.
    /// The ends for accesses to chunks are the last in `data`. The function does not know the queue pairs on which the
    /// client requests chunks.
    ///
    /// # Errors
    /// `data` has another number of addresses than `size` requires, the node's NIC hands out no chunks, or it refuses.
    /// Nothing is left behind on the NIC.
    pub fn connect(
        nic: &mut impl Nic,
        admission: Admission,
        size: &EndpointSize,
        control: QpAddress,
        data: &[QpAddress],
    ) -> Result<(Self, QpAddress, Vec<QpAddress>), VerbsError> {
        let EndpointSize { data_queue_pairs, chunk_queue_pairs, .. } = *size;
        if u32::try_from(data.len()) != Ok(data_queue_pairs.saturating_add(chunk_queue_pairs)) {
            return Err(VerbsError::Invalid("each data queue pair has one peer"));
        }
        let of_chunks = match admission.chunks {
            Some(pd) => Admission { pd, ..admission },
            None if chunk_queue_pairs > 0 => {
                return Err(VerbsError::Unsupported("chunks that the NIC hands out"));
            }
            None => admission,
        };
        let depth = size.control_depth;
        let (data, chunks) = data.split_at(data_queue_pairs as usize);
        let sends = SendQueue { cq: admission.cq, depth };
        let (own, at) = make_end(nic, admission, (sends, depth), control)?;
        let mut ends = Self {
            control: own,
            data: Vec::with_capacity(data.len()),
            peers: data.to_vec(),
            chunks: ChunkEnds::default(),
            control_depth: depth,
            message_bytes: size.message_bytes,
        };
        let mut addresses = Vec::with_capacity(data.len());
        for &peer in data {
            let made = make_end(nic, admission, (admission.data_sends, 0), peer);
            let (qp, address) = made.inspect_err(|_| ends.destroy(nic))?;
            ends.data.push(qp);
            addresses.push(address);
        }
        // The node sends nothing on these queue pairs: chains bind their windows.
        let silent = SendQueue { cq: admission.cq, depth: 1 };
        for &peer in chunks {
            let made = make_end(nic, of_chunks, (silent, 0), peer);
            let (qp, address) = made.inspect_err(|_| ends.destroy(nic))?;
            ends.chunks.access.push((qp, peer));
            addresses.push(address);
        }
        Ok((ends, at, addresses))
    }

    /// Iterates over all queue pairs, including the control queue pair.
    pub(crate) fn all(&self) -> impl Iterator<Item = QpId> + '_ {
        let chunks = self.chunks.access.iter().map(|&(qp, _)| qp);
        self.data.iter().copied().chain(chunks).chain([self.control])
    }

    /// Returns the queue pair with the client's number for it. Queue pairs for chunks follow the others.
    pub(crate) fn numbered(&self, number: u32) -> Option<QpId> {
        let number = number as usize;
        let chunk = || self.chunks.access.get(number.checked_sub(self.data.len())?).map(|&(qp, _)| qp);
        self.data.get(number).copied().or_else(chunk)
    }

    /// Returns the address of the client's end of that queue pair.
    pub(crate) fn peer(&mut self, number: u32) -> &mut QpAddress {
        let number = number as usize;
        match number.checked_sub(self.data.len()) {
            Some(place) => &mut self.chunks.access[place].1,
            None => &mut self.peers[number],
        }
    }

    /// Removes the ends of a client that was not attached from the NIC. From [`Node::attach`](crate::Node::attach) on
    /// the node owns the ends.
    pub fn destroy(&self, nic: &mut impl Nic) {
        for qp in self.all() {
            let _ = nic.destroy_qp(qp);
        }
    }
}

fn make_end(
    nic: &mut impl Nic,
    admission: Admission,
    (sends, receive_depth): (SendQueue, u32),
    peer: QpAddress,
) -> Result<(QpId, QpAddress), VerbsError> {
    let SendQueue { cq: send_cq, depth: send_depth } = sends;
    let attributes = QpAttributes { send_cq, receive_cq: admission.cq, send_depth, receive_depth };
    let qp = nic.create_qp(admission.pd, attributes)?;
    let connected = connect_qp(nic, qp, peer).and_then(|()| nic.qp_address(qp));
    let address = connected.inspect_err(|_| {
        let _ = nic.destroy_qp(qp);
    })?;
    Ok((qp, address))
}

//! The node's ends of a client's queue pairs.

use portcullis_nic::{CqId, EndpointSize, Nic, PdId, QpAddress, QpAttributes, QpId, VerbsError, connect_qp};
use portcullis_protocol::TenantId;

/// What a tenant's clients need on the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The tenant.
    pub tenant: TenantId,
    /// Its protection domain: the node's ends of its clients' queue pairs belong there.
    pub pd: PdId,
    /// Where those queue pairs complete.
    pub cq: CqId,
}

/// The node's ends of a client's queue pairs, connected and in RTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEnds {
    /// For control messages.
    pub control: QpId,
    /// For one-sided operations, by the client's numbers for them.
    pub data: Vec<QpId>,
    /// Where the client's ends of those are. The first packet number of each moves on by one with every rebuild, at
    /// both ends, so that nothing of the old connection is taken for the new one's.
    pub peers: Vec<QpAddress>,
    /// Requests, and receives, that the control queue pair holds.
    pub control_depth: u32,
    /// Bytes of a control message.
    pub message_bytes: u32,
}

impl ClientEnds {
    /// Makes ends for a client that [`Node::admit`](crate::Node::admit) let come, connects them to the client's own,
    /// which are at these addresses, and says where they are: the control queue pair's, and the data queue pairs'.
    ///
    /// # Errors
    /// These are the addresses of more or fewer data queue pairs than `size` says, or the NIC refuses. Nothing is left
    /// behind on it.
    pub fn connect(
        nic: &mut impl Nic,
        admission: Admission,
        size: &EndpointSize,
        control: QpAddress,
        data: &[QpAddress],
    ) -> Result<(Self, QpAddress, Vec<QpAddress>), VerbsError> {
        if u32::try_from(data.len()) != Ok(size.data_queue_pairs) {
            return Err(VerbsError::Invalid("each data queue pair has one peer"));
        }
        let depth = size.control_depth;
        let (own, at) = make_end(nic, admission, (depth, depth), control)?;
        let mut ends = Self {
            control: own,
            data: Vec::with_capacity(data.len()),
            peers: data.to_vec(),
            control_depth: depth,
            message_bytes: size.message_bytes,
        };
        let mut addresses = Vec::with_capacity(data.len());
        for &peer in data {
            // The node sends nothing here.
            let (qp, address) = make_end(nic, admission, (1, 0), peer).inspect_err(|_| ends.destroy(nic))?;
            ends.data.push(qp);
            addresses.push(address);
        }
        Ok((ends, at, addresses))
    }

    /// Takes them off the NIC. A client that is attached through them is detached first.
    pub fn destroy(&self, nic: &mut impl Nic) {
        for &qp in self.data.iter().chain([&self.control]) {
            let _ = nic.destroy_qp(qp);
        }
    }
}

fn make_end(
    nic: &mut impl Nic,
    admission: Admission,
    (send_depth, receive_depth): (u32, u32),
    peer: QpAddress,
) -> Result<(QpId, QpAddress), VerbsError> {
    let (pd, cq) = (admission.pd, admission.cq);
    let qp = nic.create_qp(pd, QpAttributes { send_cq: cq, receive_cq: cq, send_depth, receive_depth })?;
    let connected = connect_qp(nic, qp, peer).and_then(|()| nic.qp_address(qp));
    let address = connected.inspect_err(|_| {
        let _ = nic.destroy_qp(qp);
    })?;
    Ok((qp, address))
}

//! Checks that a peer can be reached, before the node's thread has anything to do with the peer.
//!
//! The kernel resolves a peer's address when a queue pair is connected to it, and waits a second for an answer that may
//! never arrive. A client may name any address. So the connection is tried here first, on the acceptor's thread, with a
//! queue pair that is thrown away. After that the kernel knows the address, and the node's thread does not wait.

use portcullis_attach::tls::Ends;
use portcullis_ibverbs::IbNic;
use portcullis_nic::{Access, CqId, Nic, PdId, QpAddress, QpAttributes, QpChange, VerbsError};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// A peer's port does not answer.
#[derive(Debug, thiserror::Error)]
#[error("your RDMA port cannot be reached from this node: {0}")]
pub(super) struct Unreachable(VerbsError);

/// A second NIC on the node's device.
#[derive(Debug)]
pub(super) struct PeerProbe {
    nic: Mutex<IbNic>,
    pd: PdId,
    cq: CqId,
}

impl PeerProbe {
    pub fn new(mut nic: IbNic) -> Result<Self, VerbsError> {
        let (pd, cq) = (nic.allocate_pd()?, nic.create_cq(16)?);
        Ok(Self { nic: Mutex::new(nic), pd, cq })
    }

    /// Checks that each port named in `ends` answers at its address.
    pub fn look(&self, ends: &Ends) -> Result<(), Unreachable> {
        let mut seen = HashSet::new();
        for &end in std::iter::once(&ends.control).chain(&ends.data) {
            if seen.insert((end.port, end.lid)) {
                let there = self.reach(end);
                there.map_err(Unreachable)?;
            }
        }
        Ok(())
    }

    fn reach(&self, peer: QpAddress) -> Result<(), VerbsError> {
        let mut nic = self.nic.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = QpAttributes { send_cq: self.cq, receive_cq: self.cq, send_depth: 1, receive_depth: 0 };
        let qp = nic.create_qp(self.pd, queues)?;
        let connected = nic
            .modify_qp(qp, QpChange::Init { access: Access::empty() })
            .and_then(|()| nic.modify_qp(qp, QpChange::ReadyToReceive { peer }));
        nic.destroy_qp(qp).and(connected)
    }
}

//! A client's end on a simulated machine: verbs of the machine's own NIC, connected to a node's.

use crate::memory::SimMemory;
use portcullis_nic::{
    Access, Completion, CqId, Endpoint, Lkey, Memory, Nic, PdId, QpAddress, QpAttributes, QpChange, QpId,
    ReceiveRequest, RegionId, RemoteAddress, VerbsError, WorkRequest,
};
use portcullis_node::{Admission, ClientEnds};
use portcullis_softnic::SoftNic;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What a client's end is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointSize {
    /// Data queue pairs: the one in use and the spares.
    pub data_queue_pairs: u32,
    /// Requests that each holds.
    pub send_depth: u32,
    /// Requests, and receives, that the control queue pair holds.
    pub control_depth: u32,
    /// Bytes of a control message.
    pub message_bytes: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
}

/// A NIC that several hold: its machine, and the client on it.
pub(crate) type SharedNic = Rc<RefCell<SoftNic<SimMemory>>>;

/// A client's end. Its objects on the NIC go with it.
#[derive(Debug)]
pub(crate) struct SimEndpoint {
    nic: SharedNic,
    size: EndpointSize,
    pd: PdId,
    cq: CqId,
    control: QpId,
    data: Vec<QpId>,
    /// The node's ends of the data queue pairs.
    peers: Vec<QpAddress>,
    arena: SimMemory,
    region: RegionId,
    key: Lkey,
    /// Completions arrive late while this is set.
    late: Rc<Cell<bool>>,
    node_gone: Rc<Cell<bool>>,
}

impl SimEndpoint {
    /// Sets the end up. It is connected by [`SimEndpoint::connect`].
    pub fn new(nic: SharedNic, size: EndpointSize) -> Result<Self, VerbsError> {
        let mut verbs = nic.borrow_mut();
        let pd = verbs.allocate_pd()?;
        let arena = SimMemory::new(size.arena_bytes);
        let region =
            verbs.register_region(pd, &arena, 0..size.arena_bytes, RemoteAddress(0), Access::LOCAL_WRITE)?;
        let completions =
            (size.data_queue_pairs * size.send_depth + 2 * size.control_depth).next_power_of_two();
        let cq = verbs.create_cq(completions)?;
        let queues = |send_depth, receive_depth| QpAttributes {
            send_cq: cq,
            receive_cq: cq,
            send_depth,
            receive_depth,
        };
        let control = verbs.create_qp(pd, queues(size.control_depth, size.control_depth))?;
        let mut data = Vec::new();
        for _ in 0..size.data_queue_pairs {
            data.push(verbs.create_qp(pd, queues(size.send_depth, 0))?);
        }
        drop(verbs);
        let (late, node_gone) = (Rc::default(), Rc::default());
        let (region, key, peers) = (region.id, region.lkey, Vec::new());
        Ok(Self { nic, size, pd, cq, control, data, peers, arena, region, key, late, node_gone })
    }

    /// Where its queue pairs are: the control queue pair, and the data queue pairs.
    pub fn addresses(&self) -> Result<(QpAddress, Vec<QpAddress>), VerbsError> {
        let nic = self.nic.borrow();
        let data = self.data.iter().map(|&qp| nic.qp_address(qp)).collect::<Result<_, _>>()?;
        Ok((nic.qp_address(self.control)?, data))
    }

    /// Connects it to the node's ends.
    pub fn connect(&mut self, control: QpAddress, data: Vec<QpAddress>) -> Result<(), VerbsError> {
        let mut nic = self.nic.borrow_mut();
        connect(&mut *nic, self.control, control, Access::empty())?;
        for (&qp, &peer) in self.data.iter().zip(&data) {
            connect(&mut *nic, qp, peer, Access::empty())?;
        }
        drop(nic);
        self.peers = data;
        Ok(())
    }

    /// The switches that the machine disturbs it with: completions are late, the node is gone.
    pub fn switches(&self) -> (Rc<Cell<bool>>, Rc<Cell<bool>>) {
        (Rc::clone(&self.late), Rc::clone(&self.node_gone))
    }
}

/// Takes a queue pair from RESET to RTS.
fn connect(nic: &mut impl Nic, qp: QpId, peer: QpAddress, access: Access) -> Result<(), VerbsError> {
    nic.modify_qp(qp, QpChange::Init { access })?;
    nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
    nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: 7 })
}

/// A NIC around a software NIC: what is done to the inner one is neither counted nor fails.
pub(crate) trait AroundSoftNic: Nic {
    /// The inner one.
    fn inner(&mut self) -> &mut SoftNic<SimMemory>;
}

/// Where the node's ends of a client's queue pairs are: the control queue pair's, and the data queue pairs'.
type Addresses = (QpAddress, Vec<QpAddress>);

/// The node's ends of a client's queue pairs, connected to the client's.
pub(crate) fn make_ends(
    nic: &mut impl AroundSoftNic,
    admission: Admission,
    endpoint: &SimEndpoint,
) -> Result<(ClientEnds, Addresses), VerbsError> {
    let (theirs, peers) = endpoint.addresses()?;
    let (size, Admission { pd, cq, .. }) = (endpoint.size, admission);
    let mut make = |peer: QpAddress, send_depth: u32, receive_depth: u32| {
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth, receive_depth };
        let qp = nic.create_qp(pd, attributes)?;
        connect(nic.inner(), qp, peer, Access::empty())?;
        Ok::<_, VerbsError>((qp, nic.qp_address(qp)?))
    };
    let control = make(theirs, size.control_depth, size.control_depth)?;
    let data = peers.iter().map(|&peer| make(peer, 1, 0)).collect::<Result<Vec<_>, _>>()?;
    let ends = ClientEnds {
        control: control.0,
        data: data.iter().map(|&(qp, _)| qp).collect(),
        peers,
        control_depth: size.control_depth,
        message_bytes: size.message_bytes,
    };
    Ok((ends, (control.1, data.into_iter().map(|(_, address)| address).collect())))
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        let mut nic = self.nic.borrow_mut();
        for &qp in self.data.iter().chain([&self.control]) {
            let _ = nic.destroy_qp(qp);
        }
        let _ = nic.destroy_cq(self.cq);
        let _ = nic.deregister_region(self.region);
        let _ = nic.deallocate_pd(self.pd);
    }
}

impl Endpoint for SimEndpoint {
    type Memory = SimMemory;

    fn data_queue_pairs(&self) -> u32 {
        self.size.data_queue_pairs
    }

    fn send_depth(&self) -> u32 {
        self.size.send_depth
    }

    fn control_depth(&self) -> u32 {
        self.size.control_depth
    }

    fn message_bytes(&self) -> u32 {
        self.size.message_bytes
    }

    fn arena(&self) -> &SimMemory {
        &self.arena
    }

    fn arena_key(&self) -> Lkey {
        self.key
    }

    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        let Some(&qp) = self.data.get(queue_pair as usize) else { return 0 };
        self.nic.borrow_mut().post_send(qp, requests).unwrap_or(0)
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        self.nic.borrow_mut().post_send(self.control, requests).unwrap_or(0)
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        self.nic.borrow_mut().post_receive(self.control, requests).unwrap_or(0)
    }

    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        if self.late.get() {
            return 0;
        }
        let mut nic = self.nic.borrow_mut();
        let mut polled = 0;
        while polled < most {
            let at = into.len();
            if nic.poll(self.cq, 1, into).unwrap_or(0) == 0 {
                break;
            }
            polled += 1;
            let completion = &mut into[at];
            let number = self.data.iter().position(|&qp| qp == completion.queue_pair);
            completion.queue_pair = match number.and_then(|number| u32::try_from(number).ok()) {
                Some(number) => QpId(number),
                None => Self::CONTROL,
            };
            if completion.status.breaks() {
                // A queue pair broke: the client acts on that before it reads the flushes.
                break;
            }
        }
        polled
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        let index = queue_pair as usize;
        let (Some(&qp), Some(peer)) = (self.data.get(index), self.peers.get_mut(index)) else { return };
        peer.first_packet = peer.first_packet.wrapping_add(1);
        let mut nic = self.nic.borrow_mut();
        let reset = nic.modify_qp(qp, QpChange::Reset);
        // The simulated machine's own NIC takes these steps always.
        let _ = reset.and_then(|()| connect(&mut *nic, qp, *peer, Access::empty()));
    }

    fn wait(&mut self, _at_most: Duration) {}

    fn node_alive(&mut self) -> bool {
        !self.node_gone.get()
    }
}

/// Bytes of the arena that a hostile client may scribble into without harm to itself.
pub(crate) fn scratch(size: &EndpointSize) -> u64 {
    size.arena_bytes - 4096
}

impl SimEndpoint {
    /// Sends any bytes as a control message, from the arena's end.
    pub fn send_raw(&mut self, bytes: &[u8]) -> usize {
        let address = scratch(&self.size);
        self.arena.write(address, bytes);
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        let local = portcullis_nic::LocalSpan { address, length, lkey: self.key };
        let operation = portcullis_nic::Operation::Send { local };
        self.post_control(&[WorkRequest { id: RAW, signalled: true, operation }])
    }
}

/// The number of requests that no client library posted.
pub(crate) const RAW: u64 = u64::MAX;

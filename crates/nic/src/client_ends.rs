//! A client's ends over the verbs of its own NIC, for an [`Endpoint`](crate::Endpoint) whose queues the client makes.

use crate::{
    ASKING_DEPTH, Access, Completion, CqId, EndpointQueue, EndpointSize, Lkey, Memory, Nic, PdId, QpAddress,
    QpAttributes, QpChange, QpId, ReceiveRequest, RegionId, RemoteAddress, VerbsError, WorkRequest,
};

/// Takes a queue pair from RESET to RTS, with no rights for its peer. Its SENDs wait as long as the peer has no receive
/// posted.
///
/// # Errors
/// A step is refused. The queue pair stays in the state of the last step that succeeded.
pub fn connect_qp(nic: &mut impl Nic, qp: QpId, peer: QpAddress) -> Result<(), VerbsError> {
    nic.modify_qp(qp, QpChange::Init { access: Access::empty() })?;
    nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
    nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: 7 })
}

/// A client's objects on its own NIC: a protection domain, an arena and its region, a completion queue, the control
/// queue pair and the data queue pairs. The queue pairs for accesses to chunks are numbered behind the data queue
/// pairs. This value also holds the addresses of the node's ends.
///
/// If there are queue pairs for chunks, there are also the two on which the client requests chunks
/// ([`ClientQueues::asking`]). This code does not connect those two: the node does, each time it makes workers.
///
/// The NIC is not part of this value, so that others can use the NIC too: every method gets the NIC that
/// [`ClientQueues::new`] got. Only [`ClientQueues::end`] destroys the objects again.
#[derive(Debug)]
pub struct ClientQueues<M> {
    size: EndpointSize,
    objects: Objects,
    /// The numbers of the data queue pairs, in the order of their ids.
    numbers: Vec<(QpId, u32)>,
    /// The node's ends of the data queue pairs, once they are connected.
    peers: Vec<QpAddress>,
    arena: M,
    key: Lkey,
}

/// The objects on the NIC, as far as they have been made.
#[derive(Debug, Default)]
struct Objects {
    pd: Option<PdId>,
    region: Option<RegionId>,
    cq: Option<CqId>,
    control: Option<QpId>,
    data: Vec<QpId>,
    asking: Vec<QpId>,
}

impl Objects {
    fn make<N: Nic>(&mut self, nic: &mut N, size: &EndpointSize) -> Result<(N::Memory, Lkey), VerbsError> {
        let completions = completions(size)?;
        let pd = *self.pd.insert(nic.allocate_pd()?);
        let arena = nic.allocate_memory(size.arena_bytes)?;
        let span = 0..size.arena_bytes;
        let region = nic.register_region(pd, &arena, span, RemoteAddress(0), Access::LOCAL_WRITE)?;
        self.region = Some(region.id);
        let cq = *self.cq.insert(nic.create_cq(completions)?);
        let queues = |send_depth, receive_depth| QpAttributes {
            send_cq: cq,
            receive_cq: cq,
            send_depth,
            receive_depth,
        };
        self.control = Some(nic.create_qp(pd, queues(size.control_depth, size.control_depth))?);
        for _ in 0..size.data_queue_pairs + size.chunk_queue_pairs {
            self.data.push(nic.create_qp(pd, queues(size.send_depth, 0))?);
        }
        for _ in 0..size.asking_queue_pairs() {
            self.asking.push(nic.create_qp(pd, queues(ASKING_DEPTH, ASKING_DEPTH))?);
        }
        Ok((arena, region.lkey))
    }

    /// Destroys each object before the ones that it uses. An object that is destroyed already is no error.
    fn destroy(&mut self, nic: &mut impl Nic) {
        for qp in self.data.drain(..).chain(self.asking.drain(..)).chain(self.control.take()) {
            let _ = nic.destroy_qp(qp);
        }
        if let Some(cq) = self.cq.take() {
            let _ = nic.destroy_cq(cq);
        }
        if let Some(region) = self.region.take() {
            let _ = nic.deregister_region(region);
        }
        if let Some(pd) = self.pd.take() {
            let _ = nic.deallocate_pd(pd);
        }
    }
}

/// Methods that make, connect and end the queues.
impl<M: Memory> ClientQueues<M> {
    /// Makes all objects. [`ClientQueues::connect`] connects the queue pairs.
    ///
    /// # Errors
    /// The NIC refuses, or the size is beyond any NIC. No object is left behind on the NIC.
    pub fn new<N: Nic<Memory = M>>(nic: &mut N, size: EndpointSize) -> Result<Self, VerbsError> {
        let mut objects = Objects::default();
        let (arena, key) = objects.make(nic, &size).inspect_err(|_| objects.destroy(nic))?;
        let mut numbers: Vec<_> = objects.data.iter().copied().zip(0..).collect();
        numbers.sort_unstable();
        Ok(Self { size, objects, numbers, peers: Vec::new(), arena, key })
    }

    /// The addresses of the client's queue pairs: the control queue pair, and the data queue pairs with those for
    /// chunks.
    ///
    /// # Errors
    /// The NIC does not know an address, or the queue pairs have ended.
    pub fn addresses(&self, nic: &impl Nic) -> Result<(QpAddress, Vec<QpAddress>), VerbsError> {
        let data = self.objects.data.iter().map(|&qp| nic.qp_address(qp)).collect::<Result<_, _>>()?;
        Ok((nic.qp_address(self.control()?)?, data))
    }

    /// The queue pairs on which the client requests chunks: one to allocate a chunk, one to free a chunk.
    pub fn asking(&self) -> &[QpId] {
        &self.objects.asking
    }

    /// Connects the queue pairs to the node's ends at these addresses. Afterwards all are in RTS.
    ///
    /// # Errors
    /// There are too many or too few addresses, or a step is refused: then the caller must end the queues.
    pub fn connect(
        &mut self,
        nic: &mut impl Nic,
        control: QpAddress,
        data: Vec<QpAddress>,
    ) -> Result<(), VerbsError> {
        if data.len() != self.objects.data.len() {
            return Err(VerbsError::Invalid("each data queue pair has one peer"));
        }
        connect_qp(nic, self.control()?, control)?;
        for (&qp, &peer) in self.objects.data.iter().zip(&data) {
            connect_qp(nic, qp, peer)?;
        }
        self.peers = data;
        Ok(())
    }

    /// Rebuilds this end of data queue pair `number`, after the node has rebuilt its own. This end starts empty. To be
    /// called once for each rebuild, since both ends count ([`QpAddress::first_packet`]).
    ///
    /// # Errors
    /// There is no such queue pair, it was never connected, or a step is refused. The queue pair is of no use then.
    pub fn rebuilt(&mut self, nic: &mut impl Nic, number: u32) -> Result<(), VerbsError> {
        let qp = self.data(number)?;
        let peer = self.peers.get_mut(number as usize);
        let peer = peer.ok_or(VerbsError::Invalid("a queue pair is connected before it is rebuilt"))?;
        *peer = peer.after_reset();
        nic.modify_qp(qp, QpChange::Reset)?;
        connect_qp(nic, qp, *peer)
    }

    /// Destroys all objects: queue pairs, completion queue, region, domain, in that order.
    pub fn end(&mut self, nic: &mut impl Nic) {
        self.objects.destroy(nic);
    }

    fn control(&self) -> Result<QpId, VerbsError> {
        self.objects.control.ok_or(VerbsError::NoSuch { what: "control queue pair" })
    }

    fn data(&self, number: u32) -> Result<QpId, VerbsError> {
        let qp = self.objects.data.get(number as usize);
        qp.copied().ok_or(VerbsError::NoSuch { what: "data queue pair" })
    }

    fn asked_on(&self, place: usize) -> Result<QpId, VerbsError> {
        let qp = self.objects.asking.get(place);
        qp.copied().ok_or(VerbsError::NoSuch { what: "queue pair on which a client asks for chunks" })
    }
}

/// Methods that use the queues. Data queue pairs, and those for chunks behind them, are named by number, from zero.
impl<M: Memory> ClientQueues<M> {
    /// The sizes of these queues and of the arena.
    pub fn size(&self) -> &EndpointSize {
        &self.size
    }

    /// The arena: registered for local use at addresses that start at zero.
    pub fn arena(&self) -> &M {
        &self.arena
    }

    /// The key that names the arena in local spans.
    pub fn arena_key(&self) -> Lkey {
        self.key
    }

    /// Posts requests to data queue pair `number`, as [`Nic::post_send`] does.
    ///
    /// # Errors
    /// There is no such queue pair, or it does not accept requests in its state.
    pub fn post(
        &self,
        nic: &mut impl Nic,
        number: u32,
        requests: &[WorkRequest],
    ) -> Result<usize, VerbsError> {
        nic.post_send(self.data(number)?, requests)
    }

    /// Posts requests to the control queue pair, as [`Nic::post_send`] does.
    ///
    /// # Errors
    /// The queue pair does not accept requests in its state.
    pub fn post_control(&self, nic: &mut impl Nic, requests: &[WorkRequest]) -> Result<usize, VerbsError> {
        nic.post_send(self.control()?, requests)
    }

    /// Posts receives to the control queue pair, as [`Nic::post_receive`] does.
    ///
    /// # Errors
    /// The queue pair does not accept receives in its state.
    pub fn post_control_receive(
        &self,
        nic: &mut impl Nic,
        requests: &[ReceiveRequest],
    ) -> Result<usize, VerbsError> {
        nic.post_receive(self.control()?, requests)
    }

    /// Posts requests to the queue pair of this place in [`ClientQueues::asking`], as [`Nic::post_send`] does.
    ///
    /// # Errors
    /// There is no such queue pair, or it does not accept requests in its state.
    pub fn post_asking(
        &self,
        nic: &mut impl Nic,
        place: usize,
        requests: &[WorkRequest],
    ) -> Result<usize, VerbsError> {
        nic.post_send(self.asked_on(place)?, requests)
    }

    /// Posts receives to the queue pair of this place in [`ClientQueues::asking`], as [`Nic::post_receive`] does.
    ///
    /// # Errors
    /// There is no such queue pair, or it does not accept receives in its state.
    pub fn post_asking_receive(
        &self,
        nic: &mut impl Nic,
        place: usize,
        requests: &[ReceiveRequest],
    ) -> Result<usize, VerbsError> {
        nic.post_receive(self.asked_on(place)?, requests)
    }

    /// Appends at most `most` completions to `into` and returns their number. They carry the numbers of queue pairs
    /// that [`Endpoint`](crate::Endpoint) promises. Polling stops after a completion that reports a broken queue pair,
    /// so that the client can act on that before it reads the flushes.
    ///
    /// # Errors
    /// The completion queue has failed. Earlier completions are returned first.
    pub fn poll(
        &self,
        nic: &mut impl Nic,
        most: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let cq = self.objects.cq.ok_or(VerbsError::NoSuch { what: "completion queue" })?;
        let mut polled = 0;
        while polled < most {
            let at = into.len();
            match nic.poll(cq, 1, into) {
                Ok(0) => break,
                Ok(_) => polled += 1,
                Err(error) if polled == 0 => return Err(error),
                Err(_) => break,
            }
            let completion = &mut into[at];
            completion.queue_pair = self.number_of(completion.queue_pair);
            if completion.status.breaks() {
                break;
            }
        }
        Ok(polled)
    }

    fn number_of(&self, qp: QpId) -> QpId {
        if let Ok(place) = self.numbers.binary_search_by_key(&qp, |&(qp, _)| qp) {
            return QpId(self.numbers[place].1);
        }
        let asking = self.objects.asking.iter().position(|&asking| asking == qp);
        asking.map_or(EndpointQueue::Control, EndpointQueue::Asking).label()
    }
}

/// Returns the depth of a completion queue that has room for every request that may be posted at a time. The numbers
/// may come from a peer.
fn completions(size: &EndpointSize) -> Result<u32, VerbsError> {
    // One more for each queue pair: a device may keep a receive of its own there.
    let pairs = size.data_queue_pairs.checked_add(size.chunk_queue_pairs);
    let data = size.send_depth.checked_add(1).zip(pairs).and_then(|(each, pairs)| pairs.checked_mul(each));
    let asking = size.asking_queue_pairs() * 2 * ASKING_DEPTH;
    let messages = size.control_depth.checked_mul(2).and_then(|control| control.checked_add(asking));
    let all = data.zip(messages).and_then(|(data, messages)| data.checked_add(messages));
    let depth = all.and_then(u32::checked_next_power_of_two);
    depth.ok_or(VerbsError::Invalid("no completion queue is as deep as all these queues"))
}

//! A client's end over UDP, with the real executor, over a simulated socket. It works as `onerma::UdpEndpoint` does
//! with a real socket.

use super::{Label, SharedSocket, Terms};
use crate::endpoint::RAW;
use crate::memory::SimMemory;
use portcullis_nic::{
    Completion, CompletionKind, EndpointQueue, EndpointSize, LocalSpan, Memory, OneShotOperations,
    OneShotRequest, Operation, ReceiveRequest, Status, WorkRequest,
};
use portcullis_onerma::{
    DerivedKey, Destination, Executor, Initiator, OperationKey, Pace, PathMtu, RegionId, SlotId, Transfer,
    TransferEnd, TransferId,
};
use portcullis_protocol::RegionName;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// An operation that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    request: OneShotRequest,
    /// Time by which the operation must have ended.
    due: Duration,
}

/// A client's end over UDP.
#[derive(Debug)]
pub(crate) struct OneShotEnd {
    socket: SharedSocket,
    arena: SimMemory,
    size: EndpointSize,
    executor: Executor,
    terms: Terms,
    node: SocketAddr,
    client: u64,
    keys: HashMap<RegionName, OperationKey>,
    under_way: BTreeMap<TransferId, UnderWay>,
    receives: VecDeque<ReceiveRequest>,
    completions: VecDeque<Completion>,
}

impl OneShotEnd {
    /// Creates the end of a client, by the node's number for it.
    pub fn new(
        socket: SharedSocket,
        size: EndpointSize,
        terms: &Terms,
        (node, client): (SocketAddr, u64),
    ) -> Self {
        Self {
            socket,
            arena: SimMemory::new(size.arena_bytes),
            size,
            executor: Executor::with_pace(
                Initiator::new(terms.initiator),
                terms.executor,
                Pace::for_shared_processors(),
            )
            .with_path(PathMtu::new(
                node,
                terms.initiator.packet_max,
                terms.initiator.packet_max,
                client << 32,
            )),
            terms: *terms,
            node,
            client,
            keys: HashMap::new(),
            under_way: BTreeMap::new(),
            receives: VecDeque::new(),
            completions: VecDeque::new(),
        }
    }

    pub fn arena(&self) -> &SimMemory {
        &self.arena
    }

    pub fn size(&self) -> &EndpointSize {
        &self.size
    }

    fn now(&self) -> Duration {
        self.socket.borrow().now
    }

    fn destination(&mut self, request: &OneShotRequest) -> Destination {
        let set_up = || DerivedKey::from_bytes(request.key.0).set_up();
        let key = self.keys.entry(request.region).or_insert_with(set_up).clone();
        let RegionName { index, generation } = request.region;
        let region = RegionId { index, generation };
        Destination { address: self.node, client: self.client, region, key }
    }

    fn complete(&mut self, request: u64, status: Status, kind: CompletionKind) {
        // The client library gets no completion of a request that it has not posted.
        if request == RAW {
            return;
        }
        let is_message = matches!(kind, CompletionKind::Receive { .. });
        let queue = if is_message { EndpointQueue::Control } else { EndpointQueue::OneShot };
        let queue_pair = queue.label();
        self.completions.push_back(Completion { request, queue_pair, status, kind });
    }

    pub fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        for request in requests {
            let Operation::Send { local } = request.operation else {
                unreachable!("a control queue pair carries messages only: {request:?}")
            };
            let mut message = vec![0; local.length as usize];
            self.arena.read(local.address, &mut message);
            self.socket.borrow().said.push(message);
            if request.signalled {
                let queue_pair = EndpointQueue::Control.label();
                let (status, kind) = (Status::Success, CompletionKind::Send);
                self.completions.push_back(Completion { request: request.id, queue_pair, status, kind });
            }
        }
        requests.len()
    }

    pub fn post_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        self.receives.extend(requests);
        requests.len()
    }

    /// Takes completions.
    pub fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        if self.completions.is_empty() {
            self.proceed();
        }
        let taken = self.completions.len().min(most);
        into.extend(self.completions.drain(..taken));
        taken
    }

    /// Processes what has arrived. Returns whether there are completions to take.
    pub fn has_completions(&mut self) -> bool {
        self.proceed();
        !self.completions.is_empty()
    }

    /// Processes what has arrived, ends what has ended, and sends what is to be sent.
    fn proceed(&mut self) {
        let now = self.now();
        let late = self.executor.next_timeout().map_or(Duration::ZERO, |due| now.saturating_sub(due));
        // An end that looks late has more time.
        self.under_way.values_mut().for_each(|it| it.due += late);
        loop {
            let Some((from, mut packet)) = self.socket.borrow().arrived.pop_front() else { break };
            if let Some(data) = self.executor.handle_packet(from, &mut packet, now)
                && let Some(it) = self.under_way.get(&data.of)
            {
                data.store(it.request.local, &self.arena);
            }
            self.transmit();
        }
        if self.executor.next_timeout().is_some_and(|due| due <= now) {
            self.executor.handle_timeout(now);
        }
        while let Some(end) = self.executor.poll_end() {
            self.end(&end);
        }
        self.transmit();
        self.hear();
        self.watch_time(now);
    }

    fn end(&mut self, end: &TransferEnd) {
        let Some(UnderWay { request, .. }) = self.under_way.remove(&end.id) else { return };
        let status = end.verbs_status();
        if status == Status::Success {
            end.store(request.local, &self.arena);
        }
        self.complete(request.id, status, CompletionKind::Send);
    }

    /// Takes control messages, as far as receives are posted for them.
    fn hear(&mut self) {
        while !self.receives.is_empty() {
            let Some(message) = self.socket.borrow().heard.pop_front() else { return };
            let Some(receive) = self.receives.pop_front() else { return };
            let LocalSpan { address, length, .. } = receive.local;
            let there = message.len().min(length as usize);
            self.arena.write(address, &message[..there]);
            let length = u32::try_from(there).unwrap_or(u32::MAX);
            let kind = CompletionKind::Receive { length, invalidated: None };
            self.complete(receive.id, Status::Success, kind);
        }
    }

    /// Reports operations that have had no end for too long.
    fn watch_time(&mut self, now: Duration) {
        for (id, it) in self.under_way.iter_mut().filter(|(_, it)| it.due < now) {
            let what = format!("{id:?}, {:x?}, should have ended at {:?}", it.request, it.due);
            self.socket.borrow().overdue.push(what);
            it.due = Duration::MAX / 2;
        }
    }

    fn transmit(&mut self) {
        let mut socket = self.socket.borrow();
        let mut packet = Vec::new();
        while let Some(to) = self.executor.poll_transmit(&mut packet) {
            let sent = std::mem::take(&mut packet);
            if socket.longest.is_some_and(|longest| sent.len() > longest) {
                self.executor.handle_too_long(to, sent.len(), socket.now);
                continue;
            }
            let request = Label::read(&sent).filter(|label| label.kind == Label::REQUEST);
            let of = request.and_then(|label| Some((label, self.executor.transfer_in(SlotId(label.slot))?)));
            if let Some((label, transfer)) = of
                && let Some(it) = self.under_way.get(&transfer)
            {
                socket.begun.push((label.operation, it.request));
            }
            socket.leaving.push((to, sent));
        }
        socket.due = self.executor.next_timeout();
    }
}

impl OneShotOperations for OneShotEnd {
    fn post_one_shot(&mut self, requests: &[OneShotRequest]) -> usize {
        let mut posted = 0;
        for &request in requests {
            if !self.executor.takes(self.node, request.verb.into()) {
                break;
            }
            posted += 1;
            let (to, now) = (self.destination(&request), self.now());
            let transfer = Transfer::of_request(&request, to, &self.arena);
            match self.executor.begin(transfer, now) {
                Ok(id) => {
                    let due = now + self.terms.longest(request.local.length);
                    self.under_way.insert(id, UnderWay { request, due });
                }
                Err(_) => self.complete(request.id, Status::Success, CompletionKind::Send),
            }
        }
        self.transmit();
        posted
    }
}

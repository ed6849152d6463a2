//! The NIC: objects by id. Steps and posts are checked before they reach the library.

use crate::completions::CompletionQueue;
use crate::device::{DeviceChoice, OpenError, Opened, open};
use crate::in_flight_requests::InFlightRequests;
use crate::known::known;
use crate::queue_pair::{Effect, Posted, QueuePair, Trip};
use crate::regions::{Books, MemoryRegion, MemoryWindow};
use crate::slots::Slots;
use crate::sys::{Cq, DeviceEvent, INLINE_BYTES, Mr, Mw, Pd, Posting, Qp, QpPlan, RawRequest, RawSpan};
use crate::ticket::{SLOTS_MAX, Ticket};
use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, Capabilities, Completion, CqId, Event, LocalSpan, Memory, Nic, Operation, PdId, QpAddress,
    QpAttributes, QpChange, QpId, QpState, ReceiveRequest, RefusedAccess, Region, RegionId, RemoteAddress,
    Rkey, Status, VerbsError, Window, WindowId, WindowKind, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::time::Duration;

/// The report about a refused access: none. The verbs only name the queue pair (IBV_EVENT_QP_ACCESS_ERR); the details
/// stay in the device.
const NOT_TOLD: Option<RefusedAccess> = None;
/// Number of packet sequence numbers: they have 24 bits.
const PACKETS: u32 = 1 << 24;
/// Packet numbers between two connections of a queue pair: more than may still be under way.
const CONNECTION_STRIDE: u32 = 0x3_5a5b;
/// Polls for events between two readings of the device's own events, which cost a system call.
const LOOKS_PER_DEVICE_EVENT: u32 = 16;

/// The functions through which requests reach the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkRequests {
    /// `ibv_wr_*`, if the provider has those functions.
    #[default]
    Extended,
    /// `ibv_post_send` and `ibv_bind_mw`, which every provider has.
    Classic,
}

struct Domain {
    pd: Pd,
    users: u32,
}

/// A NIC through libibverbs. Dropping it destroys its objects in the order MW, QP, CQ, MR, PD: the windows first (see
/// `drop`), then the other objects in the order of the fields.
pub struct IbNic {
    pub(crate) queue_pairs: Slots<QueuePair>,
    pub(crate) cqs: Slots<CompletionQueue>,
    pub(crate) books: Books,
    domains: Slots<Domain>,
    /// Queue pairs that broke, and whose events are not reported to the owner yet.
    pub(crate) trips: VecDeque<QpId>,
    /// Events that are not reported to the owner yet.
    untold: VecDeque<Event>,
    /// Scratch space for the requests that a completion settles.
    pub(crate) done: Vec<(Effect, bool)>,
    opened: Opened,
    capabilities: Capabilities,
    requests: WorkRequests,
    epochs: u16,
    /// The queue pair that was last checked for being broken.
    watched: u32,
    looks: u32,
}

impl std::fmt::Debug for IbNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IbNic").field("device", &self.opened.name).finish_non_exhaustive()
    }
}

impl IbNic {
    /// Opens a device.
    ///
    /// # Errors
    /// There is no libibverbs, no such device or several to choose from, or the machine refuses.
    pub fn open(choice: &DeviceChoice, requests: WorkRequests) -> Result<Self, OpenError> {
        let opened = open(choice)?;
        let limits = &opened.limits;
        let known = known(limits);
        let capabilities = Capabilities {
            name: opened.name.clone(),
            window_type_1: limits.window_type_1 && has_windows(&opened, WindowKind::One),
            window_type_2: limits.window_type_2 && has_windows(&opened, WindowKind::Two),
            chosen_keys: false,
            atomics: limits.atomics,
            windows_max: limits.windows_max,
            send_depth_max: limits.send_depth_max,
            completion_depth_max: limits.completion_depth_max,
            sees_peer_ends: false,
            unenforced: known.unenforced,
            deviations: known.deviations,
            chains: portcullis_nic::ChainFeatures::empty(),
            crashes_on: known.crashes_on,
        };
        Ok(Self {
            queue_pairs: Slots::new("queue pair"),
            cqs: Slots::new("completion queue"),
            books: Books::default(),
            domains: Slots::new("protection domain"),
            trips: VecDeque::new(),
            untold: VecDeque::new(),
            done: Vec::new(),
            opened,
            capabilities,
            requests,
            epochs: 0,
            watched: 0,
            looks: 0,
        })
    }

    /// Makes [`descriptors`](Self::descriptors) become readable when something arrives from now on. Returns `false` if
    /// something has arrived already.
    pub fn arm(&mut self) -> bool {
        self.opened.context.quiet();
        let ids: Vec<u32> = self.cqs.iter().map(|(id, _)| id).collect();
        for &id in &ids {
            if self.cqs.get(id).is_ok_and(|queue| queue.cq.arm().is_err()) {
                // The queue cannot ring, so the caller has to poll again soon.
                std::thread::yield_now();
                return false;
            }
        }
        // Completions that arrived before the queues were armed do not ring.
        for &id in &ids {
            self.take_in_all(CqId(id));
        }
        if let Some(event) = self.next_trip() {
            self.untold.push_back(event);
        }
        self.untold.is_empty() && self.cqs.iter().all(|(_, queue)| queue.waiting.is_empty())
    }

    /// Descriptors that become readable when a completion or an event has arrived: see [`arm`](Self::arm).
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        let context = &self.opened.context;
        [context.channel_descriptor(), context.event_descriptor()]
    }

    /// Sleeps until a completion or an event may have arrived or `also` is readable, and for `at_most` at the most.
    pub fn sleep(&mut self, at_most: Duration, also: Option<BorrowedFd<'_>>) {
        if !self.arm() {
            return;
        }
        let mut descriptors: Vec<PollFd<'_>> = self
            .descriptors()
            .into_iter()
            .chain(also)
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        // Woken, timed out or interrupted: the caller polls again in any case.
        let _ = rustix::event::poll(&mut descriptors, Some(&timeout));
        self.opened.context.quiet();
        self.looks = 0;
    }

    fn next_epoch(&mut self) -> u16 {
        self.epochs = self.epochs.wrapping_add(1);
        self.epochs
    }

    fn domain(&mut self, pd: PdId) -> Result<&mut Domain, VerbsError> {
        self.domains.get_mut(pd.0)
    }

    fn leave_domain(&mut self, pd: PdId) {
        if let Ok(domain) = self.domains.get_mut(pd.0) {
            domain.users -= 1;
        }
    }

    /// Posts as many requests as there is room for. Stops before the first request that the library does not accept,
    /// and returns the reason.
    fn post_some(
        &mut self,
        qp: QpId,
        requests: &[WorkRequest],
    ) -> Result<(usize, Option<std::io::Error>), VerbsError> {
        let QueuePair { qp: queue, pd, epoch, send, .. } = self.queue_pairs.get_mut(qp.0)?;
        let (pd, epoch, inline_bytes) = (*pd, *epoch, queue.inline_bytes());
        let count = requests.len().min(send.room());
        let (mut entered, mut stopped) = (0, None);
        // The posting begins with the first sound request.
        let (mut queue, mut posting) = (Some(queue), None);
        for request in &requests[..count] {
            match self.books.is_sound(pd, &request.operation) {
                Ok(true) => {}
                Ok(false) => {
                    stopped = Some(std::io::ErrorKind::InvalidInput.into());
                    break;
                }
                // The requests added before stay posted.
                Err(_) if entered > 0 => break,
                Err(unknown) => return Err(unknown),
            }
            let effect = self.books.effect(&request.operation);
            let position = send.enter(Posted { id: request.id, effect });
            entered += 1;
            let id = Ticket { slot: qp.0, epoch, position, receive: false }.number();
            if let Some(operation) = self.books.raw(pd, inline_bytes, &request.operation) {
                posting = posting.or_else(|| queue.take().map(Posting::begin));
                if let Some(posting) = &mut posting {
                    posting.add(RawRequest { id, signalled: request.signalled, operation });
                }
            }
        }
        let (posted, error) = posting.map_or((0, None), Posting::ring);
        for _ in posted..entered {
            if let Some(posted) = send.withdraw() {
                self.books.undo(posted.effect);
            }
        }
        Ok((posted, error.or(stopped)))
    }

    fn take_events(&mut self) {
        while let Some(event) = self.opened.context.next_event() {
            let (DeviceEvent::Refused(qp) | DeviceEvent::Broken(qp)) = event else { continue };
            // The owner may know about the break already and have rebuilt the queue pair. Then the event is about its
            // earlier state.
            if !self
                .queue_pairs
                .get(qp)
                .is_ok_and(|pair| pair.qp.state().is_ok_and(|it| it == QpState::Error))
            {
                continue;
            }
            // The device's own failure is not a peer's violation, unless a violation came before.
            match self.queue_pairs.get_mut(qp) {
                Ok(pair) if event == DeviceEvent::Broken(qp) && pair.trip == Trip::No => {
                    (pair.state, pair.trip) = (QpState::Error, Trip::Told);
                    self.untold.push_back(Event::Fatal(QpId(qp)));
                }
                _ => self.tripped(QpId(qp)),
            }
        }
    }

    /// Checks whether one queue pair broke that would not report it.
    fn watch(&mut self) {
        let reach = self.queue_pairs.reach();
        for _ in 0..reach {
            self.watched = (self.watched + 1) % reach;
            let id = QpId(self.watched);
            if self.queue_pairs.get(id.0).is_ok_and(QueuePair::is_mute) {
                if self
                    .queue_pairs
                    .get(id.0)
                    .is_ok_and(|pair| pair.qp.state().is_ok_and(|it| it == QpState::Error))
                {
                    self.tripped(id);
                }
                return;
            }
        }
    }

    /// Returns the event of the next queue pair that a peer broke, once that is certain.
    fn next_trip(&mut self) -> Option<Event> {
        for _ in 0..self.trips.len() {
            let qp = self.trips.pop_front()?;
            let Ok(pair) = self.queue_pairs.get(qp.0) else { continue };
            if pair.trip != Trip::Seen {
                continue;
            }
            let send_cq = pair.send_cq;
            // If a request of the owner's broke the queue pair, its completion shows that here.
            self.take_in_all(send_cq);
            let Ok(pair) = self.queue_pairs.get_mut(qp.0) else { continue };
            if pair.broken_by_owner {
                pair.trip = Trip::Told;
            } else if pair.send.is_empty() {
                pair.trip = Trip::Told;
                return Some(Event::AccessError(qp, NOT_TOLD));
            } else {
                self.trips.push_back(qp);
            }
        }
        None
    }

    /// Removes a queue pair's completions.
    fn forget_requests(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let cqs = self.queue_pairs.get(qp.0).map(|pair| [pair.send_cq, pair.receive_cq])?;
        for cq in cqs {
            self.take_in_all(cq);
            if let Ok(queue) = self.cqs.get_mut(cq.0) {
                queue.waiting.retain(|completion| completion.queue_pair != qp);
            }
        }
        Ok(())
    }

    fn reset(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.keep_in_mind(qp)?;
        self.queue_pairs.get_mut(qp.0)?.qp.enter_reset().map_err(|error| refused(&error))?;
        self.forget_requests(qp)?;
        let epoch = self.next_epoch();
        let pair = self.queue_pairs.get_mut(qp.0)?;
        while let Some(posted) = pair.send.withdraw() {
            self.books.undo(posted.effect);
        }
        while pair.receive.withdraw().is_some() {}
        pair.epoch = epoch;
        pair.first_packet = pair.first_packet.wrapping_add(1);
        pair.state = QpState::Reset;
        (pair.trip, pair.broken_by_owner) = (Trip::No, false);
        Ok(())
    }

    /// Keeps the event of a queue pair that its owner resets or destroys. The report that a peer broke it may still be
    /// under way: the peer learns of the break at the same time, and may have requested the reset at once.
    fn keep_in_mind(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let send_cq = self.queue_pairs.get(qp.0)?.send_cq;
        self.take_in_all(send_cq);
        let pair = self.queue_pairs.get_mut(qp.0)?;
        if pair.state == QpState::Error && !pair.broken_by_owner && pair.trip != Trip::Told {
            pair.trip = Trip::Told;
            self.untold.push_back(Event::AccessError(qp, NOT_TOLD));
        }
        Ok(())
    }

    fn keep_entries(&mut self, cq: CqId, count: u32) -> Result<(), VerbsError> {
        let queue = self.cqs.get_mut(cq.0)?;
        if queue.depth - queue.kept < count {
            return Err(VerbsError::Exhausted {
                what: "completion queue entries",
                limit: queue.depth.into(),
            });
        }
        queue.kept += count;
        queue.users += 1;
        Ok(())
    }

    fn release_entries(&mut self, cq: CqId, count: u32) {
        if let Ok(queue) = self.cqs.get_mut(cq.0) {
            queue.kept -= count;
            queue.users -= 1;
        }
    }
}

/// Whether the device has windows of a type. The function makes one to find out: the flags do not always show which
/// type the device has.
fn has_windows(opened: &Opened, kind: WindowKind) -> bool {
    Pd::new(&opened.context).and_then(|pd| Mw::new(&pd, kind)).is_ok()
}

/// Returns a number that is unlikely to be used elsewhere or again: packets on their way to a queue pair's number must
/// not reach the next queue pair with that number.
fn any_number() -> u32 {
    u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or(0)
}

/// Returns a connection's first packet number on the wire. Addresses count by one; on the wire the numbers lie far
/// apart, so that a packet of an earlier connection is not taken for one of the present connection.
fn packet_number(first_packet: u32) -> u32 {
    first_packet.wrapping_mul(CONNECTION_STRIDE) % PACKETS
}

/// Returns the error of a call that the device did not carry out.
fn refused(error: &std::io::Error) -> VerbsError {
    VerbsError::Machine(error.to_string())
}

/// Returns the error of a call that made no object: the device may have no more.
fn not_made(what: &'static str, limit: u32, error: &std::io::Error) -> VerbsError {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => VerbsError::Unsupported(what),
        Some(rustix::io::Errno::NOSPC) => VerbsError::Exhausted { what, limit: limit.into() },
        _ => VerbsError::Machine(format!("no {what}: {error}")),
    }
}

impl Drop for IbNic {
    fn drop(&mut self) {
        self.books.windows.clear();
    }
}

impl Nic for IbNic {
    type Memory = Mapping;

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn allocate_memory(&mut self, length: u64) -> Result<Mapping, VerbsError> {
        Mapping::private(length).map_err(|error| VerbsError::Machine(error.to_string()))
    }

    fn allocate_pd(&mut self) -> Result<PdId, VerbsError> {
        let pd = Pd::new(&self.opened.context).map_err(|error| not_made("protection domains", 0, &error))?;
        Ok(PdId(self.domains.insert(Domain { pd, users: 0 })))
    }

    fn deallocate_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        if self.domains.get(pd.0)?.users > 0 {
            return Err(VerbsError::Busy { what: "domain", by: "region, window or queue pair" });
        }
        self.domains.remove(pd.0).map(|_| ())
    }

    fn register_region(
        &mut self,
        pd: PdId,
        memory: &Mapping,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        let domain = self.domains.get(pd.0)?;
        let (start, length) = (span.start, span.end.saturating_sub(span.start));
        if length == 0 || span.end > memory.length() || base.0.checked_add(length).is_none() {
            return Err(VerbsError::Invalid(
                "a region is some bytes inside its memory, at addresses that exist",
            ));
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::Invalid("remote write and atomic rights need local write"));
        }
        // Some drivers refuse the flag if the device has no windows.
        let windows = self.capabilities.window_type_1 || self.capabilities.window_type_2;
        let flags = if windows { access } else { access - Access::WINDOW_BIND };
        let mr = Mr::new(&domain.pd, memory, &span, base.0, flags);
        let mr =
            mr.map_err(|error| VerbsError::Machine(format!("cannot register {length} bytes: {error}")))?;
        let (lkey, rkey) = mr.keys();
        self.domain(pd)?.users += 1;
        let region =
            MemoryRegion { mr, pd, memory: memory.clone(), start, base: base.0, length, access, windows: 0 };
        let id = self.books.regions.insert(region);
        self.books.by_lkey.insert(lkey, id);
        Ok(Region { id: RegionId(id), lkey: portcullis_nic::Lkey(lkey), rkey: Rkey(rkey) })
    }

    fn deregister_region(&mut self, region: RegionId) -> Result<(), VerbsError> {
        if self.books.regions.get(region.0)?.windows > 0 {
            return Err(VerbsError::Busy { what: "region", by: "window" });
        }
        let gone = self.books.regions.remove(region.0)?;
        self.books.by_lkey.remove(&gone.mr.keys().0);
        let pd = gone.pd;
        drop(gone);
        self.leave_domain(pd);
        Ok(())
    }

    fn allocate_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError> {
        let most = self.capabilities.windows_max;
        let has = match kind {
            WindowKind::One => self.capabilities.window_type_1,
            WindowKind::Two => self.capabilities.window_type_2,
        };
        let domain = self.domains.get(pd.0)?;
        if !has {
            return Err(VerbsError::Unsupported("windows of this type"));
        }
        let mw = Mw::new(&domain.pd, kind).map_err(|error| not_made("windows", most, &error))?;
        self.domain(pd)?.users += 1;
        let rkey = Rkey(mw.rkey());
        let id = self.books.windows.insert(MemoryWindow { mw, pd, kind, over: None, on: None });
        Ok(Window { id: WindowId(id), rkey })
    }

    fn deallocate_window(&mut self, window: WindowId) -> Result<(), VerbsError> {
        self.books.windows.get(window.0)?;
        self.let_go(window.0);
        let gone = self.books.windows.remove(window.0)?;
        let pd = gone.pd;
        drop(gone);
        self.leave_domain(pd);
        Ok(())
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let most = self.capabilities.completion_depth_max;
        if !depth.is_power_of_two() {
            return Err(VerbsError::Invalid("a completion queue's depth is a power of two"));
        }
        if depth > most {
            return Err(VerbsError::Exhausted { what: "completion queue entries", limit: most.into() });
        }
        let cq = Cq::new(&self.opened.context, depth);
        let cq = cq.map_err(|error| not_made("completion queues", 0, &error))?;
        let depth = cq.depth();
        let queue = CompletionQueue { cq, depth, kept: 0, users: 0, waiting: VecDeque::new() };
        Ok(CqId(self.cqs.insert(queue)))
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        if self.cqs.get(cq.0)?.users > 0 {
            return Err(VerbsError::Busy { what: "completion queue", by: "queue pair" });
        }
        self.opened.context.quiet();
        self.cqs.remove(cq.0).map(|_| ())
    }

    fn create_qp(&mut self, pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError> {
        let QpAttributes { send_cq, receive_cq, send_depth, receive_depth } = attributes;
        let most = self.capabilities.send_depth_max;
        if !send_depth.is_power_of_two() || !(receive_depth == 0 || receive_depth.is_power_of_two()) {
            return Err(VerbsError::Invalid("a queue's depth is a power of two"));
        }
        if send_depth.max(receive_depth) > most || self.queue_pairs.next_id() >= SLOTS_MAX {
            return Err(VerbsError::Exhausted { what: "requests of a queue", limit: most.into() });
        }
        let tripwire = receive_depth == 0;
        let receives = receive_depth.max(1);
        let slot = self.queue_pairs.next_id();
        let plan = QpPlan {
            pd: &self.domains.get(pd.0)?.pd,
            send_cq: &self.cqs.get(send_cq.0)?.cq,
            receive_cq: &self.cqs.get(receive_cq.0)?.cq,
            send_depth,
            receive_depth: receives,
            inline_bytes: INLINE_BYTES,
            tag: slot,
            extended: self.requests == WorkRequests::Extended,
        };
        let qp = Qp::new(&plan).map_err(|error| not_made("queue pairs", 0, &error))?;
        self.keep_entries(send_cq, send_depth)?;
        if let Err(error) = self.keep_entries(receive_cq, receives) {
            self.release_entries(send_cq, send_depth);
            return Err(error);
        }
        self.domain(pd)?.users += 1;
        let epoch = self.next_epoch();
        let pair = QueuePair {
            qp,
            pd,
            send_cq,
            receive_cq,
            state: QpState::Reset,
            epoch,
            first_packet: any_number(),
            send: InFlightRequests::new(send_depth),
            receive: InFlightRequests::new(receive_depth),
            tripwire,
            trip: Trip::No,
            broken_by_owner: false,
            entries: (send_depth, receives),
            windows: 0,
        };
        Ok(QpId(self.queue_pairs.insert(pair)))
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        if self.queue_pairs.get(qp.0)?.windows > 0 {
            return Err(VerbsError::Busy { what: "queue pair", by: "type-2 window" });
        }
        self.forget_requests(qp)?;
        // Another queue pair may soon have this number.
        self.untold.retain(|event| event.queue_pair() != qp);
        let QueuePair { qp: gone, pd, send_cq, receive_cq, entries, .. } = self.queue_pairs.remove(qp.0)?;
        drop(gone);
        self.release_entries(send_cq, entries.0);
        self.release_entries(receive_cq, entries.1);
        self.leave_domain(pd);
        Ok(())
    }

    fn qp_address(&self, qp: QpId) -> Result<QpAddress, VerbsError> {
        let pair = self.queue_pairs.get(qp.0)?;
        Ok(QpAddress {
            number: pair.qp.number(),
            port: self.opened.gid,
            lid: self.opened.lid,
            first_packet: pair.first_packet,
        })
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        let pair = self.queue_pairs.get(qp.0)?;
        match pair.state {
            QpState::Reset | QpState::Error => Ok(pair.state),
            _ => pair.qp.state().map_err(|error| refused(&error)),
        }
    }

    fn modify_qp(&mut self, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        let from = self.qp_state(qp)?;
        let (route, epoch_slot) = (self.opened.route, qp.0);
        let pair = self.queue_pairs.get_mut(qp.0)?;
        pair.state = from;
        let (to, said) = match (change, from) {
            (QpChange::Reset, _) => return self.reset(qp),
            (QpChange::Init { access }, QpState::Reset | QpState::Init) => {
                (QpState::Init, pair.qp.enter_init(route.port, access))
            }
            (QpChange::ReadyToReceive { peer }, QpState::Init) => {
                let peer = QpAddress { first_packet: packet_number(peer.first_packet), ..peer };
                (QpState::ReadyToReceive, pair.qp.enter_ready_to_receive(route, &peer))
            }
            (QpChange::ReadyToSend { rnr_retries }, QpState::ReadyToReceive | QpState::ReadyToSend) => {
                let first = packet_number(pair.first_packet);
                (QpState::ReadyToSend, pair.qp.enter_ready_to_send(route, first, rnr_retries))
            }
            (QpChange::Access { access }, QpState::Init | QpState::ReadyToReceive | QpState::ReadyToSend) => {
                (from, pair.qp.set_access(access))
            }
            (QpChange::Error, QpState::Error) => return self.keep_in_mind(qp),
            (QpChange::Error, state) if state != QpState::Reset => {
                pair.broken_by_owner = true;
                (QpState::Error, pair.qp.enter_error())
            }
            _ => return Err(VerbsError::State { from }),
        };
        said.map_err(|error| refused(&error))?;
        pair.state = to;
        if to == QpState::Init && from == QpState::Reset && pair.tripwire {
            Self::set_tripwire(pair, epoch_slot);
        }
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, requests: &[WorkRequest]) -> Result<usize, VerbsError> {
        let state = self.queue_pairs.get(qp.0)?.state;
        if !matches!(state, QpState::ReadyToSend | QpState::Error) {
            return Err(VerbsError::State { from: state });
        }
        let (mut taken, mut error) = self.post_some(qp, requests)?;
        while let Some(reason) = error.take() {
            if reason.kind() == std::io::ErrorKind::OutOfMemory {
                // The queue is fuller than counted, which is not an error.
                break;
            }
            // The library refuses a request: the requests are posted one by one to find it.
            let Some(request) = requests.get(taken) else { break };
            let (posted, again) = self.post_some(qp, std::slice::from_ref(request))?;
            if posted == 0 && again.is_none() {
                // The queue has no room, which is not an error.
                break;
            }
            taken += 1;
            if posted == 0 {
                tracing::debug!(%reason, ?request, "the library does not post a request");
                let bind = matches!(request.operation, Operation::BindWindow(_));
                let status = if bind { Status::WindowBindError } else { Status::LocalQpOperationError };
                self.refuse_request(qp, request.id, status);
                let (rest, more) = self.post_some(qp, &requests[taken..])?;
                taken += rest;
                error = more;
            } else {
                error = again.or(Some(reason)).filter(|_| taken < requests.len());
            }
        }
        Ok(taken)
    }

    fn post_receive(&mut self, qp: QpId, requests: &[ReceiveRequest]) -> Result<usize, VerbsError> {
        let pair = self.queue_pairs.get_mut(qp.0)?;
        if pair.state == QpState::Reset {
            return Err(VerbsError::State { from: pair.state });
        }
        if pair.tripwire {
            return Err(VerbsError::Invalid("this queue pair was made without a receive queue"));
        }
        let mut taken = 0;
        for request in requests.iter().take(pair.receive.room()) {
            let position = pair.receive.enter(request.id);
            let id = Ticket { slot: qp.0, epoch: pair.epoch, position, receive: true }.number();
            let LocalSpan { address, length, lkey } = request.local;
            let span = RawSpan { address, length, lkey: lkey.0, inline: None };
            if Posting::receive(&mut pair.qp, id, Some(span)).is_err() {
                pair.receive.withdraw();
                break;
            }
            taken += 1;
        }
        Ok(taken)
    }

    fn poll(&mut self, cq: CqId, most: usize, into: &mut Vec<Completion>) -> Result<usize, VerbsError> {
        let mut polled = 0;
        loop {
            let queue = self.cqs.get_mut(cq.0)?;
            let count = queue.waiting.len().min(most - polled);
            into.extend(queue.waiting.drain(..count));
            polled += count;
            let trips = self.trips.len();
            // The owner has to learn that a queue pair broke before it receives the client's message about that.
            if (polled == most && most > 0) || !self.take_in(cq)? && self.cqs.get(cq.0)?.waiting.is_empty() {
                return Ok(polled);
            }
            if most == 0 || self.trips.len() > trips {
                return Ok(polled);
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        if self.looks.is_multiple_of(LOOKS_PER_DEVICE_EVENT) {
            self.take_events();
            self.watch();
        }
        self.looks = self.looks.wrapping_add(1);
        // Tripwires report through completion queues, and the owner may be about to detach a client.
        for id in 0..self.cqs.reach() {
            // An id without a queue has no completions.
            let _ = self.take_in(CqId(id));
        }
        self.untold.pop_front().or_else(|| self.next_trip())
    }
}

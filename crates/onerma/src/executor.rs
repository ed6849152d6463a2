//! Transfers of any size (1RMA §4.4, §6). A transfer is divided into operations, which are paced, repeated if that is
//! safe, and put together again.
//!
//! Algorithm 1 decides how many operations may be in progress, and how far apart they begin, with one window for
//! congestion on this host, and one for each destination and direction. Operations are not ordered, not even those of
//! one transfer. A caller that needs an order must wait for the end of one transfer before the next.

mod flow;
mod transfer;

use crate::cipher::TAG_BYTES;
use crate::congestion::{Congestion, CongestionParameters};
use crate::initiator::{Completion, Initiator, ReadData, ServiceClass, SlotId, Terms};
use crate::keys::OperationType;
use crate::packet::HEADER_BYTES;
use crate::path_mtu::PathMtu;
use crate::status::Status;
use flow::Flow;
use foldhash::fast::RandomState;
use portcullis_errors::{Coded, ErrorCode};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use transfer::{Part, UnderWay};

pub use transfer::{Transfer, TransferEnd, TransferId};

/// Target delay of a congestion window, in round trips.
const TARGET_ROUND_TRIPS: u32 = 4;
/// The shortest target. Processes that share processors wait that long for one, at both ends, and a window that took
/// this for congestion would shrink further the less work there is.
const TARGET_LEAST: Duration = Duration::from_millis(10);

/// Factor by which the last repeat of an operation waits longer for its answer than the first try. If an end waits for
/// a processor, all answers are late, and repeats with the first time-out would all end before their answers.
pub const REPEAT_TIMEOUTS_MAX: u32 = 8;

/// The sizes and the pace of an executor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExecutorLimits {
    /// Transfers that may be in progress or wait.
    pub transfers: usize,
    /// Time that a transfer may go on beginning operations while none of them succeeds. Operations in progress then
    /// still reach their own end. A transfer whose operations succeed goes on, however long its bytes take on their
    /// path. Time in which the executor was not called although work was due does not count: its process waited for a
    /// processor.
    pub patience: Duration,
    /// Time that commands wait on this host when it is not congested (`TARGET_DELAY` for `issue_delay`).
    pub local_target: Duration,
    /// Time that operations take beyond this host when nothing is congested (the target for `remote_delay`).
    pub remote_target: Duration,
    /// The round trip, until one is measured.
    pub rtt: Duration,
}

impl ExecutorLimits {
    /// Returns the limits for paths with this round trip, for 1,024 transfers that go on for two seconds. The targets
    /// are a few round trips (1RMA §6.1), but not shorter than the time for which processes wait for a processor.
    #[must_use]
    pub fn for_round_trip(rtt: Duration) -> Self {
        let target = (rtt * TARGET_ROUND_TRIPS).max(TARGET_LEAST);
        let patience = Duration::from_secs(2);
        Self { transfers: 1024, patience, local_target: target, remote_target: target, rtt }
    }
}

/// Reaction of an executor to the delays that it measures, and its initial state. The paper leaves the numbers open.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// The windows before the first measurement, in operations.
    pub initial: f64,
    /// The smallest window, in operations. Below one, operations are spaced out.
    pub least: f64,
    /// The largest window, in operations.
    pub most: f64,
    /// Number of operations that may begin at once although the pace spaces them out. Otherwise a caller that checks
    /// the time only now and then would fall behind.
    pub burst: u32,
    /// The delays that steer a destination's window.
    pub signal: Signal,
}

/// Selects the delays to which the windows react.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Signal {
    /// This host's window reacts to `issue_delay`, a destination's to the rest of `total_delay` (1RMA §6).
    Apart,
    /// There is no window for this host. A destination's window reacts to `total_delay` and to all failures, and its
    /// target is the sum of both targets. Congestion control that cannot separate the two delays works like this: for
    /// comparisons (1RMA Fig. 15c).
    Together,
}

impl Default for Pace {
    fn default() -> Self {
        let CongestionParameters { initial, least, most, .. } = CongestionParameters::new(Duration::ZERO);
        Self { initial, least, most, burst: 4, signal: Signal::Apart }
    }
}

impl Pace {
    /// Returns the pace for hosts whose processes share processors. Some operations begin together, so that their
    /// datagrams are sent with one system call, and a window that has shrunk recovers soon.
    #[must_use]
    pub fn for_shared_processors() -> Self {
        Self { initial: 16.0, least: 0.1, burst: 32, ..Self::default() }
    }

    fn window(&self, target: Duration) -> Congestion {
        let Self { initial, least, most, .. } = *self;
        Congestion::new(CongestionParameters { initial, least, most, ..CongestionParameters::new(target) })
    }
}

/// Counters of the outcomes of an executor's operations, including repeated ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ExecutorCounters {
    /// Operations that ended with `OK`.
    pub ok: u64,
    /// Operations that ended with `REMOTE_AUTHENTICATION_FAILURE`.
    pub refused: u64,
    /// Operations that ended with `NACK`.
    pub nacks: u64,
    /// Operations that ended with `TIMEOUT`.
    pub timeouts: u64,
    /// Operations that ended with `DISPATCH_TIMEOUT`.
    pub dispatch_timeouts: u64,
    /// The sum of `issue_delay` of the operations that ended with `OK`.
    pub issue_delay: Duration,
    /// The sum of `total_delay` of the operations that ended with `OK`.
    pub total_delay: Duration,
}

impl ExecutorCounters {
    fn count(&mut self, completion: &Completion) {
        match completion.status {
            Status::Ok => {
                self.ok += 1;
                self.issue_delay += completion.issue_delay;
                self.total_delay += completion.total_delay;
            }
            Status::RemoteAuthenticationFailure => self.refused += 1,
            Status::Nack => self.nacks += 1,
            Status::Timeout => self.timeouts += 1,
            Status::DispatchTimeout => self.dispatch_timeouts += 1,
        }
    }
}

/// Reason for which a transfer was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotBegun {
    /// The maximum number of transfers is in progress.
    #[error("all {0} transfers are under way: wait for some to end")]
    Full(usize),
    /// The transfer moves no bytes.
    #[error("a transfer moves at least one byte")]
    Empty,
}

impl Coded for NotBegun {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Full(_) => ErrorCode::QueueFull,
            Self::Empty => ErrorCode::InvalidArgument,
        }
    }
}

/// A map whose hash need not resist chosen keys: the client itself chooses them, or its node does.
pub(crate) type OwnMap<K, V> = HashMap<K, V, RandomState>;

/// A client's transfers, over an initiator of its own.
#[derive(Debug)]
pub struct Executor {
    initiator: Initiator,
    limits: ExecutorLimits,
    pace: Pace,
    local: Congestion,
    flows: OwnMap<(SocketAddr, OperationType), Flow>,
    /// The flows that have operations to begin, each once, in order of their turns.
    turns: VecDeque<(SocketAddr, OperationType)>,
    transfers: OwnMap<TransferId, UnderWay>,
    parts: OwnMap<SlotId, (TransferId, Part, usize)>,
    /// The size of datagrams on the path to one node, if it is discovered repeatedly.
    path: Option<PathMtu>,
    /// Time of the last call of the executor.
    called: Duration,
    /// Deadlines of transfers, the earliest first. Some transfers have ended before, and some have got more time since.
    deadlines: VecDeque<(Duration, TransferId)>,
    next_id: u64,
    ends: VecDeque<TransferEnd>,
    counters: ExecutorCounters,
}

impl Executor {
    /// Creates an executor without transfers. The initiator must have no commands.
    #[must_use]
    pub fn new(initiator: Initiator, limits: ExecutorLimits) -> Self {
        Self::with_pace(initiator, limits, Pace::default())
    }

    /// Creates an executor without transfers, with this pace. The initiator must have no commands.
    #[must_use]
    pub fn with_pace(initiator: Initiator, limits: ExecutorLimits, pace: Pace) -> Self {
        assert_eq!(initiator.pending(), 0, "all operations of the initiator are the executor's");
        // If the signals are not separate, this host's window receives no delays, so it must never be the narrower one.
        let local = match pace.signal {
            Signal::Apart => pace,
            Signal::Together => Pace { initial: f64::MAX, most: f64::MAX, ..pace },
        };
        Self {
            initiator,
            limits,
            pace,
            local: local.window(limits.local_target),
            flows: OwnMap::default(),
            turns: VecDeque::new(),
            transfers: OwnMap::default(),
            parts: OwnMap::default(),
            path: None,
            called: Duration::ZERO,
            deadlines: VecDeque::new(),
            next_id: 0,
            ends: VecDeque::new(),
            counters: ExecutorCounters::default(),
        }
    }

    /// Makes the executor discover repeatedly how long datagrams the path to one node carries. For other nodes the
    /// initiator's limits define the size of datagrams.
    #[must_use]
    pub fn with_path(mut self, path: PathMtu) -> Self {
        self.path = Some(path);
        self
    }

    /// Returns the path whose size of datagrams is discovered repeatedly, if any.
    #[must_use]
    pub fn path(&self) -> Option<&PathMtu> {
        self.path.as_ref()
    }

    /// Notes that the system refuses datagrams of `bytes` bytes to `to`. The operations that lost them time out.
    pub fn handle_too_long(&mut self, to: SocketAddr, bytes: usize, now: Duration) {
        if let Some(path) = self.path.as_mut().filter(|path| path.to() == to) {
            path.too_long(bytes, now);
        }
    }

    /// Returns the counters of its operations.
    #[must_use]
    pub fn counters(&self) -> ExecutorCounters {
        self.counters
    }

    /// Accepts a transfer, and begins as many of its operations as the windows allow.
    ///
    /// # Errors
    /// There is no room, or the transfer moves no bytes. The transfer is returned.
    pub fn begin(
        &mut self,
        transfer: Transfer,
        now: Duration,
    ) -> Result<TransferId, (NotBegun, Box<Transfer>)> {
        if self.transfers.len() >= self.limits.transfers {
            return Err((NotBegun::Full(self.limits.transfers), Box::new(transfer)));
        }
        if transfer.is_empty() {
            return Err((NotBegun::Empty, Box::new(transfer)));
        }
        self.excuse_absence(now);
        let id = TransferId(self.next_id);
        self.next_id += 1;
        let until = now + self.limits.patience;
        let under_way = UnderWay::new(transfer, until);
        self.deadlines.push_back((until, id));
        let (key, class) = (under_way.flow(), under_way.class());
        self.transfers.insert(id, under_way);
        self.enqueue(key, id, class);
        self.proceed(now);
        Ok(id)
    }

    /// Whether a transfer would have its turn soon: no more transfers wait than may be in progress. Otherwise the
    /// caller should keep the transfer, since it can still withdraw it when its permission ends. A transfer that waits
    /// here is sent in any case, is refused, and has taken the place of one whose permission lasts.
    #[must_use]
    pub fn takes(&self, to: SocketAddr, operation: OperationType) -> bool {
        self.transfers.len() < self.limits.transfers
            && self.flows.get(&(to, operation)).is_none_or(|flow| {
                let waits = u32::try_from(flow.waits()).unwrap_or(u32::MAX);
                f64::from(waits) < flow.window().min(self.local.window()).max(1.0)
            })
    }

    /// Number of transfers that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.transfers.len()
    }

    /// Number of operations in progress, of all transfers.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.parts.len()
    }

    /// Returns the transfer whose operation has this slot. Each of the operation's packets contains the slot.
    #[must_use]
    pub fn transfer_in(&self, slot: SlotId) -> Option<TransferId> {
        self.parts.get(&slot).map(|&(id, ..)| id)
    }

    /// Number of operations of a destination and direction that may be in progress, in this host's window and in the
    /// flow's.
    #[must_use]
    pub fn windows(&self, to: SocketAddr, operation: OperationType) -> (f64, Option<f64>) {
        (self.local.window(), self.flows.get(&(to, operation)).map(Flow::window))
    }

    /// Appends the next packet to send to `packet`, and returns its destination.
    pub fn poll_transmit(&mut self, packet: &mut Vec<u8>) -> Option<SocketAddr> {
        self.initiator.poll_transmit(packet).or_else(|| self.path.as_mut()?.poll_probe(packet))
    }

    /// Returns the next transfer that has ended.
    pub fn poll_end(&mut self) -> Option<TransferEnd> {
        self.ends.pop_front()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has work to do next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let paced = self.turns.iter().filter_map(|key| {
            let flow = &self.flows[key];
            flow.has_room().then(|| flow.next_begin())
        });
        let paced = if self.has_local_room() { paced.min() } else { None };
        let patience = self.deadlines.front().map(|&(deadline, _)| deadline);
        // A path that is not in use causes no wake-ups.
        let path = self.path.as_ref().filter(|_| !self.transfers.is_empty());
        let path = path.and_then(PathMtu::next_timeout);
        paced.into_iter().chain(patience).chain(path).chain(self.initiator.next_timeout()).min()
    }

    /// Ends operations and transfers that have timed out, and begins operations that may begin now. The caller must
    /// first pass the packets that have arrived: an answer that waits in a socket is in time.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.excuse_absence(now);
        if let Some(path) = &mut self.path {
            path.handle_timeout(now);
        }
        self.initiator.handle_timeout(now);
        self.collect(now);
    }

    /// Handles a packet, which is decrypted in place. Returns its data if it is a part of a read.
    pub fn handle_packet<'a>(
        &mut self,
        from: SocketAddr,
        packet: &'a mut [u8],
        now: Duration,
    ) -> Option<ReadData<'a, TransferId>> {
        self.excuse_absence(now);
        if self.path.as_mut().is_some_and(|path| path.handle_answer(from, packet, now)) {
            return None;
        }
        let data = self.initiator.handle_packet(from, packet, now).map(|data| self.in_transfer(data));
        self.collect(now);
        data
    }

    /// Returns the data of an operation as data of its transfer.
    fn in_transfer<'a>(&self, data: ReadData<'a, SlotId>) -> ReadData<'a, TransferId> {
        let (of, part, _) = self.parts.get(&data.of).expect("each operation is a transfer's");
        ReadData { of: *of, offset: part.offset + data.offset, bytes: data.bytes }
    }

    /// Extends the deadlines of transfers by the time in which work was due and the executor was not called.
    fn excuse_absence(&mut self, now: Duration) {
        let away = now.saturating_sub(self.called);
        if away > self.initiator.timeout() {
            let late = self.next_timeout().map_or(Duration::ZERO, |due| now.saturating_sub(due));
            self.deadlines.iter_mut().for_each(|(deadline, _)| *deadline += late);
            self.transfers.values_mut().for_each(|transfer| transfer.excuse(late));
        }
        self.called = self.called.max(now);
    }

    /// Returns the terms of an operation on a part.
    fn terms(&self, to: SocketAddr, part: Part) -> Terms {
        let path = self.path.as_ref().filter(|path| path.to() == to);
        let datagram_max = path.map_or(usize::MAX, |path| {
            // A repeat passes the path even if the path has changed meanwhile.
            if part.lost > 0 { path.base() } else { path.datagram_max() }
        });
        let factor = (1 << part.lost.saturating_sub(1).min(u32::BITS - 1)).min(REPEAT_TIMEOUTS_MAX);
        Terms { datagram_max, timeout: self.initiator.timeout() * factor }
    }

    fn collect(&mut self, now: Duration) {
        while let Some(completion) = self.initiator.poll_completion() {
            self.take_completion(completion, now);
        }
        self.give_up(now);
        self.proceed(now);
    }

    fn take_completion(&mut self, completion: Completion, now: Duration) {
        self.counters.count(&completion);
        let (id, part, longest) =
            self.parts.remove(&completion.slot).expect("each operation is a transfer's");
        let transfer = self.transfers.get_mut(&id).expect("a transfer ends after its operations");
        let (key, class, waited) = (transfer.flow(), transfer.class(), transfer.has_more());
        let flow = self.flows.get_mut(&key).expect("the flow of a transfer that is under way is there");
        flow.ended(&completion, &mut self.local, now);
        if let Some(path) = self.path.as_mut().filter(|path| path.to() == key.0) {
            path.ended(key.1, longest, &completion, now);
        }
        if completion.status == Status::Ok {
            transfer.succeeded(now + self.limits.patience);
        }
        transfer.take(part, completion);
        let (has_more, is_done) = (transfer.has_more(), transfer.is_done());
        if waited && !has_more {
            flow.remove(id);
        }
        if is_done {
            self.end(id);
        } else if has_more && !waited {
            // A part of the transfer must be repeated.
            self.enqueue(key, id, class);
        }
    }

    /// Prevents transfers whose time is over from beginning more operations.
    fn give_up(&mut self, now: Duration) {
        while let Some((_, id)) = self.deadlines.pop_front_if(|&mut (deadline, _)| deadline <= now) {
            let Some(transfer) = self.transfers.get_mut(&id) else { continue };
            let until = transfer.until();
            if until > now {
                let place = self.deadlines.partition_point(|&(deadline, _)| deadline <= until);
                self.deadlines.insert(place, (until, id));
                continue;
            }
            transfer.give_up();
            let (key, is_done) = (transfer.flow(), transfer.is_done());
            self.flows.get_mut(&key).expect("a transfer has a flow").remove(id);
            if is_done {
                self.end(id);
            }
        }
        // Deadlines of transfers that have ended are of no use.
        while self.deadlines.pop_front_if(|&mut (_, id)| !self.transfers.contains_key(&id)).is_some() {}
    }

    fn end(&mut self, id: TransferId) {
        let transfer = self.transfers.remove(&id).expect("it ends once");
        self.ends.push_back(transfer.into_end(id));
    }

    fn enqueue(&mut self, key: (SocketAddr, OperationType), id: TransferId, class: ServiceClass) {
        let (limits, pace) = (&self.limits, &self.pace);
        let flow = self.flows.entry(key).or_insert_with(|| Flow::new(limits, pace));
        flow.push(id, class);
        if !self.turns.contains(&key) {
            self.turns.push_back(key);
        }
    }

    fn has_local_room(&self) -> bool {
        let under_way = u32::try_from(self.parts.len()).expect("operations are fewer than slots");
        self.local.has_room(under_way) && self.initiator.has_free_slot()
    }

    /// Begins operations, flow by flow in turns, while windows and pace allow it.
    fn proceed(&mut self, now: Duration) {
        let mut unable = 0;
        while unable < self.turns.len() && self.has_local_room() {
            let key = self.turns.pop_front().expect("there are turns");
            let local = self.local.window();
            let flow = self.flows.get_mut(&key).expect("a flow with a turn is there");
            if !flow.is_waiting() {
                // The flow gets a turn again with its next transfer.
                continue;
            }
            if !flow.may_begin(now) {
                unable += 1;
                self.turns.push_back(key);
                continue;
            }
            unable = 0;
            let (id, class) = flow.take_next();
            let transfer = self.transfers.get_mut(&id).expect("a waiting transfer exists");
            let (part, command) = transfer.next_command();
            if transfer.has_more() {
                flow.push(id, class);
            }
            if flow.is_waiting() {
                self.turns.push_back(key);
            }
            flow.begun(local, now);
            let terms = self.terms(key.0, part);
            let longest = terms.datagram_max.min(part.length + HEADER_BYTES + TAG_BYTES);
            let issued = self.initiator.issue_on(command, terms, now);
            let slot = issued.expect("there is a slot, and parts have a length");
            self.parts.insert(slot, (id, part, longest));
        }
    }
}

//! A node's NIC in the simulator: the software NIC, and its faults.

use crate::dice::Dice;
use crate::endpoint::{FarEnd, ReachesClients};
use crate::memory::{SimMemory, Touches};
use portcullis_examination::{Around, Hook};
use portcullis_nic::{
    Access, ChainVerb, Completion, CqId, Nic, Operation, PdId, QpAddress, QpChange, QpId, QpState, Region,
    RemoteAddress, VerbsError, Window, WindowBinding, WindowKind, WorkRequest,
};
use portcullis_softnic::SoftNic;
use std::collections::HashMap;
use std::ops::Range;

/// The first of the numbers by which a node knows queue pairs on the NICs of its clients. The node's own queue pairs
/// have smaller numbers.
const FIRST_FAR: u32 = 1 << 31;

/// How often each kind of call fails, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NicFaults {
    /// A bind that is posted fails.
    pub bind: u64,
    /// A step of a queue pair fails.
    pub modify: u64,
    /// A region cannot be registered.
    pub register: u64,
    /// A window cannot be allocated.
    pub window: u64,
    /// A poll returns nothing.
    pub poll: u64,
}

/// A queue pair of a client that is gone.
const GONE: VerbsError = VerbsError::NoSuch { what: "queue pair" };

/// The software NIC of a simulated machine.
pub(crate) type SimNic = SoftNic<SimMemory>;

/// A node's NIC. Calls on the software NIC inside it are not recorded and do not fail.
pub(crate) type NodeNic = Around<SimNic, Disturbance>;

/// The recording of a node's NIC, and its faults.
#[derive(Debug)]
pub(crate) struct Disturbance {
    /// Accesses to the pool, which is the first memory that the node allocates.
    pub pool: Option<(SimMemory, Touches)>,
    /// The chunks that the NIC hands out, and the accesses to them by clients.
    pub chunks: Option<(SimMemory, Touches)>,
    /// Queue pairs of clients that the node connects, by the node's numbers for them.
    far: HashMap<QpId, FarEnd>,
    /// Queue pairs of clients whose state the node has changed since [`Disturbance::take_changed`].
    changed: Vec<QpId>,
    pub faults: NicFaults,
    /// The largest depth of the NIC's completion queues. A node requests far more than the few machines need.
    pub completions_max: u32,
    dice: Dice,
}

impl Disturbance {
    /// Creates a disturbance without faults. The dice decide on later ones.
    pub fn new(dice: Dice) -> Self {
        Self {
            pool: None,
            chunks: None,
            far: HashMap::new(),
            changed: Vec::new(),
            faults: NicFaults::default(),
            completions_max: 1 << 14,
            dice,
        }
    }

    /// Returns the queue pairs of clients whose connections the node has ended or made since the last call, and
    /// whether each works now.
    pub fn take_changed(&mut self) -> Vec<(QpId, bool)> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable_by_key(|qp| qp.0);
        changed.dedup();
        let works = |qp: &QpId| {
            let end = self.far.get(qp).filter(|end| !end.is_gone.get());
            end.is_some_and(|end| end.nic.borrow().qp_state(end.qp) == Ok(QpState::ReadyToSend))
        };
        changed.into_iter().map(|qp| (qp, works(&qp))).collect()
    }

    /// Forgets the queue pairs of a client that is gone.
    pub fn let_go(&mut self, ends: &[QpId]) {
        self.far.retain(|qp, _| !ends.contains(qp));
    }

    fn fails(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && self.dice.per_mille(per_mille)
    }

    /// Whether a memory is not the node's pool.
    fn is_of_chunks(&self, memory: &SimMemory) -> bool {
        self.pool.as_ref().is_some_and(|(pool, _)| !pool.is_same(memory))
    }

    fn broken<T>() -> Result<T, VerbsError> {
        Err(VerbsError::Machine("the simulated NIC fails".to_owned()))
    }
}

/// Returns a bind that every NIC refuses, because it reaches beyond every region.
fn spoilt(request: &WorkRequest) -> WorkRequest {
    let operation = match request.operation {
        Operation::BindWindow(binding) => {
            Operation::BindWindow(WindowBinding { length: u64::MAX, ..binding })
        }
        Operation::Chain(ChainVerb::BindWindow { binding, queue_pair }) => {
            let binding = WindowBinding { length: u64::MAX, ..binding };
            Operation::Chain(ChainVerb::BindWindow { binding, queue_pair })
        }
        other => other,
    };
    WorkRequest { operation, ..*request }
}

impl ReachesClients for Disturbance {
    fn take_over(&mut self, ends: Vec<FarEnd>) -> Vec<QpId> {
        let mut numbers = Vec::new();
        for end in ends {
            let number = (FIRST_FAR..).map(QpId).find(|number| !self.far.contains_key(number));
            let number = number.expect("a node has fewer clients");
            self.far.insert(number, end);
            numbers.push(number);
        }
        numbers
    }
}

impl Hook<SimNic> for Disturbance {
    fn qp_address(&self, nic: &SimNic, qp: QpId) -> Result<QpAddress, VerbsError> {
        match self.far.get(&qp) {
            Some(end) if end.is_gone.get() => Err(GONE),
            Some(end) => end.nic.borrow().qp_address(end.qp),
            None => nic.qp_address(qp),
        }
    }

    fn allocate_memory(&mut self, nic: &mut SimNic, length: u64) -> Result<SimMemory, VerbsError> {
        let memory = nic.allocate_memory(length)?;
        if self.pool.is_some() {
            return Ok(memory);
        }
        let (noted, touches) = memory.noted();
        self.pool = Some((memory, touches));
        Ok(noted)
    }

    fn register_region(
        &mut self,
        nic: &mut SimNic,
        pd: PdId,
        memory: &SimMemory,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        if self.fails(self.faults.register) {
            return Self::broken();
        }
        // Windows over this region are the only access that clients have to the chunks.
        if access.contains(Access::WINDOW_BIND) && self.is_of_chunks(memory) {
            let (noted, touches) = memory.noted();
            self.chunks = Some((memory.unnoted(), touches));
            return nic.register_region(pd, &noted, span, base, access);
        }
        nic.register_region(pd, memory, span, base, access)
    }

    fn allocate_window(
        &mut self,
        nic: &mut SimNic,
        pd: PdId,
        kind: WindowKind,
    ) -> Result<Window, VerbsError> {
        if self.fails(self.faults.window) {
            return Err(VerbsError::Exhausted { what: "windows", limit: 0 });
        }
        nic.allocate_window(pd, kind)
    }

    fn create_cq(&mut self, nic: &mut SimNic, depth: u32) -> Result<CqId, VerbsError> {
        nic.create_cq(depth.min(self.completions_max))
    }

    fn modify_qp(&mut self, nic: &mut SimNic, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        // Only the way up fails: a queue pair can always be stopped.
        let up = matches!(change, QpChange::ReadyToReceive { .. } | QpChange::ReadyToSend { .. });
        if up && self.fails(self.faults.modify) {
            return Self::broken();
        }
        let Some(end) = self.far.get(&qp) else { return nic.modify_qp(qp, change) };
        self.changed.push(qp);
        if end.is_gone.get() { Err(GONE) } else { end.nic.borrow_mut().modify_qp(end.qp, change) }
    }

    fn post_send(
        &mut self,
        nic: &mut SimNic,
        qp: QpId,
        requests: &[WorkRequest],
    ) -> Result<usize, VerbsError> {
        let binds = |request: &WorkRequest| {
            matches!(
                request.operation,
                Operation::BindWindow(_) | Operation::Chain(ChainVerb::BindWindow { .. })
            )
        };
        if self.faults.bind == 0 || !requests.iter().any(binds) {
            return nic.post_send(qp, requests);
        }
        let per_mille = self.faults.bind;
        let requests: Vec<WorkRequest> = requests
            .iter()
            .map(|request| if self.fails(per_mille) { spoilt(request) } else { *request })
            .collect();
        nic.post_send(qp, &requests)
    }

    fn poll(
        &mut self,
        nic: &mut SimNic,
        cq: CqId,
        most: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        if self.fails(self.faults.poll) {
            return Ok(0);
        }
        nic.poll(cq, most, into)
    }
}

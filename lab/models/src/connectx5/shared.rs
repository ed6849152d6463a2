//! Runs whose clients share structures: one structure on each core's node, and real sessions that work on it.
//!
//! Each client runs on a fiber, since sessions wait. Its CPU takes no virtual time, as everywhere in the model.

use super::bench::{Bench, LONG};
use super::inputs::Inputs;
use super::rig::{Program, Rig, SEED, Work};
use crate::time::{MILLISECOND, Nanos};
use portcullis::Session;
use portcullis_client::ClientConfig;
use portcullis_nic::EndpointSize;
use portcullis_node::NodeConfig;
use portcullis_protocol::{Mechanism, Moment, ObjectRef};
use portcullis_sim::{Dice, Fiber, FiberClock, OneProcessor, SimEndpoint, TurnEnd};
use portcullis_structures::Pipeline;
use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) type ModelPipeline = Rc<Pipeline<SimEndpoint, FiberClock>>;

/// The latest virtual time at which all structures must be filled.
const FILLED_BY: Nanos = 100_000 * MILLISECOND;
/// The longest virtual time in which clients open a structure, and in which what they have begun ends.
const SETTLED_IN: Nanos = 10_000 * MILLISECOND;
/// How long a client waits for the next stage of the run if the rig does not call it.
const FOR_EVER: Nanos = LONG.0 * 1_000;
/// The most control messages of a client at a time.
const CONTROL_DEPTH: u32 = 16;
/// Room in a node's control message beside the data.
const MESSAGE_BYTES: u32 = 192;

/// The work of the clients, and its parameters.
pub(super) trait Job: Clone + Debug + Send + 'static {
    type Structure;

    /// Creates the structure and fills it.
    fn make(&self, pipeline: &ModelPipeline) -> (Self::Structure, ObjectRef);

    fn open(&self, pipeline: &ModelPipeline, head: ObjectRef) -> Self::Structure;

    /// Executes one operation.
    async fn perform(&self, structure: &Self::Structure, dice: &RefCell<Dice>);
}

/// A run of a job.
#[derive(Clone, Debug)]
pub(super) struct SharedRun<J> {
    pub job: J,
    pub config: NodeConfig,
    /// The number of clients on each machine.
    pub clients: u64,
    /// The most operations of a client at a time.
    pub at_once: usize,
    /// The most bytes that an operation moves.
    pub bytes: u32,
    pub warm_up: Nanos,
    pub measured: Nanos,
}

/// The measurements of a run.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// The time of each operation that ended in the measured span, in ns.
    times: Vec<Nanos>,
    pub work: Work,
    span: Nanos,
}

impl Measured {
    /// Operations per second, in millions.
    pub fn mops(&self) -> f64 {
        self.times.len() as f64 * 1e3 / self.span as f64
    }

    /// Returns the time within which this percentage of the operations ends, in µs.
    pub fn percentile(&mut self, percent: usize) -> f64 {
        let Some(last) = self.times.len().checked_sub(1) else { return 0.0 };
        let (_, time, _) = self.times.select_nth_unstable(last * percent / 100);
        *time as f64 / 1e3
    }

    /// Returns a count per operation.
    pub fn each(&self, count: u64) -> f64 {
        super::bench::ratio(count, self.times.len() as u64)
    }
}

/// State through which the fibers of a run and the rig inform each other.
#[derive(Debug, Default)]
struct Stage {
    /// The virtual time, in ns.
    now: AtomicU64,
    /// The structure of each core, once it is filled.
    heads: Mutex<Vec<ObjectRef>>,
    ready: AtomicUsize,
    go: AtomicBool,
    measures: AtomicBool,
    over: AtomicBool,
    ended: AtomicUsize,
    times: Mutex<Vec<Nanos>>,
}

impl Stage {
    fn now(&self) -> Nanos {
        self.now.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn note(&self, time: Nanos) {
        if self.measures.load(Ordering::Relaxed) {
            self.times.lock().unwrap_or_else(PoisonError::into_inner).push(time);
        }
    }

    fn heads(&self) -> std::sync::MutexGuard<'_, Vec<ObjectRef>> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client on its fiber.
#[derive(Debug)]
struct Performer {
    fiber: Fiber,
    stage: Arc<Stage>,
}

impl Program for Performer {
    fn turn(&mut self, now: Nanos) -> Option<Nanos> {
        self.stage.now.store(now, Ordering::Relaxed);
        match self.fiber.turn(Moment(now / 1000)) {
            TurnEnd::Waits(time) => Some(now + time.max(1)),
            TurnEnd::Ended => None,
            TurnEnd::Panicked(words) => panic!("a client of the model panicked: {words}"),
        }
    }
}

/// The part of a client that runs on its fiber.
struct Part<J> {
    job: J,
    stage: Arc<Stage>,
    at_once: usize,
    /// The structure that the client works on. Without one the client creates it.
    head: Option<ObjectRef>,
    dice: Dice,
}

impl<J: Job> Part<J> {
    fn run(self, endpoint: SimEndpoint, clock: &FiberClock) {
        let config = ClientConfig { operations_max: 64, backlog_max: 64, ..ClientConfig::default() };
        let session = Session::over(endpoint, 0, config, clock.clone()).expect("the arena is large enough");
        let pipeline = Rc::new(Pipeline::new(session));
        let structure = match self.head {
            Some(head) => self.job.open(&pipeline, head),
            None => {
                let (structure, head) = self.job.make(&pipeline);
                self.stage.heads().push(head);
                structure
            }
        };
        self.stage.ready.fetch_add(1, Ordering::Relaxed);
        while !self.stage.go.load(Ordering::Relaxed) {
            clock.pass(FOR_EVER);
        }
        let dice = RefCell::new(self.dice);
        let operations = async || {
            while !self.stage.is_over() {
                let begun = self.stage.now();
                self.job.perform(&structure, &dice).await;
                self.stage.note(self.stage.now() - begun);
            }
        };
        pipeline.run(self.at_once, (0..self.at_once).map(|_| operations()), |()| ());
        self.stage.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl<J: Job> SharedRun<J> {
    /// Creates a run with the paper's clients under `mechanism`. Each client has several operations at a time, so
    /// that the clients are not the bottleneck.
    pub fn new(inputs: &Inputs, job: J, mechanism: Mechanism, measured: Nanos) -> Self {
        let config = NodeConfig { pool_bytes: 64 << 20, ..Bench::new(inputs, mechanism, measured).config };
        Self {
            job,
            config,
            clients: inputs.clients,
            at_once: usize::try_from(inputs.crowd / inputs.clients.max(1)).unwrap_or(1).max(1),
            bytes: 4 << 10,
            warm_up: measured,
            measured,
        }
    }

    fn size(&self) -> EndpointSize {
        // Bytes that the node copies are in its messages.
        let copied = if self.config.mechanism == Mechanism::NodeCopy { self.bytes } else { 0 };
        let message_bytes = MESSAGE_BYTES + copied;
        let messages = 2 * u64::from(CONTROL_DEPTH) * u64::from(message_bytes);
        EndpointSize {
            chunk_queue_pairs: 0,
            data_queue_pairs: 2,
            send_depth: 32,
            control_depth: CONTROL_DEPTH,
            message_bytes,
            arena_bytes: messages + (1 << 20) + 128 * u64::from(self.bytes),
        }
    }

    /// # Panics
    /// A client fails, or does not end in time, which is a bug of the model.
    pub fn run(&self, inputs: &Inputs) -> Measured {
        let _processor = OneProcessor::take();
        let mut rig = Rig::new(inputs, &self.config, None);
        let stage = Arc::new(Stage::default());
        let cores = rig.cores();
        let clients = usize::try_from(self.clients * inputs.machines).unwrap_or(0).max(cores);
        // The structures are created one after the other, so that each core's structure is the next in the list.
        for core in 0..cores {
            self.attach(&mut rig, &stage, (core, core), inputs, None);
            rig.start();
            let filled = rig.run(FILLED_BY, || stage.heads().len() > core);
            assert!(filled, "the structure of core {core} is not filled at {} ns", rig.now);
        }
        let heads = stage.heads().clone();
        for client in cores..clients {
            let core = client % cores;
            self.attach(&mut rig, &stage, (client, core), inputs, heads.get(core).copied());
        }
        rig.call_all(self.warm_up / 2);
        let ready = || stage.ready.load(Ordering::Relaxed) == clients;
        assert!(rig.run(rig.now + SETTLED_IN, ready), "not all clients have opened their structure");
        stage.go.store(true, Ordering::Relaxed);
        rig.call_all(self.warm_up / 2);
        let begin = rig.now + self.warm_up;
        rig.run(begin, || false);
        let before = rig.work();
        stage.measures.store(true, Ordering::Relaxed);
        rig.run(begin + self.measured, || false);
        stage.measures.store(false, Ordering::Relaxed);
        let work = rig.work().since(&before);
        stage.over.store(true, Ordering::Relaxed);
        let ended = || stage.ended.load(Ordering::Relaxed) == clients;
        assert!(rig.run(rig.now + SETTLED_IN, ended), "not all clients have ended");
        let times = std::mem::take(&mut *stage.times.lock().unwrap_or_else(PoisonError::into_inner));
        Measured { times, work, span: self.measured }
    }

    fn attach(
        &self,
        rig: &mut Rig,
        stage: &Arc<Stage>,
        (client, core): (usize, usize),
        inputs: &Inputs,
        head: Option<ObjectRef>,
    ) {
        let machines = usize::try_from(inputs.machines).unwrap_or(1).max(1);
        let dice = |stream: u64| Dice::new(SEED, stream + client as u64);
        let part = Part {
            job: self.job.clone(),
            stage: Arc::clone(stage),
            at_once: self.at_once,
            head,
            dice: dice(200_000),
        };
        rig.attach_program(client % machines, core, self.size(), |mut endpoint| {
            let fiber = Fiber::start(dice(300_000), move |clock| {
                endpoint.waits_on(clock.clone());
                part.run(endpoint, &clock);
            });
            let fiber = fiber.expect("this machine can start a thread");
            Box::new(Performer { fiber, stage: Arc::clone(stage) })
        });
    }
}

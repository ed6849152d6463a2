//! One run of a microbenchmark: set-up, warm-up, and measurement over a span of virtual time.

use super::inputs::Inputs;
use super::rig::{Rig, SEED, Work};
use super::script::{Common, Score, Script, Step};
use crate::time::{MICROSECOND, MILLISECOND, Nanos};
use portcullis_client::ClientConfig;
use portcullis_node::{NodeConfig, Quota, Reductions};
use portcullis_protocol::{Lifetime, Mechanism};
use portcullis_sim::Dice;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The latest virtual time at which a run must be ready for the measurement.
const READY_BY: Nanos = 10_000 * MILLISECOND;

/// A lease that does not end during a run.
pub(super) const LONG: Lifetime = Lifetime::seconds(100);

#[derive(Clone, Debug)]
pub(super) struct Bench {
    pub config: NodeConfig,
    /// Number of clients on each machine.
    pub clients: u64,
    pub queue_pairs: u32,
    /// Number of objects that each core starts with.
    pub objects: u64,
    pub object_bytes: u64,
    /// Whether each client keeps a permission over its own object for the whole run.
    pub holds: bool,
    pub steps: Vec<Step>,
    /// If set: every n-th client runs these steps instead.
    pub others: Option<(usize, Vec<Step>)>,
    /// If set: how often the node sends each client's queue pair a heartbeat.
    pub heartbeat: Option<Nanos>,
    /// The time before the measurement.
    pub warm_up: Nanos,
    pub measured: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub score: Score,
    pub work: Work,
    pub measured: Nanos,
    pub cores: u64,
}

impl Outcome {
    /// Returns a count as a rate per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.measured as f64
    }

    /// Returns the mean time of a round, in µs.
    pub fn round_us(&self) -> f64 {
        ratio(self.score.round_ns, self.score.rounds) / 1e3
    }

    /// Returns the mean time to get a permission, in µs.
    pub fn grant_us(&self) -> f64 {
        ratio(self.score.grant_ns, self.score.grants) / 1e3
    }

    /// Returns the cores' load, from 0 to 1.
    pub fn busy(&self) -> f64 {
        ratio(self.work.busy, self.cores * self.measured)
    }
}

pub(super) fn ratio(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { count as f64 / of as f64 }
}

impl Bench {
    /// Creates a run under `mechanism`, with all reductions and the values of the inputs.
    pub fn new(inputs: &Inputs, mechanism: Mechanism, measured: Nanos) -> Self {
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let config = NodeConfig {
            mechanism,
            reductions: Reductions::default(),
            pool_bytes: 16 << 20,
            headers: 16_384,
            longest_lifetime: LONG,
            quota: Quota { permissions_max: u64::MAX, ..Quota::default() },
            windows_ready: 2_048,
            requests_per_turn: narrow(inputs.batch),
            ..NodeConfig::default()
        };
        Self {
            config,
            clients: inputs.clients,
            queue_pairs: 2,
            objects: 1_024,
            object_bytes: 64,
            holds: false,
            steps: Vec::new(),
            others: None,
            heartbeat: None,
            warm_up: (measured / 2).max(300 * MICROSECOND),
            measured,
        }
    }

    pub fn run(&self, inputs: &Inputs) -> Outcome {
        let mut rig = Rig::new(inputs, &self.config, self.heartbeat);
        let cores = rig.cores();
        let clients = usize::try_from(self.clients * inputs.machines).unwrap_or(0);
        let common = Rc::new(Common {
            objects: (0..cores).map(|_| RefCell::default()).collect(),
            ready: Cell::new(0),
            go: Cell::new(false),
        });
        let machines = usize::try_from(inputs.machines).unwrap_or(1).max(1);
        let mut scripts = Vec::new();
        for client in 0..clients {
            let core = client % cores;
            let crowd = (clients - core).div_ceil(cores) as u64;
            let steps = match &self.others {
                Some((every, steps)) if (client / cores).is_multiple_of(*every) => steps,
                _ => &self.steps,
            };
            let dice = Dice::new(SEED, 1 + client as u64);
            let once = self.preparation(self.objects.div_ceil(crowd));
            let script = Script::new(&once, steps, core, Rc::clone(&common), dice);
            let script = Rc::new(RefCell::new(script));
            scripts.push(Rc::clone(&script));
            let config = ClientConfig { operations_max: 16, backlog_max: 16, ..ClientConfig::default() };
            rig.attach(client % machines, core, (self.queue_pairs, config), script);
        }
        rig.start();
        let ready = rig.run(READY_BY, || common.ready.get() == clients);
        assert!(ready, "{} of {clients} clients are ready at {} ns", common.ready.get(), rig.now);
        common.go.set(true);
        rig.call_all(self.warm_up / 2);
        let total = || {
            let mut total = Score::default();
            scripts.iter().for_each(|script| total.add(&script.borrow().score));
            total
        };
        let begin = rig.now + self.warm_up;
        rig.run(begin, || false);
        let (score, work) = (total(), rig.work());
        rig.run(begin + self.measured, || false);
        Outcome {
            score: total().since(&score),
            work: rig.work().since(&work),
            measured: self.measured,
            cores: cores as u64,
        }
    }

    fn preparation(&self, objects: u64) -> Vec<Step> {
        let allocate = Step::Allocate { bytes: self.object_bytes, lifetime: LONG };
        if self.holds {
            return vec![allocate, Step::Gather];
        }
        let mut steps = Vec::new();
        for _ in 0..objects {
            steps.extend([allocate, Step::Revoke]);
        }
        steps.push(Step::Gather);
        steps
    }
}

//! Reads that begin at random times, regardless of the results of earlier reads.

use super::bench::{Cluster, exponential};
use super::inputs::OneShotInputs;
use crate::one_shot::Happening;
use crate::time::{MICROSECOND, Nanos};
use portcullis_onerma::{OPERATION_MAX, ServiceClass, Status, TransferId};
use portcullis_sim::Dice;
use std::collections::HashMap;

/// How long a run goes on after the last arrival, so that slow reads are counted too.
const DRAIN: Nanos = 500 * MICROSECOND;

/// An alarm that belongs to no client.
const FAILURE: u64 = u64::MAX;

/// A read that was begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub at: Nanos,
    pub server: usize,
    pub bytes: usize,
    pub class: ServiceClass,
}

/// A read that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub begun: Begun,
    pub client: usize,
    pub at: Nanos,
    pub status: Status,
}

impl Ended {
    pub fn took(&self) -> f64 {
        (self.at - self.begun.at) as f64
    }
}

/// Chooses the next read of a client: its server, its bytes, and its class.
pub(super) type Choose<'a> = &'a mut dyn FnMut(&mut Dice, usize) -> (usize, usize, ServiceClass);

/// The times at which clients begin reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals {
    /// The mean time between two reads of a client, in ns.
    pub mean: f64,
    pub until: Nanos,
}

/// Clients whose reads begin at random times.
pub(super) struct Traffic {
    pub cluster: Cluster,
    dice: Dice,
    under_way: HashMap<(usize, TransferId), Begun>,
    /// The time at which a server invalidates its region, and the server.
    pub fails: Option<(Nanos, usize)>,
    /// The ended reads, in the order of their ends.
    pub ended: Vec<Ended>,
}

impl Traffic {
    pub fn new(cluster: Cluster, inputs: &OneShotInputs) -> Self {
        let dice = Dice::new(inputs.seed, 0x1_4b);
        Self { cluster, dice, under_way: HashMap::new(), fails: None, ended: Vec::new() }
    }

    /// Runs until all reads have ended, or long enough after the last arrival. `react` is called at each end, and may
    /// begin the same read again elsewhere.
    pub fn run(
        &mut self,
        clients: std::ops::Range<usize>,
        arrivals: Arrivals,
        choose: Choose<'_>,
        react: &mut dyn FnMut(&mut Self, Ended),
    ) {
        for client in clients {
            let first = exponential(&mut self.dice, arrivals.mean);
            self.cluster.world.wake(first, client as u64);
        }
        if let Some((at, _)) = self.fails {
            self.cluster.world.wake(at, FAILURE);
        }
        while let Some(happening) = self.cluster.world.step(arrivals.until + DRAIN) {
            match happening {
                Happening::Client(client) => self.collect(client, react),
                Happening::Alarm(FAILURE) => self.fail(),
                Happening::Alarm(client) => {
                    let client = usize::try_from(client).expect("clients are few");
                    let at = self.cluster.world.now();
                    let (server, bytes, class) = choose(&mut self.dice, client);
                    self.begin(client, Begun { at, server, bytes, class });
                    let next = at + exponential(&mut self.dice, arrivals.mean);
                    if next < arrivals.until {
                        self.cluster.world.wake(next, client as u64);
                    }
                }
            }
        }
    }

    fn fail(&mut self) {
        let (_, server) = self.fails.expect("the alarm was set for it");
        let region = self.cluster.world.region(server);
        assert!(self.cluster.world.regions(server).remove(region), "it is there until then");
    }

    /// Begins a read. Its time counts from when it was begun first.
    pub fn begin(&mut self, client: usize, begun: Begun) {
        let id = self.cluster.read(client, begun.server, begun.bytes, begun.class);
        self.under_way.insert((client, id), begun);
    }

    fn collect(&mut self, client: usize, react: &mut dyn FnMut(&mut Self, Ended)) {
        while let Some(end) = self.cluster.world.with_executor(client, |it, _| it.poll_end()) {
            let begun = self.under_way.remove(&(client, end.id)).expect("it was begun");
            let ended = Ended { begun, client, at: self.cluster.world.now(), status: end.status };
            self.ended.push(ended);
            react(self, ended);
        }
    }

    /// Returns the times of reads of this many bytes that succeeded and were begun in a span, in ns.
    pub fn times(&self, bytes: usize, span: std::ops::Range<Nanos>) -> Vec<f64> {
        let counted = self
            .ended
            .iter()
            .filter(|it| it.status == Status::Ok && it.begun.bytes == bytes && span.contains(&it.begun.at));
        counted.map(Ended::took).collect()
    }

    /// Returns the bits per ns, so Gb/s, of reads that ended with success in a span.
    pub fn goodput(&self, span: std::ops::Range<Nanos>) -> f64 {
        let counted = self.ended.iter().filter(|it| it.status == Status::Ok && span.contains(&it.at));
        let bytes: usize = counted.map(|it| it.begun.bytes).sum();
        bytes as f64 * 8.0 / (span.end - span.start) as f64
    }

    /// Returns the number of reads that have not ended with success.
    pub fn failed(&self) -> usize {
        self.under_way.len() + self.ended.iter().filter(|it| it.status != Status::Ok).count()
    }
}

/// Returns the time of one read of this many bytes on an idle network, in ns.
pub(super) fn idle(inputs: &OneShotInputs, bytes: usize) -> f64 {
    let cluster = Cluster::new(inputs, 0..1, 1..2, u64::from(OPERATION_MAX).max(bytes as u64));
    let mut traffic = Traffic::new(cluster, inputs);
    let arrivals = Arrivals { mean: 0.0, until: 0 };
    traffic.run(1..2, arrivals, &mut |_, _| (0, bytes, ServiceClass::Latency), &mut |_, _| {});
    traffic.ended[0].took()
}

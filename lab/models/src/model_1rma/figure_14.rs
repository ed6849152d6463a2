//! Figure 14: a client's view of a region that is given another key (§7.3).

use super::bench::{read_command, world_with_servers};
use super::inputs::{OneShotInputs, micro};
use crate::one_shot::{Happening, World};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, Nanos};
use portcullis_onerma::{
    Action, Command, Completion, Destination, Initiator, RegionKey, ServiceClass, SlotId, Status,
};
use std::collections::HashMap;

const FIGURE: &str = "Figure 14";
const SERVER: usize = 0;
const PROBER: usize = 1;
/// The host whose key lets it give the region another key.
const ROTATOR: usize = 2;
const ROTATION: Nanos = 100 * MICROSECOND;
const END: Nanos = 300 * MICROSECOND;
/// Bytes of a probe.
const BYTES: usize = 64;
/// Time between two probes of each key, in the run that looks at the server's side.
const BETWEEN: Nanos = 100;

/// The numbers of the alarms.
const ROTATE: u64 = 0;
const INSTALL: u64 = 1;
const PROBE: u64 = 2;

/// The means by which the region gets its next key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The driver sets the key. The region cannot be used while it works.
    Driver,
    /// The rekey operation sets the key.
    Rekey,
}

/// A server whose region is given another key, and a client with both keys.
struct Rotation {
    world: World,
    by: By,
    driver: Nanos,
    rotate: Destination,
    /// The region with the key from before, and with the key from after.
    keys: [Destination; 2],
    /// The time at which each probe was issued, and the index of its key.
    probes: HashMap<SlotId, (Nanos, usize)>,
    /// Probes that have ended: the times of their issue and their end, the index of the key, and the status.
    ended: Vec<(Nanos, Nanos, usize, Status)>,
    /// The completion of the rotation.
    rotated: Option<Completion>,
}

fn key(number: u8) -> RegionKey {
    RegionKey::new([number; 32])
}

impl Rotation {
    fn new(inputs: &OneShotInputs, by: By) -> Self {
        let mut world = world_with_servers(inputs, 3, SERVER..SERVER + 1, 1 << 16);
        for host in [PROBER, ROTATOR] {
            world.add_initiator(host, Initiator::new(inputs.initiator_limits()));
        }
        let region = world.region(SERVER);
        // The next key's grants are handed out before it is installed (§7.3: pre-distributed).
        let keys = [2, 1].map(|number| {
            assert!(world.regions(SERVER).rekey(region, key(number)));
            world.grant(SERVER, PROBER)
        });
        let [next, before] = keys;
        let rotate = world.grant(SERVER, ROTATOR);
        world.wake(ROTATION, ROTATE);
        let (probes, ended) = (HashMap::new(), Vec::new());
        let driver = inputs.driver_rekey_ns;
        Self { world, by, driver, rotate, keys: [before, next], probes, ended, rotated: None }
    }

    fn probe(&mut self, which: usize) {
        let (at, command) = (self.world.now(), read_command(&self.keys[which], BYTES));
        let slot =
            self.world.with_initiator(PROBER, |it, now| it.issue(command, now).expect("there are slots"));
        self.probes.insert(slot, (at, which));
    }

    fn rotate(&mut self) {
        if self.by == By::Rekey {
            let action = Action::Rekey(key(2));
            let command =
                Command { action, to: self.rotate.clone(), address: 0, class: ServiceClass::Latency };
            self.world.with_initiator(ROTATOR, |it, now| it.issue(command, now).expect("there are slots"));
            return;
        }
        self.install(3);
        self.world.wake(self.world.now() + self.driver, INSTALL);
    }

    fn install(&mut self, number: u8) {
        let region = self.world.region(SERVER);
        assert!(self.world.regions(SERVER).rekey(region, key(number)));
    }

    /// Takes what has ended. Returns the key and the status of each ended probe.
    fn collect(&mut self) -> Vec<(usize, Status)> {
        if let Some(end) = self.world.with_initiator(ROTATOR, |it, _| it.poll_completion()) {
            self.rotated = Some(end);
        }
        let mut new = Vec::new();
        while let Some(end) = self.world.with_initiator(PROBER, |it, _| it.poll_completion()) {
            let (at, which) = self.probes.remove(&end.slot).expect("it was issued");
            self.ended.push((at, self.world.now(), which, end.status));
            new.push((which, end.status));
        }
        new
    }

    /// Reacts to alarms that both runs have.
    fn alarm(&mut self, alarm: u64) {
        match alarm {
            ROTATE => self.rotate(),
            INSTALL => self.install(2),
            _ => {}
        }
    }

    /// Probes one by one. If a probe is refused, the next one uses the other key.
    fn one_by_one(mut self) -> Self {
        let mut which = 0;
        self.probe(which);
        while let Some(happening) = self.world.step(END) {
            if let Happening::Alarm(alarm) = happening {
                self.alarm(alarm);
            }
            for (used, status) in self.collect() {
                which = if status == Status::Ok { used } else { 1 - used };
                self.probe(which);
            }
        }
        self
    }

    /// Probes with both keys all the time, regardless of the ends of earlier probes.
    fn densely(mut self) -> Self {
        self.world.wake(0, PROBE);
        while let Some(happening) = self.world.step(END) {
            match happening {
                Happening::Alarm(PROBE) => {
                    (0..2).for_each(|which| self.probe(which));
                    self.world.wake(self.world.now() + BETWEEN, PROBE);
                }
                Happening::Alarm(alarm) => self.alarm(alarm),
                Happening::Client(_) => {}
            }
            self.collect();
        }
        self
    }

    /// Returns the time from the last success with the key from before to the first success with the next key:
    /// between the probes' ends and between their beginnings.
    fn gaps(&self) -> (Nanos, Nanos) {
        let good = |which| self.ended.iter().filter(move |it| it.2 == which && it.3 == Status::Ok);
        let last = good(0).max_by_key(|it| it.0).expect("the key from before opens the region at first");
        let first = good(1).min_by_key(|it| it.0).expect("the next key opens the region in the end");
        (first.1.saturating_sub(last.1), first.0.saturating_sub(last.0))
    }

    fn count(&self, status: Status) -> usize {
        self.ended.iter().filter(|it| it.3 == status).count()
    }
}

fn rows(inputs: &OneShotInputs, by: By, name: &str) -> Vec<OutputRow> {
    let (sparse, dense) = (Rotation::new(inputs, by).one_by_one(), Rotation::new(inputs, by).densely());
    let probe = sparse.ended[0].1 - sparse.ended[0].0;
    let seen = sparse.gaps().0.saturating_sub(probe);
    let closed = dense.gaps().1;
    let others = [&sparse, &dense]
        .map(|run| run.ended.len() - run.count(Status::Ok) - run.count(Status::RemoteAuthenticationFailure));
    let row = |what: &str, unit, value| OutputRow::new(FIGURE, format!("{name}: {what}"), unit, value);
    let server = row("neither key opens the region", "µs", micro(closed));
    let client = row("a client with one probe at a time is kept from it", "µs", micro(seen));
    let is_done = by == By::Driver || dense.rotated.as_ref().is_some_and(|it| it.status == Status::Ok);
    let [server, client] = match by {
        By::Driver => [
            server.said("§7.3: ~27 µs, which is an input here"),
            client.reading("the client tries both keys in turns"),
        ],
        By::Rekey => [
            server.paper(1.0, "§7.3: < 1 µs").holds(is_done && closed < MICROSECOND).reading(
                "between the last probe that the old key served and the first that the new one did, at 100 ns a probe",
            ),
            client
                .said("§5.2: down to a single RTT where the next key is known")
                .holds(is_done && seen <= inputs.round_trip_ns)
                .reading("the one probe that is refused"),
        ],
    };
    let only = row("probes that end neither with OK nor with a refusal", "", (others[0] + others[1]) as f64)
        .said("§7.3: fast op failures with REMOTE_AUTHENTICATION_FAILURE")
        .holds(others == [0, 0] && dense.count(Status::RemoteAuthenticationFailure) > 0);
    vec![server, client, only]
}

pub(super) fn figure_14(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut all = rows(inputs, By::Rekey, "Rekey");
    all.extend(rows(inputs, By::Driver, "driver"));
    all
}

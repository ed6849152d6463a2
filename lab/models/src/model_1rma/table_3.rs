//! Table 3: each status of an operation, by a run that provokes it.

use super::bench::{read_command, world_with_servers};
use super::inputs::{OneShotInputs, micro};
use crate::one_shot::{World, pattern};
use crate::report::OutputRow;
use crate::time::Nanos;
use portcullis_onerma::{Completion, Destination, Initiator, OPERATION_MAX, RegionKey, Status};

const TABLE: &str = "Table 3";
const SERVER: usize = 0;
const CLIENT: usize = 1;
/// A host without a responder.
const NOBODY: usize = 2;
const BYTES: usize = OPERATION_MAX as usize;

/// One client without congestion control, and one server.
struct Provocation {
    world: World,
    to: Destination,
    completions: Vec<Completion>,
}

impl Provocation {
    fn new(inputs: &OneShotInputs) -> Self {
        let mut world = world_with_servers(inputs, 3, SERVER..SERVER + 1, 1 << 16);
        world.add_initiator(CLIENT, Initiator::new(inputs.initiator_limits()));
        let to = world.grant(SERVER, CLIENT);
        Self { world, to, completions: Vec::new() }
    }

    fn issue(&mut self, to: &Destination, count: usize) {
        self.world.with_initiator(CLIENT, |initiator, now| {
            for _ in 0..count {
                initiator.issue(read_command(to, BYTES), now).expect("there is a slot");
            }
        });
    }

    fn run(&mut self, until: Nanos) -> Vec<Completion> {
        while self.world.step(until).is_some() {
            let ends = &mut self.completions;
            self.world
                .with_initiator(CLIENT, |it, _| ends.extend(std::iter::from_fn(|| it.poll_completion())));
        }
        std::mem::take(&mut self.completions)
    }
}

/// Rows for the completions of a run that should have this status.
fn rows(status: Status, how: &str, completions: &[Completion], within: (Nanos, Nanos)) -> Vec<OutputRow> {
    let matching: Vec<&Completion> = completions.iter().filter(|it| it.status == status).collect();
    let last = matching.iter().map(|it| it.total_delay.as_nanos()).max();
    let took = Nanos::try_from(last.unwrap_or(0)).unwrap_or(Nanos::MAX);
    let name = status.name();
    vec![
        OutputRow::new(TABLE, format!("{name}: operations that end so"), "", matching.len() as f64)
            .said("Table 3")
            .holds(!matching.is_empty())
            .reading(format!("{how}; {} operations in all", completions.len())),
        OutputRow::new(TABLE, format!("{name}: total_delay"), "µs", micro(took))
            .said("abstract and §3: completions in less than 50 µs, also of failures")
            .holds((within.0..=within.1).contains(&took) && took < 50_000)
            .reading(format!("the run asks for {} to {} µs", micro(within.0), micro(within.1))),
    ]
}

fn ok(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut run = Provocation::new(inputs);
    let to = run.to.clone();
    run.issue(&to, 1);
    let ends = run.run(1_000_000);
    let expected: Vec<u8> = (0..BYTES as u64).map(pattern).collect();
    let right: Vec<Completion> =
        ends.into_iter().filter(|_| run.world.read_data(CLIENT) == expected).collect();
    let near = (inputs.round_trip_ns - 50, inputs.round_trip_ns + 50);
    rows(Status::Ok, "one read; its bytes are compared with the server's memory", &right, near)
}

fn refused(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut run = Provocation::new(inputs);
    let to = run.to.clone();
    let region = run.world.region(SERVER);
    assert!(run.world.regions(SERVER).rekey(region, RegionKey::new([8; 32])));
    run.issue(&to, 1);
    let within = (0, inputs.round_trip_ns);
    rows(
        Status::RemoteAuthenticationFailure,
        "a read with the key from before the region was given another",
        &run.run(1_000_000),
        within,
    )
}

/// Provokes a NACK. One client cannot fill a queue that takes what a window holds, so the threshold is one operation
/// here.
fn nack(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut run = Provocation::new(inputs);
    let mut limits = inputs.responder_limits();
    limits.waiting_max = OPERATION_MAX.into();
    run.world.add_responder(SERVER, 1 << 16, limits);
    let to = run.world.grant(SERVER, CLIENT);
    run.issue(&to, 16);
    let ends = run.run(1_000_000);
    let mut rows = rows(
        Status::Nack,
        "16 reads at once, and a queue that holds one: the others find it full",
        &ends,
        (0, 2 * inputs.round_trip_ns),
    );
    let left = ends.iter().filter(|it| it.status != Status::Nack && it.status != Status::Ok).count();
    rows.push(
        OutputRow::new(TABLE, "NACK: operations of that run that end in another way", "", left as f64)
            .said("Table 3: a NACK refunds the solicitation window at once")
            .holds(left == 0),
    );
    rows
}

fn timeout(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut run = Provocation::new(inputs);
    let to = run.world.destination_at(NOBODY, &run.to);
    run.issue(&to, 1);
    let timeout = inputs.timeout_round_trips * inputs.round_trip_ns;
    rows(
        Status::Timeout,
        "a read that goes to a host without a responder",
        &run.run(1_000_000),
        (timeout, timeout),
    )
}

fn dispatch_timeout(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut run = Provocation::new(inputs);
    let (nobody, to) = (run.world.destination_at(NOBODY, &run.to), run.to.clone());
    let holds = (inputs.window_bytes / OPERATION_MAX) as usize;
    run.issue(&nobody, holds);
    run.issue(&to, 1);
    let wait = inputs.dispatch_round_trips * inputs.round_trip_ns;
    rows(
        Status::DispatchTimeout,
        "a read behind as many as the solicitation window holds, which wait for a host that does not answer",
        &run.run(1_000_000),
        (wait, wait),
    )
}

pub(super) fn table_3(inputs: &OneShotInputs) -> Vec<OutputRow> {
    [ok, refused, nack, timeout, dispatch_timeout].into_iter().flat_map(|part| part(inputs)).collect()
}

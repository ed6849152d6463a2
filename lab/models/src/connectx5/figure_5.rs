//! Figure 5: random accesses of 64 bytes, three under each permission, by mechanism and number of clients (§7.1).

use super::bench::{Bench, LONG, Outcome};
use super::inputs::Inputs;
use super::script::Step;
use super::{Effort, Progress};
use crate::report::OutputRow;
use crate::time::MICROSECOND;
use portcullis_protocol::{Lifetime, Mechanism, Sharing};

const FIGURE: &str = "Figure 5";
/// Numbers of clients on each machine.
const CLIENTS: [u64; 6] = [1, 4, 8, 16, 32, 64];
/// The paper has no queue pairs with more clients: clients cannot share them.
const QUEUE_PAIR_CLIENTS_MAX: u64 = 32;
/// The comparison's number of clients.
const COMPARED: u64 = 32;

const MECHANISMS: [(Mechanism, &str); 5] = [
    (Mechanism::None, "Unprot"),
    (Mechanism::MemoryWindow, "Patronus"),
    (Mechanism::NodeCopy, "RPC"),
    (Mechanism::MemoryRegion, "MR"),
    (Mechanism::QueuePair, "QP"),
];

fn bench(inputs: &Inputs, mechanism: Mechanism, clients: u64, effort: Effort) -> Bench {
    let reads = [Step::Read { first: true }, Step::Read { first: false }, Step::Read { first: false }];
    // Slow mechanisms are measured for longer.
    let span = match mechanism {
        Mechanism::MemoryRegion | Mechanism::QueuePair => 20,
        _ => 1,
    };
    let mut bench = Bench::new(inputs, mechanism, span * effort.span());
    bench.clients = clients;
    bench.warm_up = bench.warm_up.max(span * effort.span() / 4);
    let lease = Lifetime(inputs.lease_ns / MICROSECOND);
    let (lifetime, last) = match mechanism {
        Mechanism::None | Mechanism::NodeCopy => {
            // There are no permissions to acquire: each client holds its memory for the whole run.
            (bench.holds, bench.object_bytes) = (true, 64 << 10);
            bench.steps = [&[Step::Begin][..], &reads, &[Step::End]].concat();
            return bench;
        }
        Mechanism::RegionKey => unreachable!("the model's clients have queue pairs"),
        Mechanism::MemoryWindow | Mechanism::WindowGroup => (lease, Step::Forget),
        // These mechanisms need longer than the lease to set a permission up, so the clients revoke.
        Mechanism::MemoryRegion | Mechanism::QueuePair => {
            bench.objects = 128;
            (LONG, Step::Revoke)
        }
    };
    bench.queue_pairs = if mechanism == Mechanism::QueuePair { 1 } else { 2 };
    let acquire = Step::Acquire { lifetime, sharing: Sharing::Shared };
    bench.steps = [&[Step::Begin, acquire][..], &reads, &[last, Step::End]].concat();
    bench
}

fn accesses(outcome: &Outcome) -> f64 {
    outcome.rate(outcome.score.accesses) / 1e6
}

pub(super) fn figure_5(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    let mut compared = Vec::new();
    let mut sweeps = Vec::new();
    for (mechanism, name) in MECHANISMS {
        for clients in CLIENTS {
            progress.step(&format!("{FIGURE}: {name}, {clients} clients a machine"));
            if mechanism == Mechanism::QueuePair && clients > QUEUE_PAIR_CLIENTS_MAX {
                continue;
            }
            let outcome = bench(inputs, mechanism, clients, effort).run(inputs);
            let throughput = accesses(&outcome);
            let what = format!("{name}, clients a machine: {clients}");
            let row = OutputRow::new(FIGURE, what.clone(), "M accesses/s", throughput);
            rows.push(row.reading(remarks(mechanism, clients, &outcome)));
            rows.push(OutputRow::new(FIGURE, what, "µs a round of 3", outcome.round_us()));
            sweeps.push((mechanism, throughput));
            if clients == COMPARED {
                compared.push((mechanism, outcome));
            }
        }
    }
    rows.extend(compare(&compared));
    rows.push(ahead(&sweeps));
    rows
}

fn remarks(mechanism: Mechanism, clients: u64, outcome: &Outcome) -> String {
    let mut remarks = Vec::new();
    if outcome.score.given_up > 0 {
        let (lost, rounds) = (outcome.score.given_up, outcome.score.rounds);
        remarks.push(format!("{lost} rounds beside {rounds} given up: the lease had run out before its use"));
    }
    if outcome.work.violations > 0 {
        remarks.push(format!("{} accesses refused", outcome.work.violations));
    }
    if mechanism == Mechanism::QueuePair && clients == QUEUE_PAIR_CLIENTS_MAX {
        remarks.push("more are not run: clients cannot share queue pairs (§7.1)".to_owned());
    }
    remarks.join("; ")
}

/// Counts the numbers of clients with which Patronus is faster than RPC.
fn ahead(sweeps: &[(Mechanism, f64)]) -> OutputRow {
    let of = |wanted| sweeps.iter().filter(move |(mechanism, _)| *mechanism == wanted).map(|&(_, rate)| rate);
    let pairs = of(Mechanism::MemoryWindow).zip(of(Mechanism::NodeCopy));
    let count = pairs.filter(|(patronus, rpc)| patronus > rpc).count();
    OutputRow::new(FIGURE, "Patronus ahead of RPC", "of 6 numbers of clients", count as f64)
        .said("§7.1: Patronus performs the best")
        .reading(
            "with few clients nothing is short but time: a message, a bind and three accesses take longer than three \
             messages on idle cores. Patronus is ahead as soon as the cores are what is short",
        )
}

fn compare(compared: &[(Mechanism, Outcome)]) -> Vec<OutputRow> {
    let of = |mechanism| compared.iter().find(|(other, _)| *other == mechanism).map(|(_, outcome)| outcome);
    let Some(patronus) = of(Mechanism::MemoryWindow) else { return Vec::new() };
    let says = [
        (Mechanism::NodeCopy, "RPC", "§7.1: Patronus is best, «only RPC can keep pace with it»"),
        (Mechanism::MemoryRegion, "MR", "§7.1: «not comparable to Patronus»"),
        (Mechanism::QueuePair, "QP", "§7.1: «not comparable to Patronus»"),
        (Mechanism::None, "Unprot", "no number in the text"),
    ];
    let mut rows = Vec::new();
    for (mechanism, name, said) in says {
        let Some(other) = of(mechanism) else { continue };
        let times = accesses(patronus) / accesses(other).max(f64::MIN_POSITIVE);
        let reading = match mechanism {
            Mechanism::NodeCopy if times >= 1.0 => {
                "holds: Patronus is ahead, since three accesses share one message; by how much depends on the \
                 assumed time of a message and of a post of binds, each of which takes the same cores"
            }
            Mechanism::NodeCopy => "does NOT hold: RPC is ahead",
            Mechanism::None => {
                "what protection costs this workload at saturation; the NIC's limit is not reached"
            }
            _ if times > 10.0 => "holds: an order of magnitude and more behind",
            _ => "does not hold clearly",
        };
        let what = format!("Patronus over {name}, clients a machine: {COMPARED}");
        rows.push(OutputRow::new(FIGURE, what, "times", times).said(said).reading(reading));
    }
    let [registered, flags, binds] = [Mechanism::MemoryRegion, Mechanism::QueuePair, Mechanism::MemoryWindow]
        .map(|mechanism| of(mechanism).map_or(0.0, |outcome| per_permission(mechanism, outcome)));
    rows.push(
        OutputRow::new(FIGURE, "MR: registrations and ends a permission", "pages", registered)
            .reading("counted on the real node: one region over lifetime word and buffer"),
    );
    rows.push(
        OutputRow::new(FIGURE, "QP: changes of flags a permission", "changes", flags)
            .reading("counted on the real node: given at the grant, taken at the end"),
    );
    rows.push(
        OutputRow::new(FIGURE, "Patronus: binds and unbinds a permission", "operations", binds)
            .reading(
                "counted on the real node. With one client a core, all wait for the same batch: what expires while it \
                 is served meets no start to be handed over to, as with more clients (Figure 6)",
            ),
    );
    rows
}

fn per_permission(mechanism: Mechanism, outcome: &Outcome) -> f64 {
    let tally = &outcome.work.tally;
    let count = match mechanism {
        Mechanism::MemoryRegion => tally.registered + tally.deregistered,
        Mechanism::QueuePair => tally.flags,
        _ => tally.binds,
    };
    super::bench::ratio(count, outcome.work.grants)
}

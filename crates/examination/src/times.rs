//! How long steps of a permission's life take on a device. The times are reported, never judged.

use super::probe::Conductor;
use super::setback::Setback;
use crate::bench::{Bench, End, HELD, HeldObject, Holder};
use portcullis_nic::{
    Access, Memory, Nic, Operation, QpChange, RemoteAddress, Rkey, Status, WindowBinding, WindowId,
    WindowKind,
};
use std::time::{Duration, Instant};

/// How long a step took.
#[derive(Clone, PartialEq, Debug)]
pub struct Time {
    /// The step's name.
    pub name: &'static str,
    /// The median of all rounds, in microseconds.
    pub median_us: f64,
    /// The time of the shortest round, in microseconds.
    pub least_us: f64,
    /// The time of the longest round, in microseconds.
    pub most_us: f64,
    /// Number of rounds.
    pub rounds: usize,
}

/// A step that was not measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Untimed {
    /// The step's name.
    pub name: &'static str,
    /// The reason why the step was not measured.
    pub reason: String,
}

/// First address of the memory for registrations.
const LARGE_BASE: u64 = 0x50_0000_0000;
/// Number of warm-up rounds, which do not count.
const WARM_UP: usize = 10;

/// The sizes that are registered: names of the steps, bytes, and rounds. A size whose registration takes long has fewer
/// rounds.
const REGISTRATIONS: [(&str, &str, u64, usize); 3] = [
    ("register-4KiB", "deregister-4KiB", 4 << 10, 100),
    ("register-2MiB", "deregister-2MiB", 2 << 20, 30),
    ("register-64MiB", "deregister-64MiB", 64 << 20, 5),
];

/// The name of a step and the durations of its rounds.
type Rounds = (&'static str, Vec<Duration>);

/// Measures all steps, each group on a bench of its own.
pub(super) fn measure<N: Nic>(conductor: &mut Conductor<'_, N>) -> (Vec<Time>, Vec<Untimed>) {
    let mut report = (Vec::new(), Vec::new());
    add(&mut report, &["bind", "rebind", "unbind"], conductor.on_a_bench(binds));
    for (register, deregister, bytes, rounds) in REGISTRATIONS {
        let said = conductor.on_a_bench(|bench| registrations(bench, (register, deregister), bytes, rounds));
        add(&mut report, &[register, deregister], said);
    }
    add(&mut report, &["queue-pair-access"], conductor.on_a_bench(flags));
    add(&mut report, &["queue-pair-recovery"], conductor.on_a_bench(recovery));
    add(&mut report, &["error-report"], conductor.on_a_bench(error_report));
    add(&mut report, &["read-8B"], conductor.on_a_bench(reads));
    report
}

fn add(
    (times, untimed): &mut (Vec<Time>, Vec<Untimed>),
    names: &[&'static str],
    said: Result<(Vec<Rounds>, Option<String>), Setback>,
) {
    match said {
        Ok((measured, _)) => {
            times.extend(measured.into_iter().filter_map(|(name, rounds)| time(name, rounds)))
        }
        Err(setback) => {
            let reason = setback.text();
            untimed.extend(names.iter().map(|name| Untimed { name, reason: reason.clone() }));
        }
    }
}

/// Computes a step's time from its rounds, if there were any.
fn time(name: &'static str, mut rounds: Vec<Duration>) -> Option<Time> {
    rounds.sort_unstable();
    let micros = |round: &Duration| round.as_secs_f64() * 1e6;
    Some(Time {
        name,
        median_us: micros(rounds.get(rounds.len() / 2)?),
        least_us: micros(rounds.first()?),
        most_us: micros(rounds.last()?),
        rounds: rounds.len(),
    })
}

/// Measures the time from the doorbell to the completion, with only polling in between.
fn executed<N: Nic>(
    bench: &mut Bench<N>,
    end: End,
    operation: Operation,
    expected: Status,
) -> Result<Duration, Setback> {
    let request = [bench.request(operation, true)];
    let mut there = Vec::with_capacity(1);
    let patience = bench.limits.patience;
    bench.in_time()?;
    let started = Instant::now();
    if bench.nic.post_send(end.qp, &request)? == 0 {
        return Err(Setback::Failed("a queue with room took nothing".to_owned()));
    }
    while bench.nic.poll(end.send_cq, 1, &mut there)? == 0 {
        if started.elapsed() > patience {
            bench.limits.reached = true;
            return Err(Setback::Failed(format!("in {} ms there was no completion", patience.as_millis())));
        }
    }
    let took = started.elapsed();
    match there.first().map(|completion| completion.status) {
        Some(status) if status == expected => Ok(took),
        other => Err(Setback::Failed(format!("{operation:?} ended with {other:?}"))),
    }
}

fn binds<N: Nic>(bench: &mut Bench<N>) -> Result<Vec<Rounds>, Setback> {
    const ROUNDS: usize = 200;
    let window = bench.window(WindowKind::One)?;
    let end = bench.pair()?.owner;
    let mut rkey = window.rkey;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..WARM_UP + ROUNDS {
        for (step, times) in times.iter_mut().enumerate() {
            rkey = rkey.advanced();
            let took = executed(bench, end, bind_step(bench, window.id, rkey, step), Status::Success)?;
            if round >= WARM_UP {
                times.push(took);
            }
        }
    }
    let [bind, rebind, unbind] = times;
    Ok(vec![("bind", bind), ("rebind", rebind), ("unbind", unbind)])
}

/// Returns the operation of a step: bind, bind again at another place, unbind.
fn bind_step<N: Nic>(bench: &Bench<N>, window: WindowId, rkey: Rkey, step: usize) -> Operation {
    let here = bench.binding(window, rkey, Access::REMOTE);
    Operation::BindWindow(match step {
        0 => here,
        1 => WindowBinding { address: RemoteAddress(HELD + 1024), ..here },
        _ => WindowBinding { length: 0, access: Access::empty(), ..here },
    })
}

fn registrations<N: Nic>(
    bench: &mut Bench<N>,
    (register, deregister): (&'static str, &'static str),
    bytes: u64,
    rounds: usize,
) -> Result<Vec<Rounds>, Setback> {
    let memory = bench.nic.allocate_memory(bytes)?;
    // Without this, the kernel would find pages while the clock runs.
    memory.zero(0, bytes);
    let access = Access::REMOTE | Access::LOCAL_WRITE;
    let (mut registered, mut deregistered) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bench.in_time()?;
        let started = Instant::now();
        let base = RemoteAddress(LARGE_BASE);
        let region = bench.nic.register_region(bench.owner_pd, &memory, 0..bytes, base, access)?;
        registered.push(started.elapsed());
        let started = Instant::now();
        bench.nic.deregister_region(region.id)?;
        deregistered.push(started.elapsed());
    }
    Ok(vec![(register, registered), (deregister, deregistered)])
}

fn flags<N: Nic>(bench: &mut Bench<N>) -> Result<Vec<Rounds>, Setback> {
    const ROUNDS: usize = 100;
    let end = bench.pair()?.owner;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let access = if round % 2 == 0 { Access::REMOTE_READ } else { Access::REMOTE };
        let started = Instant::now();
        bench.nic.modify_qp(end.qp, QpChange::Access { access })?;
        times.push(started.elapsed());
    }
    Ok(vec![("queue-pair-access", times)])
}

/// Measures the recovery of one end from RESET to RTS, which a node does for each broken queue pair.
fn recovery<N: Nic>(bench: &mut Bench<N>) -> Result<Vec<Rounds>, Setback> {
    const ROUNDS: usize = 50;
    let plan = bench.plan();
    let pair = bench.pair()?;
    let peer = bench.nic.qp_address(pair.client.qp)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        bench.in_time()?;
        bench.nic.modify_qp(pair.owner.qp, QpChange::Error)?;
        let started = Instant::now();
        for change in [
            QpChange::Reset,
            QpChange::Init { access: plan.access },
            QpChange::ReadyToReceive { peer },
            QpChange::ReadyToSend { rnr_retries: plan.rnr_retries },
        ] {
            bench.nic.modify_qp(pair.owner.qp, change)?;
        }
        times.push(started.elapsed());
    }
    Ok(vec![("queue-pair-recovery", times)])
}

/// Measures the time from posting a stray access to its failed completion.
fn error_report<N: Nic>(bench: &mut Bench<N>) -> Result<Vec<Rounds>, Setback> {
    const ROUNDS: usize = 30;
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    if let HeldObject::Region(region) = held.object {
        bench.nic.deregister_region(region)?;
    }
    let stray = bench.read(HELD, 8, held.rkey);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(executed(bench, pair.client, stray, Status::RemoteAccessError)?);
        bench.recover(pair)?;
    }
    Ok(vec![("error-report", times)])
}

fn reads<N: Nic>(bench: &mut Bench<N>) -> Result<Vec<Rounds>, Setback> {
    const ROUNDS: usize = 1_000;
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE_READ)?;
    let read = bench.read(HELD, 8, held.rkey);
    let mut times = Vec::new();
    for round in 0..WARM_UP + ROUNDS {
        let took = executed(bench, pair.client, read, Status::Success)?;
        if round >= WARM_UP {
            times.push(took);
        }
    }
    Ok(vec![("read-8B", times)])
}

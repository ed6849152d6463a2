//! Part 4: exclusive holders that are killed or freeze while others wait.

use super::cast::{ClientProcess, Node, Trouble};
use super::figures::{LostHolder, LostHolders};
use super::mischief::{Offence, done, granted};
use super::orders::{Answer, Order, Raw};
use std::time::{Duration, Instant};

/// The lease of the holder that is killed: so long that nobody who was served has waited for its end.
const KILLED_LEASE: Duration = Duration::from_secs(2);
/// The lease of the holder that freezes.
const FROZEN_LEASE: Duration = Duration::from_millis(50);
/// How long the next one waits at the most.
const WAIT: Duration = Duration::from_secs(8);
/// After this long the next one's request has reached the node: it was sent right after it said so.
const SETTLED: Duration = Duration::from_millis(10);
/// What the next one writes.
const MINE: &str = "mine now";
/// What the frozen one writes when it wakes.
const LATE: &str = "too late";

/// Part 4.
pub fn show(node: &Node, offences: &mut Vec<Offence>) -> Result<LostHolders, Trouble> {
    let killed = lose(node, KILLED_LEASE, ClientProcess::kill)?;
    let mut frozen = lose(node, FROZEN_LEASE, ClientProcess::freeze)?;
    done(&mut frozen.next, &Order::Write { block: frozen.block, text: MINE.to_owned() })?;

    frozen.holder.thaw()?;
    let late_write_refused =
        match frozen.holder.ask(&Order::RawWrite { at: frozen.at, text: LATE.to_owned() })? {
            Answer::Violation { .. } => true,
            Answer::Bytes { .. } => false,
            other => return Err(frozen.holder.strange(&other)),
        };
    offences.push(Offence::of(&frozen.holder, late_write_refused.into()));
    let bytes = u32::try_from(MINE.len()).unwrap_or(0);
    let bytes_intact = match frozen.next.ask(&Order::Read { block: frozen.block, bytes })? {
        Answer::Bytes { bytes, .. } => bytes == MINE.as_bytes(),
        other => return Err(frozen.next.strange(&other)),
    };
    Ok(LostHolders { killed: killed.figures, frozen: frozen.figures, late_write_refused, bytes_intact })
}

/// A holder that was lost, and the next one in its place.
struct Lost {
    holder: ClientProcess,
    next: ClientProcess,
    /// What the next one holds.
    block: usize,
    /// What the first one was granted.
    at: Raw,
    figures: LostHolder,
}

fn lose(
    node: &Node,
    lease: Duration,
    strike: impl FnOnce(&ClientProcess) -> Result<(), Trouble>,
) -> Result<Lost, Trouble> {
    let mut holder = node.client("orange", "holder")?;
    let mut next = node.client("orange", "next holder")?;
    let lease_us = micros(lease);
    let asked = Instant::now();
    let answer = holder.ask(&Order::Allocate { bytes: 64, lifetime_us: lease_us, keep: true })?;
    let granted_at = Instant::now();
    let (_, at) = granted(&holder, &answer)?;
    let Answer::Granted { object, .. } = answer else { return Err(holder.strange(&answer)) };
    let acquire = Order::Acquire { object, lifetime_us: micros(WAIT), wait_us: micros(WAIT) };
    match next.ask(&acquire)? {
        Answer::Started => std::thread::sleep(SETTLED),
        other => return Err(next.strange(&other)),
    }
    strike(&holder)?;
    let struck = Instant::now();
    let answer = next.answer()?;
    let served = Instant::now();
    let (block, _) = granted(&next, &answer)?;
    let figures = LostHolder {
        lease_ms: millis(lease),
        served_after_signal_ms: millis(served - struck),
        served_after_request_ms: millis(served - asked),
        after_lease_ms: millis(served - granted_at) - millis(lease),
    };
    Ok(Lost { holder, next, block, at, figures })
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

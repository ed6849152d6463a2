//! Part 4: exclusive holders that are killed or frozen while others wait.

use super::cast::{ClientProcess, DemoError, Node};
use super::figures::{LostHolder, LostHolders};
use super::offences::{Offence, done, granted};
use super::orders::{Order, OrderReply, Raw};
use std::time::{Duration, Instant};

/// The lease of the killed holder. It is so long that a client that is served soon has not waited for its end.
const KILLED_LEASE: Duration = Duration::from_secs(2);
const FROZEN_LEASE: Duration = Duration::from_millis(50);
const WAIT: Duration = Duration::from_secs(8);
/// After this time the next holder's request has reached the node: the holder sends it right after announcing it.
const SETTLED: Duration = Duration::from_millis(10);
const MINE: &str = "mine now";
/// Text that the frozen holder writes after it wakes.
const LATE: &str = "too late";

/// Shows part 4.
pub fn show(node: &Node, offences: &mut Vec<Offence>) -> Result<LostHolders, DemoError> {
    let killed = lose(node, KILLED_LEASE, ClientProcess::kill)?;
    let mut frozen = lose(node, FROZEN_LEASE, ClientProcess::freeze)?;
    done(&mut frozen.next, &Order::Write { block: frozen.block, text: MINE.to_owned() })?;

    frozen.holder.thaw()?;
    let late_write_refused =
        match frozen.holder.ask(&Order::RawWrite { at: frozen.at, text: LATE.to_owned() })? {
            OrderReply::Violation { .. } => true,
            OrderReply::Bytes { .. } => false,
            other => return Err(frozen.holder.strange(&other)),
        };
    offences.push(Offence::of(&frozen.holder, late_write_refused.into()));
    let bytes = u32::try_from(MINE.len()).unwrap_or(0);
    let bytes_intact = match frozen.next.ask(&Order::Read { block: frozen.block, bytes })? {
        OrderReply::Bytes { bytes, .. } => bytes == MINE.as_bytes(),
        other => return Err(frozen.next.strange(&other)),
    };
    Ok(LostHolders { killed: killed.figures, frozen: frozen.figures, late_write_refused, bytes_intact })
}

struct Lost {
    holder: ClientProcess,
    next: ClientProcess,
    /// The next holder's block.
    block: usize,
    /// The address and the credential that the lost holder was granted.
    at: Raw,
    figures: LostHolder,
}

fn lose(
    node: &Node,
    lease: Duration,
    strike: impl FnOnce(&ClientProcess) -> Result<(), DemoError>,
) -> Result<Lost, DemoError> {
    let mut holder = node.client("orange", "holder")?;
    let mut next = node.client("orange", "next holder")?;
    let lease_us = micros(lease);
    let asked = Instant::now();
    let answer = holder.ask(&Order::Allocate { bytes: 64, lifetime_us: lease_us, keep: true })?;
    let granted_at = Instant::now();
    let (_, at) = granted(&holder, &answer)?;
    let OrderReply::Granted { object, .. } = answer else { return Err(holder.strange(&answer)) };
    let acquire = Order::Acquire { object, lifetime_us: micros(WAIT), wait_us: micros(WAIT) };
    match next.ask(&acquire)? {
        OrderReply::Started => std::thread::sleep(SETTLED),
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

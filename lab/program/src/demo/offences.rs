//! Parts 2, 3 and 5: clients whose accesses are too late or out of range, once or repeatedly.

use super::cast::{ClientProcess, DemoError, Node};
use super::figures::{Guilt, LateRead, LateReader, OutOfRange, Traffic};
use super::orders::{Order, OrderReply, Raw};
use std::thread::sleep;
use std::time::Duration;

const BLOCK_BYTES: u64 = 4096;
/// Number of allocations that the new owner tries to get the old address.
const TRIES_MOST: u32 = 20_000;
/// Text that the memory's new owner writes.
const SECRET: &str = "blue's secret: launch at dawn";
/// Text that the memory's old owner wrote.
const OLD: &str = "orange's own notes, long freed";
/// Time for which the neighbour works undisturbed, and time between two violations.
const UNDISTURBED: Duration = Duration::from_millis(300);
const BETWEEN_ACTS: Duration = Duration::from_millis(50);
/// Rounds of one write past the end and one far outside. With the other parts' violations they stay below the 16 that a
/// tenant has free.
const ROUNDS: u64 = 3;
/// Refused accesses in part 5.
const OFFENCES: u32 = 9;
/// The longest lifetime on the demo's nodes, in µs.
const LIFETIME_US: u64 = 10_000_000;

/// Violations that a client process committed, as the demo saw them.
#[derive(Clone, Copy, Debug)]
pub struct Offence {
    /// The client's tenant.
    pub tenant: &'static str,
    /// The client's number on the node.
    pub client: u64,
    /// Number of violations.
    pub count: u64,
}

impl Offence {
    /// Violations of a client.
    pub fn of(client: &ClientProcess, count: u64) -> Self {
        Self { tenant: client.tenant(), client: client.number(), count }
    }
}

/// The block and its place, from the answer to a holder.
pub fn granted(client: &ClientProcess, answer: &OrderReply) -> Result<(usize, Raw), DemoError> {
    match answer {
        OrderReply::Granted { block, at, .. } => Ok((*block, *at)),
        other => Err(client.strange(other)),
    }
}

/// Sends an order to which the only expected answer is [`OrderReply::Done`].
pub fn done(client: &mut ClientProcess, order: &Order) -> Result<(), DemoError> {
    match client.ask(order)? {
        OrderReply::Done => Ok(()),
        other => Err(client.strange(&other)),
    }
}

fn allocate(client: &mut ClientProcess) -> Result<(usize, Raw), DemoError> {
    let answer =
        client.ask(&Order::Allocate { bytes: BLOCK_BYTES, lifetime_us: LIFETIME_US, keep: false })?;
    granted(client, &answer)
}

/// Shows part 2, on a node with protection and on a node without.
pub fn show_late_reader(
    protecting: &Node,
    careless: &Node,
    offences: &mut Vec<Offence>,
) -> Result<LateReader, DemoError> {
    let (protected, offence) = read_late(protecting)?;
    offences.push(offence);
    let (unprotected, _) = read_late(careless)?;
    Ok(LateReader { secret: SECRET.to_owned(), protected, unprotected })
}

/// Lets orange's permission end, blue get the memory and write to it, and orange read with its old address and key.
fn read_late(node: &Node) -> Result<(LateRead, Offence), DemoError> {
    let mut orange = node.client("orange", "late reader")?;
    let mut blue = node.client("blue", "next owner")?;
    let (block, at) = allocate(&mut orange)?;
    done(&mut orange, &Order::Write { block, text: OLD.to_owned() })?;
    // The key works while the permission lives. So a later refusal is due to lateness only.
    let bytes = u32::try_from(OLD.len()).unwrap_or(0);
    match orange.ask(&Order::RawRead { at, bytes })? {
        OrderReply::Bytes { bytes, .. } if bytes == OLD.as_bytes() => {}
        other => return Err(orange.strange(&other)),
    }
    done(&mut orange, &Order::Free { block })?;
    let again = Order::AllocateAt { address: at.address, bytes: BLOCK_BYTES, tries_most: TRIES_MOST };
    let answer = blue.ask(&again)?;
    let (block, _) = granted(&blue, &answer)?;
    done(&mut blue, &Order::Write { block, text: SECRET.to_owned() })?;

    let bytes = u32::try_from(SECRET.len()).unwrap_or(0);
    let protection = node.protection().to_owned();
    let read = match orange.ask(&Order::RawRead { at, bytes })? {
        OrderReply::Violation { took_us } => LateRead { protection, refused: true, got: None, took_us },
        OrderReply::Bytes { bytes, took_us } => {
            let got = Some(String::from_utf8_lossy(&bytes).into_owned());
            LateRead { protection, refused: false, got, took_us }
        }
        other => return Err(orange.strange(&other)),
    };
    let offence = Offence::of(&orange, u64::from(read.refused));
    Ok((read, offence))
}

/// Shows part 3.
pub fn show_out_of_range(node: &Node, offences: &mut Vec<Offence>) -> Result<OutOfRange, DemoError> {
    let mut guilty = node.client("orange", "guilty client")?;
    let mut neighbour = node.client("blue", "neighbour")?;
    let (_, own) = allocate(&mut guilty)?;
    let answer =
        neighbour.ask(&Order::Allocate { bytes: BLOCK_BYTES, lifetime_us: LIFETIME_US, keep: false })?;
    let (_, theirs) = granted(&neighbour, &answer)?;

    begin_traffic(&mut neighbour)?;
    sleep(UNDISTURBED);
    let before = end_traffic(&mut neighbour)?;

    begin_traffic(&mut neighbour)?;
    let past = Raw { address: own.address + BLOCK_BYTES, ..own };
    let far = Raw { address: theirs.address, ..own };
    let mut refused = 0;
    for at in [past, far].repeat(usize::try_from(ROUNDS).unwrap_or(1)) {
        match guilty.ask(&Order::RawWrite { at, text: "x".to_owned() })? {
            OrderReply::Violation { .. } => refused += 1,
            OrderReply::Bytes { .. } => {}
            other => return Err(guilty.strange(&other)),
        }
        sleep(BETWEEN_ACTS);
    }
    let during = end_traffic(&mut neighbour)?;
    offences.push(Offence::of(&guilty, refused));
    Ok(OutOfRange { past_the_end: ROUNDS, far_outside: ROUNDS, refused, before, during })
}

fn begin_traffic(neighbour: &mut ClientProcess) -> Result<(), DemoError> {
    match neighbour.ask(&Order::Traffic)? {
        OrderReply::Started => Ok(()),
        other => Err(neighbour.strange(&other)),
    }
}

fn end_traffic(neighbour: &mut ClientProcess) -> Result<Traffic, DemoError> {
    match neighbour.ask(&Order::Halt)? {
        OrderReply::Traffic(traffic) => Ok(traffic),
        other => Err(neighbour.strange(&other)),
    }
}

/// Shows part 5.
pub fn show_guilt(node: &Node, offences: &mut Vec<Offence>) -> Result<Guilt, DemoError> {
    let mut guilty = node.client("blue", "guilty client")?;
    match guilty.ask(&Order::Offend { rounds: OFFENCES })? {
        OrderReply::Guilt(guilt) => {
            offences.push(Offence::of(&guilty, guilt.refused.into()));
            Ok(guilt)
        }
        other => Err(guilty.strange(&other)),
    }
}

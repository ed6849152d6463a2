//! Whether the device works with large numbers as with small ones: of windows at the same time, and of binds in a row
//! on one queue pair.

use super::attempt::{refused, undisturbed};
use super::probe::Said;
use super::setback::Setback;
use crate::bench::{Bench, HELD_OFFSET, LOCAL_OFFSET, POOL_BASE, Pair, Plan};
use portcullis_nic::{
    Access, Memory, Nic, Operation, RemoteAddress, Rkey, Status, VerbsError, WindowBinding, WindowId,
    WindowKind,
};

/// Largest number of windows allocated at once.
const WINDOWS: u32 = 10_000;
/// Number of binds in a row. Some cards make a bind of three plain requests. On those, send queues of 2,048 and of
/// 1,024 such requests would wrap at binds 682 and 1,024 if the count were wrong.
const BINDS: u32 = 2_100;
/// Depth of the queue for the binds, if the device allows it.
const DEPTH: u32 = 1024;
/// Number of windows that take turns, so that a bind of the wrong window is noticed.
const TURNS: usize = 4;
/// Bytes of each window.
const SPAN: u64 = 64;
/// Number of places that the windows move through.
const PLACES: u64 = 32;

fn looked_at(number: u32) -> bool {
    matches!(number, 681..=684 | 1023..=1026 | 2046..=2049 | BINDS)
}

pub(super) fn windows<N: Nic>(bench: &mut Bench<N>) -> Said {
    let kind = if bench.capabilities.window_type_1 { WindowKind::One } else { WindowKind::Two };
    bench.require_window(kind)?;
    let said = bench.capabilities.windows_max;
    let wanted = said.min(WINDOWS);
    let mut windows = Vec::new();
    let mut refusal = None;
    for _ in 0..wanted {
        bench.in_time()?;
        match bench.nic.allocate_window(bench.owner_pd, kind) {
            Ok(window) => windows.push(window),
            Err(error @ (VerbsError::Exhausted { .. } | VerbsError::Machine(_))) => {
                refusal = Some(error);
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let got = windows.len();
    for window in windows.into_iter().rev() {
        bench.nic.deallocate_window(window.id)?;
    }
    match refusal {
        Some(error) => Err(Setback::Broken(format!(
            "{got} windows of the {said} that the device reports, and then: {error}"
        ))),
        None => Ok(format!("{got} at once, and the device reports {said}")),
    }
}

/// A window with its current and its previous key.
#[derive(Clone, Copy)]
struct Turn {
    window: WindowId,
    rkey: Rkey,
    before: Rkey,
    offset: u64,
}

pub(super) fn binds<N: Nic>(bench: &mut Bench<N>) -> Said {
    bench.require_window(WindowKind::One)?;
    let deepest = 1 << bench.capabilities.send_depth_max.max(1).ilog2();
    let plan = bench.plan();
    let binder = bench.pair_as(Plan { depth: DEPTH.min(deepest), ..plan })?;
    // A refusal breaks the queue pair of the access, and the binds must be in a row.
    let checker = bench.pair()?;
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let window = bench.window(WindowKind::One)?;
        turns.push(Turn { window: window.id, rkey: window.rkey, before: window.rkey, offset: HELD_OFFSET });
    }
    for number in 1..=BINDS {
        let turn = &mut turns[number as usize % TURNS];
        let offset = HELD_OFFSET + SPAN * (u64::from(number) % PLACES);
        let binding = WindowBinding {
            address: RemoteAddress(POOL_BASE + offset),
            length: SPAN,
            ..bench.binding(turn.window, turn.rkey.advanced(), Access::REMOTE_READ)
        };
        *turn = Turn { before: turn.rkey, rkey: binding.rkey, offset, ..*turn };
        match bench.execute(binder.owner, Operation::BindWindow(binding))? {
            Status::Success => {}
            status if number == 1 => {
                return Err(Setback::Failed(format!("the first bind ended with {status}")));
            }
            status => return Err(Setback::Broken(format!("bind {number} in a row ended with {status}"))),
        }
        if looked_at(number) {
            for turn in &turns {
                look(bench, checker, turn, number)?;
                undisturbed(bench, binder.owner)?;
            }
        }
    }
    Ok(format!("{BINDS} of them, looked at around 682, 1,024 and 2,048"))
}

/// Checks that a window opens its own bytes, and that its earlier key does not.
fn look<N: Nic>(bench: &mut Bench<N>, checker: Pair, turn: &Turn, number: u32) -> Result<(), Setback> {
    bench.local_memory.zero(LOCAL_OFFSET, 8);
    let read = bench.read(POOL_BASE + turn.offset, 8, turn.rkey);
    let status = bench.execute(checker.client, read)?;
    let right = bench.local_memory.load(LOCAL_OFFSET) == bench.pool_memory.load(turn.offset);
    if status != Status::Success || !right {
        return Err(Setback::Broken(format!(
            "after bind {number} in a row a window does not open its bytes: a READ ended with {status}"
        )));
    }
    let stale = bench.read(POOL_BASE + turn.offset, 8, turn.before);
    refused(bench, checker, stale, &format!("after bind {number} in a row, the key before"))?;
    Ok(bench.recover(checker)?)
}

//! Whether a key ends with its permission, and whether the next key is a different one.

use super::attempt::{refused, undisturbed, works};
use super::probe::Said;
use super::setback::Setback;
use crate::bench::{Bench, HELD, Held, HeldObject, Holder, Pair};
use portcullis_nic::{
    Access, Misuse, Nic, Operation, RemoteAddress, Rkey, Status, WindowBinding, WindowKind,
};
use std::collections::BTreeSet;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Address to which a window moves: it does not overlap the window's old place.
const MOVED: u64 = HELD + 2048;

/// Number of turns after which the previous key is tried too.
const OLD_KEY_EVERY: u32 = 32;

pub(super) fn end_with_a_rebind<N: Nic>(bench: &mut Bench<N>) -> Said {
    for (what, address) in [("there", HELD), ("where its window went", MOVED)] {
        for writes in [false, true] {
            let pair = bench.pair()?;
            let window = bench.window(WindowKind::One)?;
            let old = bench.bind(pair.owner, window, READ_WRITE)?;
            let read = bench.read(HELD, 8, old);
            works(bench, pair, read, "a READ before the rebind")?;
            let binding = WindowBinding {
                address: RemoteAddress(address),
                ..bench.binding(window.id, old.advanced(), READ_WRITE)
            };
            bench.succeed(pair.owner, Operation::BindWindow(binding))?;
            shown_again(
                bench,
                pair,
                (address, old, writes),
                &format!("the key of the bind before, shown {what},"),
            )?;
        }
    }
    Ok(String::new())
}

pub(super) fn end_with_an_unbind<N: Nic>(bench: &mut Bench<N>) -> Said {
    for writes in [false, true] {
        let (pair, held) = bench.fresh(Holder::Window(WindowKind::One), READ_WRITE)?;
        let read = bench.read(HELD, 8, held.rkey);
        works(bench, pair, read, "a READ before the unbind")?;
        let unbind = bench.unbinding(WindowKind::One, held)?;
        bench.succeed(pair.owner, unbind)?;
        shown_again(bench, pair, (HELD, held.rkey, writes), "the key of a window that was unbound")?;
        bench.recover(pair)?;
        shown_again(
            bench,
            pair,
            (HELD, held.rkey.advanced(), writes),
            "the key that a window was unbound with",
        )?;
    }
    with_the_window(bench, WindowKind::One)
}

/// Checks that a key ends with the invalidate of its window. The bind is tried first: invalidating a window that is
/// free could take the device down.
pub(super) fn end_with_an_invalidate<N: Nic>(bench: &mut Bench<N>) -> Said {
    for writes in [false, true] {
        let (pair, held) = bench.fresh(Holder::Window(WindowKind::Two), READ_WRITE)?;
        let read = bench.read(HELD, 8, held.rkey);
        works(bench, pair, read, "a READ before the invalidate")?;
        let invalidate = bench.unbinding(WindowKind::Two, held)?;
        bench.succeed(pair.owner, invalidate)?;
        shown_again(bench, pair, (HELD, held.rkey, writes), "the key of a window that was invalidated")?;
    }
    with_the_window(bench, WindowKind::Two)
}

fn with_the_window<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Said {
    let (pair, held) = bench.fresh(Holder::Window(kind), READ_WRITE)?;
    if let HeldObject::Window(window) = held.object {
        bench.nic.deallocate_window(window)?;
    }
    shown_again(bench, pair, (HELD, held.rkey, false), "the key of a window that is gone")?;
    Ok(String::new())
}

pub(super) fn end_with_their_region<N: Nic>(bench: &mut Bench<N>) -> Said {
    for writes in [false, true] {
        let (pair, held) = bench.fresh(Holder::Region, READ_WRITE)?;
        let read = bench.read(HELD, 8, held.rkey);
        works(bench, pair, read, "a READ before the region was deregistered")?;
        if let HeldObject::Region(region) = held.object {
            bench.nic.deregister_region(region)?;
        }
        shown_again(bench, pair, (HELD, held.rkey, writes), "the key of a region that is gone")?;
    }
    Ok(String::new())
}

/// Checks that an access with a key that has ended is refused. The tuple gives its address, the key, and whether it
/// writes.
fn shown_again<N: Nic>(
    bench: &mut Bench<N>,
    pair: Pair,
    (address, rkey, writes): (u64, Rkey, bool),
    what: &str,
) -> Result<(), Setback> {
    let stray = if writes { bench.write(address, 8, rkey) } else { bench.read(address, 8, rkey) };
    refused(bench, pair, stray, what)
}

/// Binds the same window with the next low byte, more often than there are low bytes. Each key must open the window in
/// its turn.
pub(super) fn advance<N: Nic>(bench: &mut Bench<N>) -> Said {
    let kind = if bench.capabilities.window_type_1 { WindowKind::One } else { WindowKind::Two };
    let window = bench.window(kind)?;
    let (pair, checker) = (bench.pair()?, bench.pair()?);
    let mut rkey = window.rkey;
    let mut low_bytes = BTreeSet::new();
    for turn in 1..=u32::from(u8::MAX) + 2 {
        let before = rkey;
        let binding = bench.binding(window.id, before.advanced(), READ_WRITE);
        rkey = binding.rkey;
        match bench.execute(pair.owner, Operation::BindWindow(binding))? {
            Status::Success => {}
            status if turn == 1 => {
                return Err(Setback::Failed(format!("the first bind ended with {status}")));
            }
            status => {
                return Err(Setback::Broken(format!("bind {turn}, to key {rkey:?}, ended with {status}")));
            }
        }
        low_bytes.insert(rkey.low_byte());
        let read = bench.read(HELD, 8, rkey);
        if bench.execute(pair.client, read)? != Status::Success {
            return Err(Setback::Broken(format!(
                "bind {turn} was confirmed and its key {rkey:?} opens nothing"
            )));
        }
        match kind {
            WindowKind::Two => bench.succeed(pair.owner, Operation::LocalInvalidate { rkey })?,
            WindowKind::One if turn % OLD_KEY_EVERY == 0 => {
                let stale = bench.read(HELD, 8, before);
                refused(bench, checker, stale, &format!("after bind {turn}, the key before"))?;
                bench.recover(checker)?;
                undisturbed(bench, pair.owner)?;
            }
            WindowKind::One => {}
        }
    }
    Ok(format!("{} keys, one after the other", low_bytes.len()))
}

/// Lets owner and peer invalidate a free window of type 2, and destroys a queue pair before a window bound to it. The
/// device may do that or refuse, but must work afterwards.
pub(super) fn survive_misuse<N: Nic>(bench: &mut Bench<N>) -> Said {
    for misuse in [Misuse::InvalidateFreeWindow, Misuse::QueuePairBeforeBoundWindow] {
        bench.provoke(misuse)?;
    }
    let window = bench.window(WindowKind::Two)?;
    let (own, peers) = (bench.pair()?, bench.pair()?);
    bench.receive(peers.owner, bench.pool(0, 64))?;
    let bound = bench.fresh(Holder::Window(WindowKind::Two), READ_WRITE)?;
    serves(bench)?;
    // A failure from here on is an effect of the misuse.
    misuse(bench, window.rkey, (own, peers), bound)
        .and_then(|()| serves(bench))
        .map_err(|setback| Setback::Broken(format!("after an owner's mistake: {}", setback.text())))?;
    Ok(String::new())
}

/// Makes new queue pairs, and checks an access through them.
fn serves<N: Nic>(bench: &mut Bench<N>) -> Result<(), Setback> {
    let (pair, held) = bench.fresh(Holder::Region, READ_WRITE)?;
    let read = bench.read(HELD, 8, held.rkey);
    works(bench, pair, read, "a READ")
}

fn misuse<N: Nic>(
    bench: &mut Bench<N>,
    free: Rkey,
    (own, peers): (Pair, Pair),
    (pair, held): (Pair, Held),
) -> Result<(), Setback> {
    bench.execute(own.owner, Operation::LocalInvalidate { rkey: free })?;
    let message = Operation::SendWithInvalidate { local: bench.local(0, 8), rkey: free };
    bench.execute(peers.client, message)?;
    // The device may do or refuse this.
    let _ = bench.nic.destroy_qp(pair.owner.qp);
    if let HeldObject::Window(window) = held.object {
        bench.nic.deallocate_window(window)?;
    }
    Ok(())
}

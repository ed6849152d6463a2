//! The keys of a window over time: one key at a time, and each only while its bind lasts.

use portcullis_examination::bench::{Bench, End, HELD, HELD_BYTES, HeldObject, Holder};
use portcullis_examination::check::Check;
use portcullis_examination::ensure;
use portcullis_nic::{Access, Nic, Operation, RemoteAddress, Rkey, Window, WindowBinding, WindowKind};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub(super) fn open_nothing_before_a_bind<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    for advance in [false, true] {
        let window = bench.window(kind)?;
        let pair = bench.pair()?;
        let rkey = if advance { window.rkey.advanced() } else { window.rkey };
        let read = bench.read(HELD, 8, rkey);
        bench.refused(pair, read)?;
    }
    Ok(())
}

pub(super) fn of_the_bind_before_open_nothing<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    for writes in [false, true] {
        let pair = bench.pair()?;
        let window = bench.window(kind)?;
        let old = bench.bind(pair.owner, window, READ_WRITE)?;
        let first = bench.read(HELD, 8, old);
        bench.succeed(pair.client, first)?;
        free_if_type_2(bench, pair.owner, kind, old)?;
        let new = bench.bind(pair.owner, Window { rkey: old, ..window }, READ_WRITE)?;
        ensure!(new != old, "the bench bound a window to the key it had");
        let good = bench.read(HELD, 8, new);
        bench.succeed(pair.client, good)?;
        let stale = if writes { bench.write(HELD, 8, old) } else { bench.read(HELD, 8, old) };
        bench.refused(pair, stale)?;
    }
    Ok(())
}

/// The whole low byte is part of the key. These keys are as after up to 255 more binds, but without those binds.
pub(super) fn with_any_other_low_byte_open_nothing<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let (pair, mut held) = bench.fresh(Holder::Window(kind), Access::REMOTE_READ)?;
    for distance in 1..=u8::MAX {
        let guess = Rkey::new(held.rkey.index(), held.rkey.low_byte().wrapping_add(distance));
        let read = bench.read(HELD, 8, guess);
        bench.refused(pair, read)?;
        bench.recover(pair)?;
        if kind == WindowKind::Two {
            // Verbs does not promise what happens to such a bind when its queue pair is reset.
            if let HeldObject::Window(window) = held.object {
                bench.nic.deallocate_window(window)?;
            }
            held = bench.key(pair, Holder::Window(kind), Access::REMOTE_READ)?;
        }
    }
    let read = bench.read(HELD, 8, held.rkey);
    bench.succeed(pair.client, read)
}

/// Binds a window repeatedly, through all low bytes. In every turn the present key opens the window and the previous
/// key does not.
pub(super) fn go_round_all_low_bytes_and_each_opens_in_its_turn<N: Nic>(
    bench: &mut Bench<N>,
    kind: WindowKind,
) -> Check {
    let pair = bench.pair()?;
    let window = bench.window(kind)?;
    let mut rkey = window.rkey;
    for _ in 0..=u8::MAX {
        let next = bench.bind(pair.owner, Window { rkey, ..window }, Access::REMOTE_READ)?;
        ensure!(next.index() == rkey.index(), "{next:?} after {rkey:?}: the index moved");
        rkey = next;
        let read = bench.read(HELD, 8, rkey);
        bench.succeed(pair.client, read)?;
        free_if_type_2(bench, pair.owner, kind, rkey)?;
    }
    Ok(())
}

pub(super) fn open_nothing_after_the_unbind<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    for advance in [false, true] {
        let pair = bench.pair()?;
        let window = bench.window(kind)?;
        let bound = bench.bind(pair.owner, window, READ_WRITE)?;
        let unbound = bound.advanced();
        match kind {
            WindowKind::One => {
                let binding = bench.binding(window.id, unbound, Access::empty());
                let binding = WindowBinding { length: 0, ..binding };
                bench.succeed(pair.owner, Operation::BindWindow(binding))?;
            }
            WindowKind::Two => free_if_type_2(bench, pair.owner, kind, bound)?,
        }
        let read = bench.read(HELD, 8, if advance { unbound } else { bound });
        bench.refused(pair, read)?;
    }
    Ok(())
}

pub(super) fn open_nothing_when_the_window_is_gone<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let (pair, held) = bench.fresh(Holder::Window(kind), READ_WRITE)?;
    let write = bench.write(HELD, 8, held.rkey);
    bench.succeed(pair.client, write)?;
    if let HeldObject::Window(window) = held.object {
        bench.nic.deallocate_window(window)?;
    }
    bench.refused(pair, write)
}

/// Two windows over neighbouring bytes: neither key opens the other window's bytes.
pub(super) fn of_neighbours_open_only_their_own<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let (pair, held) = bench.fresh(Holder::Window(kind), READ_WRITE)?;
    let window = bench.window(kind)?;
    let binding = WindowBinding {
        address: RemoteAddress(HELD + HELD_BYTES),
        ..bench.binding(window.id, window.rkey.advanced(), READ_WRITE)
    };
    bench.succeed(pair.owner, Operation::BindWindow(binding))?;
    let (left, right) = (bench.read(HELD, 8, held.rkey), bench.read(HELD + HELD_BYTES, 8, binding.rkey));
    bench.succeed(pair.client, left)?;
    bench.succeed(pair.client, right)?;
    let across = bench.write(HELD, 8, binding.rkey);
    bench.refused(pair, across)
}

fn free_if_type_2<N: Nic>(bench: &mut Bench<N>, end: End, kind: WindowKind, rkey: Rkey) -> Check {
    match kind {
        WindowKind::One => Ok(()),
        WindowKind::Two => bench.succeed(end, Operation::LocalInvalidate { rkey }),
    }
}

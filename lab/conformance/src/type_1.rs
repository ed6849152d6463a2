//! Windows of type 1: any queue pair of the domain may use them, a bind replaces the last one in place, and a bind of
//! length zero unbinds.

use portcullis_examination::bench::{
    Bench, HELD, HELD_OFFSET, Held, HeldObject, Holder, LOCAL_OFFSET, POOL_BASE, Pair, at,
};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{
    Access, Nic, Operation, QpState, RemoteAddress, Rkey, Status, Window, WindowBinding, WindowId, WindowKind,
};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Address to which windows move, clear of their old range.
const MOVED: u64 = HELD + 2048;

fn held<N: Nic>(bench: &mut Bench<N>) -> Result<(Pair, Held), Stop> {
    bench.fresh(Holder::Window(WindowKind::One), READ_WRITE)
}

fn window_of(held: Held) -> Result<WindowId, Stop> {
    match held.object {
        HeldObject::Window(window) => Ok(window),
        HeldObject::Region(_) => Err(Stop::Broken("the bench holds no window".to_owned())),
    }
}

pub(super) fn windows_refuse_a_queue_pair_of_another_domain<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (_, held) = held(bench)?;
    for operation in [bench.read(HELD, 8, held.rkey), bench.write(HELD, 8, held.rkey)] {
        let stranger = bench.stranger()?;
        bench.refused(stranger, operation)?;
    }
    Ok(())
}

/// With chosen low bytes, one key need not reveal the next.
pub(super) fn windows_take_any_low_byte_where_the_nic_says_so<N: Nic>(bench: &mut Bench<N>) -> Check {
    if !bench.nic.capabilities().chosen_keys {
        return Err(Stop::Skipped("binds take the next key of a window and no other"));
    }
    let pair = bench.pair()?;
    let window = bench.window(WindowKind::One)?;
    let mut old = window.rkey;
    for distance in [7, 200, 1, 255, 128, 90] {
        let rkey = Rkey::new(old.index(), old.low_byte().wrapping_add(distance));
        let binding = bench.binding(window.id, rkey, READ_WRITE);
        bench.succeed(pair.owner, Operation::BindWindow(binding))?;
        let read = bench.read(HELD, 8, rkey);
        bench.succeed(pair.client, read)?;
        let stale = bench.read(HELD, 8, old);
        bench.refused(pair, stale)?;
        bench.recover(pair)?;
        old = rkey;
    }
    Ok(())
}

pub(super) fn windows_cannot_be_freed_by_a_local_invalidate<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let status = bench.execute(pair.owner, Operation::LocalInvalidate { rkey: held.rkey })?;
    ensure!(status != Status::Success, "a type-1 window was invalidated");
    bench.recover(pair)?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.succeed(pair.client, read)
}

/// Without this rule a peer could end the permissions of other clients.
pub(super) fn windows_cannot_be_freed_by_a_peer<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let buffer = bench.pool(0, 64);
    bench.receive(pair.owner, buffer)?;
    let send = Operation::SendWithInvalidate { local: bench.local(0, 8), rkey: held.rkey };
    let status = bench.execute(pair.client, send)?;
    ensure!(status != Status::Success, "a peer invalidated a type-1 window");
    bench.recover(pair)?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.succeed(pair.client, read)
}

pub(super) fn windows_work_on_every_queue_pair_of_the_domain<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (first, held) = held(bench)?;
    let second = bench.pair()?;
    let (read, write) = (bench.read(HELD, 8, held.rkey), bench.write(HELD + 8, 8, held.rkey));
    for pair in [first, second, first] {
        bench.succeed(pair.client, read)?;
        bench.succeed(pair.client, write)?;
    }
    Ok(())
}

pub(super) fn windows_can_be_bound_from_every_queue_pair_of_the_domain<N: Nic>(
    bench: &mut Bench<N>,
) -> Check {
    let (first, held) = held(bench)?;
    let window = Window { id: window_of(held)?, rkey: held.rkey };
    let management = bench.pair()?;
    let rkey = bench.bind(management.owner, window, Access::REMOTE_READ)?;
    let (new, old) = (bench.read(HELD, 8, rkey), bench.read(HELD, 8, held.rkey));
    bench.succeed(first.client, new)?;
    bench.refused(first, old)
}

pub(super) fn windows_move_when_they_are_bound_again<N: Nic>(bench: &mut Bench<N>) -> Check {
    for stray in [HELD, MOVED - 1] {
        let (pair, held) = held(bench)?;
        let rkey = held.rkey.advanced();
        let binding = bench.binding(window_of(held)?, rkey, READ_WRITE);
        let binding = WindowBinding { address: RemoteAddress(MOVED), ..binding };
        bench.succeed(pair.owner, Operation::BindWindow(binding))?;
        let (inside, outside) = (bench.write(MOVED, 8, rkey), bench.write(stray, 8, rkey));
        bench.succeed(pair.client, inside)?;
        bench.refused(pair, outside)?;
    }
    Ok(())
}

pub(super) fn windows_that_moved_leave_their_old_key_behind<N: Nic>(bench: &mut Bench<N>) -> Check {
    for address in [HELD, MOVED] {
        let (pair, held) = held(bench)?;
        let binding = bench.binding(window_of(held)?, held.rkey.advanced(), READ_WRITE);
        let binding = WindowBinding { address: RemoteAddress(MOVED), ..binding };
        bench.succeed(pair.owner, Operation::BindWindow(binding))?;
        let old = bench.write(address, 8, held.rkey);
        bench.refused(pair, old)?;
    }
    Ok(())
}

pub(super) fn windows_lose_rights_when_they_are_bound_with_fewer<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let window = Window { id: window_of(held)?, rkey: held.rkey };
    let rkey = bench.bind(pair.owner, window, Access::REMOTE_READ)?;
    let (read, write) = (bench.read(HELD, 8, rkey), bench.write(HELD, 8, rkey));
    bench.succeed(pair.client, read)?;
    bench.refused(pair, write)
}

/// Unbind and bind are posted with one doorbell: a handover leaves no request between the two permissions.
pub(super) fn windows_can_be_handed_over_in_one_batch<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let heir = bench.window(WindowKind::One)?;
    let unbind = bench.binding(window_of(held)?, held.rkey.advanced(), Access::empty());
    let unbind = WindowBinding { length: 0, ..unbind };
    let bind = bench.binding(heir.id, heir.rkey.advanced(), READ_WRITE);
    let requests = [
        bench.request(Operation::BindWindow(unbind), false),
        bench.request(Operation::BindWindow(bind), true),
    ];
    bench.post(pair.owner, &requests)?;
    let completion = bench.completions(pair.owner.send_cq, 1)?[0];
    ensure!(completion.status == Status::Success, "the batch gave {completion:?}");
    let (new, old) = (bench.write(HELD, 8, bind.rkey), bench.write(HELD, 8, held.rkey));
    bench.succeed(pair.client, new)?;
    bench.refused(pair, old)
}

/// Replay after a violation depends on this: the same keys are valid on the spare queue pair, and on the old one when
/// it is rebuilt.
pub(super) fn windows_outlive_the_recovery_of_their_queue_pair<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    // Outside the region, since this is not about the window's own range.
    let (stray, good) = (bench.read(POOL_BASE - 1, 1, held.rkey), bench.read(HELD, 8, held.rkey));
    for _ in 0..3 {
        bench.refused(pair, stray)?;
        bench.expect_state(pair.owner, QpState::Error)?;
        bench.recover(pair)?;
        bench.succeed(pair.client, good)?;
    }
    Ok(())
}

/// Windows also outlive the queue pair that bound them, when it is destroyed.
pub(super) fn windows_outlive_the_queue_pair_that_bound_them<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (binder, held) = held(bench)?;
    let other = bench.pair()?;
    bench.nic.destroy_qp(binder.owner.qp)?;
    let mut expected = bench.bytes();
    let write = bench.write(HELD, 8, held.rkey);
    bench.succeed(other.client, write)?;
    let (from, to) = (at(LOCAL_OFFSET, 8), at(HELD_OFFSET, 8));
    let moved = expected.local[from].to_vec();
    expected.pool[to].copy_from_slice(&moved);
    bench.expect_bytes(&expected)
}

//! Windows of type 2B: used through one queue pair, bound only when free, freed by an invalidate.

use portcullis_examination::bench::{Bench, HELD, Held, HeldObject, Holder, POOL_BASE, Pair};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{Access, Misuse, Nic, Operation, QpChange, Rkey, Status, Window, WindowId, WindowKind};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Verbs has one name for failed binds and failed invalidates. Devices use three.
const INVALIDATE_ERRORS: [Status; 3] =
    [Status::WindowBindError, Status::LocalQpOperationError, Status::LocalProtectionError];

fn held<N: Nic>(bench: &mut Bench<N>) -> Result<(Pair, Held), Stop> {
    bench.fresh(Holder::Window(WindowKind::Two), READ_WRITE)
}

fn window_of(held: Held) -> Result<WindowId, Stop> {
    match held.object {
        HeldObject::Window(window) => Ok(window),
        HeldObject::Region(_) => Err(Stop::Broken("the bench holds no window".to_owned())),
    }
}

pub(super) fn windows_refuse_every_other_queue_pair<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (own, held) = held(bench)?;
    let (read, write) = (bench.read(HELD, 8, held.rkey), bench.write(HELD, 8, held.rkey));
    for operation in [read, write] {
        let sibling = bench.pair()?;
        bench.refused(sibling, operation)?;
    }
    bench.succeed(own.client, read)?;
    bench.succeed(own.client, write)
}

pub(super) fn windows_refuse_a_queue_pair_of_another_domain<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (_, held) = held(bench)?;
    let stranger = bench.stranger()?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.refused(stranger, read)
}

pub(super) fn windows_cannot_be_bound_while_they_are<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let (id, rkey) = (window_of(held)?, held.rkey.advanced());
    let bind = Operation::BindWindow(bench.binding(id, rkey, READ_WRITE));
    bench.fails(pair.owner, bind, &[Status::WindowBindError])?;
    bench.recover(pair)?;
    let read = bench.read(HELD, 8, rkey);
    bench.refused(pair, read)
}

/// Without this rule one client could take another's window.
pub(super) fn windows_cannot_be_taken_by_another_queue_pair<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (own, held) = held(bench)?;
    let sibling = bench.pair()?;
    let (id, rkey) = (window_of(held)?, held.rkey.advanced());
    let bind = Operation::BindWindow(bench.binding(id, rkey, READ_WRITE));
    bench.fails(sibling.owner, bind, &[Status::WindowBindError])?;
    bench.recover(sibling)?;
    let (stolen, good) = (bench.read(HELD, 8, rkey), bench.read(HELD, 8, held.rkey));
    bench.refused(sibling, stolen)?;
    bench.succeed(own.client, good)
}

pub(super) fn windows_are_free_after_a_local_invalidate<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    bench.succeed(pair.owner, Operation::LocalInvalidate { rkey: held.rkey })?;
    let again = Window { id: window_of(held)?, rkey: held.rkey };
    let rkey = bench.bind(pair.owner, again, READ_WRITE)?;
    let (new, old) = (bench.read(HELD, 8, rkey), bench.read(HELD, 8, held.rkey));
    bench.succeed(pair.client, new)?;
    bench.refused(pair, old)
}

/// After an invalidate, the next bind may come from another queue pair of the domain.
pub(super) fn windows_that_are_free_can_change_queue_pairs<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (first, held) = held(bench)?;
    bench.succeed(first.owner, Operation::LocalInvalidate { rkey: held.rkey })?;
    let second = bench.pair()?;
    let again = Window { id: window_of(held)?, rkey: held.rkey };
    let rkey = bench.bind(second.owner, again, READ_WRITE)?;
    let read = bench.read(HELD, 8, rkey);
    bench.succeed(second.client, read)?;
    bench.refused(first, read)
}

pub(super) fn invalidates_of_a_stale_key_fail<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    bench.succeed(pair.owner, Operation::LocalInvalidate { rkey: held.rkey })?;
    let again = Window { id: window_of(held)?, rkey: held.rkey };
    bench.bind(pair.owner, again, READ_WRITE)?;
    bench.fails(pair.owner, Operation::LocalInvalidate { rkey: held.rkey }, &INVALIDATE_ERRORS)
}

pub(super) fn invalidates_of_a_free_window_fail<N: Nic>(bench: &mut Bench<N>) -> Check {
    bench.provoke(Misuse::InvalidateFreeWindow)?;
    let window = bench.window(WindowKind::Two)?;
    for rkey in [window.rkey, window.rkey.advanced()] {
        let pair = bench.pair()?;
        bench.fails(pair.owner, Operation::LocalInvalidate { rkey }, &INVALIDATE_ERRORS)?;
    }
    Ok(())
}

pub(super) fn invalidates_of_no_window_fail<N: Nic>(bench: &mut Bench<N>) -> Check {
    bench.require_window(WindowKind::Two)?;
    for rkey in [Rkey::new(0x00ab_cdef, 1), bench.pool.rkey] {
        let pair = bench.pair()?;
        bench.fails(pair.owner, Operation::LocalInvalidate { rkey }, &INVALIDATE_ERRORS)?;
    }
    Ok(())
}

pub(super) fn windows_are_freed_by_the_peers_message_and_it_says_which<N: Nic>(
    bench: &mut Bench<N>,
) -> Check {
    let (pair, held) = held(bench)?;
    let buffer = bench.pool(0, 64);
    let id = bench.receive(pair.owner, buffer)?;
    let local = bench.local(0, 24);
    bench.succeed(pair.client, Operation::SendWithInvalidate { local, rkey: held.rkey })?;
    let (length, invalidated) = bench.received(pair.owner, id)?;
    ensure!(length == 24, "24 bytes arrived as {length}");
    ensure!(
        invalidated == Some(held.rkey),
        "{:?} was invalidated and {invalidated:?} reported it",
        held.rkey
    );
    let again = Window { id: window_of(held)?, rkey: held.rkey };
    let rkey = bench.bind(pair.owner, again, READ_WRITE)?;
    let (new, old) = (bench.read(HELD, 8, rkey), bench.read(HELD, 8, held.rkey));
    bench.succeed(pair.client, new)?;
    bench.refused(pair, old)
}

/// Without this rule one client could end another's permissions.
pub(super) fn windows_are_not_freed_by_the_peer_of_another_queue_pair<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (own, held) = held(bench)?;
    let sibling = bench.pair()?;
    let buffer = bench.pool(0, 64);
    bench.receive(sibling.owner, buffer)?;
    let local = bench.local(0, 8);
    let status = bench.execute(sibling.client, Operation::SendWithInvalidate { local, rkey: held.rkey })?;
    ensure!(status != Status::Success, "a sibling's message invalidated {:?}", held.rkey);
    let read = bench.read(HELD, 8, held.rkey);
    bench.succeed(own.client, read)
}

pub(super) fn messages_cannot_invalidate_what_is_no_window<N: Nic>(bench: &mut Bench<N>) -> Check {
    bench.require_window(WindowKind::Two)?;
    for rkey in [Rkey::new(0x00ab_cdef, 1), bench.pool.rkey] {
        let pair = bench.pair()?;
        let buffer = bench.pool(0, 64);
        bench.receive(pair.owner, buffer)?;
        let local = bench.local(0, 8);
        let status = bench.execute(pair.client, Operation::SendWithInvalidate { local, rkey })?;
        ensure!(status != Status::Success, "a message invalidated {rkey:?}, which is not a window");
    }
    Ok(())
}

/// A node postpones such a bind until the queue pair is rebuilt.
pub(super) fn windows_whose_bind_was_flushed_are_free<N: Nic>(bench: &mut Bench<N>) -> Check {
    bench.require_window(WindowKind::Two)?;
    let pair = bench.pair()?;
    let window = bench.window(WindowKind::Two)?;
    let bind = Operation::BindWindow(bench.binding(window.id, window.rkey.advanced(), READ_WRITE));
    bench.nic.modify_qp(pair.owner.qp, QpChange::Error)?;
    let request = bench.request(bind, true);
    bench.post(pair.owner, &[request])?;
    let status = bench.completions(pair.owner.send_cq, 1)?[0].status;
    ensure!(status == Status::FlushError, "a bind on a queue pair in ERR gave {status}");
    bench.recover(pair)?;
    let read = bench.read(HELD, 8, window.rkey.advanced());
    bench.refused(pair, read)?;
    bench.recover(pair)?;
    bench.succeed(pair.owner, bind)?;
    bench.succeed(pair.client, read)
}

/// A client that has broken its queue pair goes on with the keys that it has.
pub(super) fn windows_outlive_the_recovery_of_their_queue_pair<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    // Outside the region, since this is not about the window's own range.
    let (stray, good) = (bench.read(POOL_BASE - 1, 1, held.rkey), bench.read(HELD, 8, held.rkey));
    for _ in 0..3 {
        bench.refused(pair, stray)?;
        bench.recover(pair)?;
        bench.succeed(pair.client, good)?;
    }
    Ok(())
}

//! Teardown: in the right order it succeeds. In a wrong order it is refused and nothing changes.

use portcullis_examination::bench::{Bench, HELD, HeldObject, Holder};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{
    Access, Misuse, Nic, Operation, QpAttributes, RemoteAddress, VerbsError, WindowBinding, WindowKind,
};

pub(super) fn of_a_domain_waits_for_its_queue_pairs<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pd = bench.nic.allocate_pd()?;
    let cq = bench.nic.create_cq(32)?;
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 16, receive_depth: 16 };
    let qp = bench.nic.create_qp(pd, attributes)?;
    busy("a domain with a queue pair", &bench.nic.deallocate_pd(pd))?;
    bench.nic.destroy_qp(qp)?;
    Ok(bench.nic.deallocate_pd(pd)?)
}

pub(super) fn of_a_domain_waits_for_its_regions<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pd = bench.nic.allocate_pd()?;
    let (base, access) = (RemoteAddress(HELD), Access::LOCAL_WRITE);
    let region = bench.nic.register_region(pd, &bench.pool_memory, 0..64, base, access)?;
    busy("a domain with a region", &bench.nic.deallocate_pd(pd))?;
    bench.nic.deregister_region(region.id)?;
    Ok(bench.nic.deallocate_pd(pd)?)
}

pub(super) fn of_a_domain_waits_for_its_windows<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    bench.require_window(kind)?;
    let pd = bench.nic.allocate_pd()?;
    let window = bench.nic.allocate_window(pd, kind)?;
    busy("a domain with a window", &bench.nic.deallocate_pd(pd))?;
    bench.nic.deallocate_window(window.id)?;
    Ok(bench.nic.deallocate_pd(pd)?)
}

pub(super) fn of_a_completion_queue_waits_for_its_queue_pairs<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (send_cq, receive_cq) = (bench.nic.create_cq(32)?, bench.nic.create_cq(32)?);
    let attributes = QpAttributes { send_cq, receive_cq, send_depth: 16, receive_depth: 16 };
    let qp = bench.nic.create_qp(bench.owner_pd, attributes)?;
    for cq in [send_cq, receive_cq] {
        busy("a completion queue in use", &bench.nic.destroy_cq(cq))?;
    }
    bench.nic.destroy_qp(qp)?;
    for cq in [send_cq, receive_cq] {
        bench.nic.destroy_cq(cq)?;
    }
    Ok(())
}

/// Without this rule a window would open memory that its owner has taken back.
pub(super) fn of_a_region_waits_for_its_windows<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let (pair, held) = bench.fresh(Holder::Window(kind), Access::REMOTE_READ)?;
    busy("a region under a window", &bench.nic.deregister_region(bench.pool.id))?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.succeed(pair.client, read)?;
    if let HeldObject::Window(window) = held.object {
        bench.nic.deallocate_window(window)?;
    }
    Ok(bench.nic.deregister_region(bench.pool.id)?)
}

/// An unbind releases the region just as destroying the window does.
pub(super) fn of_a_region_works_after_the_unbind<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let (pair, held) = bench.fresh(Holder::Window(kind), Access::REMOTE_READ)?;
    let HeldObject::Window(window) = held.object else {
        return Err(Stop::Broken("the bench holds no window".to_owned()));
    };
    let unbind = bench.unbinding(kind, held)?;
    bench.succeed(pair.owner, unbind)?;
    bench.nic.deregister_region(bench.pool.id)?;
    Ok(bench.nic.deallocate_window(window)?)
}

/// A window that moved to another region holds that region, and no longer the first.
pub(super) fn of_a_region_follows_a_window_that_moves<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Window(WindowKind::One), Access::REMOTE_READ)?;
    let HeldObject::Window(window) = held.object else {
        return Err(Stop::Broken("the bench holds no window".to_owned()));
    };
    let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let (pd, base) = (bench.owner_pd, RemoteAddress(HELD));
    let other = bench.nic.register_region(pd, &bench.pool_memory, 4096..8192, base, access)?;
    let binding = bench.binding(window, held.rkey.advanced(), Access::REMOTE_READ);
    let binding = WindowBinding { region: other.id, ..binding };
    bench.succeed(pair.owner, Operation::BindWindow(binding))?;
    bench.nic.deregister_region(bench.pool.id)?;
    busy("the region that the window moved to", &bench.nic.deregister_region(other.id))?;
    let read = bench.read(HELD, 8, binding.rkey);
    bench.succeed(pair.client, read)
}

pub(super) fn of_a_queue_pair_waits_for_its_type_2_windows<N: Nic>(bench: &mut Bench<N>) -> Check {
    bench.require_window(WindowKind::Two)?;
    bench.provoke(Misuse::QueuePairBeforeBoundWindow)?;
    let (pair, held) = bench.fresh(Holder::Window(WindowKind::Two), Access::REMOTE_READ)?;
    busy("a queue pair with a type-2 window", &bench.nic.destroy_qp(pair.owner.qp))?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.succeed(pair.client, read)?;
    if let HeldObject::Window(window) = held.object {
        bench.nic.deallocate_window(window)?;
    }
    Ok(bench.nic.destroy_qp(pair.owner.qp)?)
}

pub(super) fn in_the_right_order_leaves_nothing<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let kinds =
        [WindowKind::One, WindowKind::Two].into_iter().filter(|kind| bench.require_window(*kind).is_ok());
    let kinds: Vec<WindowKind> = kinds.collect();
    let mut windows = Vec::new();
    for kind in kinds {
        if let HeldObject::Window(window) = bench.key(pair, Holder::Window(kind), Access::REMOTE)?.object {
            windows.push(window);
        }
    }
    for window in windows {
        bench.nic.deallocate_window(window)?;
    }
    for end in [pair.client, pair.owner] {
        bench.nic.destroy_qp(end.qp)?;
        bench.nic.destroy_cq(end.send_cq)?;
        bench.nic.destroy_cq(end.receive_cq)?;
    }
    for region in [bench.pool.id, bench.local.id] {
        bench.nic.deregister_region(region)?;
    }
    for pd in [bench.owner_pd, bench.client_pd] {
        bench.nic.deallocate_pd(pd)?;
    }
    Ok(())
}

fn busy(what: &str, said: &Result<(), VerbsError>) -> Check {
    ensure!(matches!(said, Err(VerbsError::Busy { .. })), "tearing down {what} gave {said:?}");
    Ok(())
}

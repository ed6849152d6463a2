//! Local spans: a request that names the wrong bytes of its own side fails on that side.

use portcullis_examination::bench::{
    Bench, HELD, HELD_OFFSET, Holder, LOCAL_BASE, MEMORY_BYTES, POOL_BASE, remote,
};
use portcullis_examination::check::Check;
use portcullis_nic::{
    Access, Lkey, LocalSpan, Nic, Operation, RemoteAddress, Status, WindowBinding, WindowKind,
};

const WRONG: [Status; 1] = [Status::LocalProtectionError];

pub(super) fn keys_that_nobody_gave_are_refused<N: Nic>(bench: &mut Bench<N>) -> Check {
    let own = bench.local.lkey.0;
    for key in [0xabcd_ef01, own ^ 1, own ^ 0x80] {
        both_fail(bench, |_| LocalSpan { address: LOCAL_BASE, length: 8, lkey: Lkey(key) })?;
    }
    Ok(())
}

pub(super) fn keys_of_another_domain_are_refused<N: Nic>(bench: &mut Bench<N>) -> Check {
    both_fail(bench, |bench| LocalSpan { address: POOL_BASE, length: 8, lkey: bench.pool.lkey })
}

/// This is the window that a NIC most easily mistakes for a region: the client's own, bound over the same bytes.
pub(super) fn keys_of_windows_are_refused<N: Nic>(bench: &mut Bench<N>) -> Check {
    let kind = if bench.capabilities.window_type_1 { WindowKind::One } else { WindowKind::Two };
    bench.require_window(kind)?;
    let (pd, base) = (bench.client_pd, RemoteAddress(LOCAL_BASE));
    let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let region = bench.nic.register_region(pd, &bench.local_memory, 0..MEMORY_BYTES, base, access)?;
    let window = bench.nic.allocate_window(pd, kind)?;
    let binder = bench.pair()?;
    let binding = WindowBinding {
        region: region.id,
        address: base,
        ..bench.binding(window.id, window.rkey.advanced(), Access::REMOTE)
    };
    bench.succeed(binder.client, Operation::BindWindow(binding))?;
    let lkey = Lkey(binding.rkey.0);
    both_fail(bench, |_| LocalSpan { address: LOCAL_BASE, length: 8, lkey })
}

pub(super) fn spans_outside_their_region_are_refused<N: Nic>(bench: &mut Bench<N>) -> Check {
    let end = LOCAL_BASE + MEMORY_BYTES;
    for address in [LOCAL_BASE - 1, end - 7, end, 0, u64::MAX - 7, u64::MAX - 3] {
        both_fail(bench, |bench| LocalSpan { address, length: 8, lkey: bench.local.lkey })?;
    }
    Ok(())
}

pub(super) fn regions_that_are_gone_are_refused<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pd, base) = (bench.client_pd, RemoteAddress(LOCAL_BASE));
    let gone =
        bench.nic.register_region(pd, &bench.local_memory, 0..MEMORY_BYTES, base, Access::LOCAL_WRITE)?;
    bench.nic.deregister_region(gone.id)?;
    both_fail(bench, |_| LocalSpan { address: LOCAL_BASE, length: 8, lkey: gone.lkey })
}

pub(super) fn reads_into_a_region_without_local_write_are_refused<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pd, base) = (bench.client_pd, RemoteAddress(LOCAL_BASE));
    let fixed = bench.nic.register_region(pd, &bench.local_memory, 0..MEMORY_BYTES, base, Access::empty())?;
    let local = LocalSpan { address: LOCAL_BASE, length: 8, lkey: fixed.lkey };
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let remote = remote(HELD, held.rkey);
    bench.succeed(pair.client, Operation::Write { local, remote })?;
    bench.fails(pair.client, Operation::Read { local, remote }, &WRONG)
}

pub(super) fn messages_from_the_wrong_bytes_are_not_sent<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let buffer = bench.pool(0, 64);
    bench.receive(pair.owner, buffer)?;
    let local = LocalSpan { length: 8, lkey: bench.local.lkey, address: LOCAL_BASE + MEMORY_BYTES - 7 };
    bench.fails(pair.client, Operation::Send { local }, &WRONG)?;
    bench.no_completion(pair.owner.receive_cq)
}

/// The same rules hold for the owner's end: a node may read its own pool by mistake.
pub(super) fn spans_of_the_owners_end_are_checked_too<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let local = LocalSpan { address: LOCAL_BASE, length: 8, lkey: bench.local.lkey };
    let remote = remote(POOL_BASE + HELD_OFFSET, bench.pool.rkey);
    bench.fails(pair.owner, Operation::Write { local, remote }, &WRONG)
}

/// A WRITE and a READ with this local span must fail at the requester, and move nothing.
fn both_fail<N: Nic>(bench: &mut Bench<N>, span: impl Fn(&Bench<N>) -> LocalSpan) -> Check {
    for reads in [false, true] {
        let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
        let (local, remote) = (span(bench), remote(HELD, held.rkey));
        let operation =
            if reads { Operation::Read { local, remote } } else { Operation::Write { local, remote } };
        bench.fails(pair.client, operation, &WRONG)?;
    }
    Ok(())
}

//! Binds that must fail: a window opens no more than its region, its domain and its owner allow.

use portcullis_examination::bench::{Bench, HELD, HELD_BYTES, HELD_OFFSET, MEMORY_BYTES, POOL_BASE, Pair};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{
    Access, Guarantee, Nic, Operation, Region, RegionId, RemoteAddress, Rkey, Status, VerbsError,
    WindowBinding, WindowId, WindowKind,
};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub(super) fn past_the_end_of_the_region_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let address = RemoteAddress(POOL_BASE + MEMORY_BYTES - 8);
    fails(bench, kind, |_, good| Ok(WindowBinding { address, length: 9, ..good }))
}

pub(super) fn below_the_region_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let address = RemoteAddress(POOL_BASE - 1);
    fails(bench, kind, |_, good| Ok(WindowBinding { address, length: 9, ..good }))
}

pub(super) fn longer_than_the_region_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    for length in [MEMORY_BYTES, 1 << 32, u64::MAX] {
        fails(bench, kind, |_, good| Ok(WindowBinding { length, ..good }))?;
    }
    Ok(())
}

/// If the end of such a window overflows when it is computed, the window seems to lie inside the region.
pub(super) fn that_wrap_the_address_space_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let address = RemoteAddress(u64::MAX - 15);
    fails(bench, kind, |_, good| Ok(WindowBinding { address, length: POOL_BASE + 32, ..good }))
}

pub(super) fn over_a_region_that_allows_none_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    fails(bench, kind, |bench, good| {
        let region = held_region(bench, bench.owner_pd, READ_WRITE | Access::LOCAL_WRITE)?;
        Ok(WindowBinding { region: region.id, ..good })
    })
}

pub(super) fn over_a_region_of_another_domain_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    fails(bench, kind, |bench, good| {
        let access = READ_WRITE | Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let region = held_region(bench, bench.client_pd, access)?;
        Ok(WindowBinding { region: region.id, ..good })
    })
}

pub(super) fn of_a_window_of_another_domain_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    bench.require_window(kind)?;
    fails(bench, kind, |bench, good| {
        let window = bench.nic.allocate_window(bench.client_pd, kind)?;
        Ok(WindowBinding { window: window.id, rkey: window.rkey.advanced(), ..good })
    })
}

/// A client that could bind would open the owner's memory to itself.
pub(super) fn through_a_queue_pair_of_another_domain_fail<N: Nic>(
    bench: &mut Bench<N>,
    kind: WindowKind,
) -> Check {
    let window = bench.window(kind)?;
    let pair = bench.pair()?;
    let binding = bench.binding(window.id, window.rkey.advanced(), READ_WRITE);
    bench.fails(pair.client, Operation::BindWindow(binding), &[Status::WindowBindError])?;
    bench.recover(pair)?;
    opens_nothing(bench, pair, HELD, binding.rkey)
}

pub(super) fn that_let_peers_write_where_the_owner_may_not_fail<N: Nic>(
    bench: &mut Bench<N>,
    kind: WindowKind,
) -> Check {
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE] {
        fails(bench, kind, |bench, good| {
            let region = held_region(bench, bench.owner_pd, Access::WINDOW_BIND)?;
            Ok(WindowBinding { region: region.id, access, ..good })
        })?;
    }
    Ok(())
}

pub(super) fn to_the_key_of_another_object_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    fails(bench, kind, |_, good| {
        let rkey = Rkey::new(good.rkey.index() ^ 1, good.rkey.low_byte());
        Ok(WindowBinding { rkey, ..good })
    })
}

pub(super) fn over_a_region_that_is_gone_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    fails(bench, kind, |bench, good| {
        let access = READ_WRITE | Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let region = held_region(bench, bench.owner_pd, access)?;
        bench.nic.deregister_region(region.id)?;
        Ok(WindowBinding { region: region.id, ..good })
    })?;
    fails(bench, kind, |_, good| Ok(WindowBinding { region: RegionId(u32::MAX - 7), ..good }))
}

pub(super) fn of_a_window_that_is_gone_fail<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    fails(bench, kind, |bench, good| {
        let window = bench.window(kind)?;
        bench.nic.deallocate_window(window.id)?;
        Ok(WindowBinding { window: window.id, rkey: window.rkey.advanced(), ..good })
    })?;
    fails(bench, kind, |_, good| Ok(WindowBinding { window: WindowId(u32::MAX - 7), ..good }))
}

/// Positive check: unlike the other promises in this module, a bind up to the region's last byte must succeed.
pub(super) fn up_to_the_edges_of_the_region_work<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let pair = bench.pair()?;
    let window = bench.window(kind)?;
    let binding = WindowBinding {
        address: RemoteAddress(POOL_BASE),
        length: MEMORY_BYTES,
        ..bench.binding(window.id, window.rkey.advanced(), Access::REMOTE_READ)
    };
    bench.succeed(pair.owner, Operation::BindWindow(binding))?;
    for address in [POOL_BASE, POOL_BASE + MEMORY_BYTES - 8] {
        let read = bench.read(address, 8, binding.rkey);
        bench.succeed(pair.client, read)?;
    }
    let read = bench.read(POOL_BASE + MEMORY_BYTES - 8, 9, binding.rkey);
    bench.refused(pair, read)
}

fn held_region<N: Nic>(
    bench: &mut Bench<N>,
    pd: portcullis_nic::PdId,
    access: Access,
) -> Result<Region, Stop> {
    let span = HELD_OFFSET..HELD_OFFSET + HELD_BYTES;
    Ok(bench.nic.register_region(pd, &bench.pool_memory, span, RemoteAddress(HELD), access)?)
}

/// Posts the bind that `spoil` makes of a good one. The bind must fail and its key must open nothing. If the window
/// had a key before, that key must open nothing new.
fn fails<N: Nic>(
    bench: &mut Bench<N>,
    kind: WindowKind,
    spoil: impl FnOnce(&mut Bench<N>, WindowBinding) -> Result<WindowBinding, Stop>,
) -> Check {
    let pair = bench.pair()?;
    let window = bench.window(kind)?;
    // Only a window of type 1 can be bound again in place.
    let before = match kind {
        WindowKind::One => bench.bind(pair.owner, window, READ_WRITE)?,
        WindowKind::Two => window.rkey,
    };
    let good = bench.binding(window.id, before.advanced(), READ_WRITE);
    let bad = spoil(bench, good)?;
    let request = bench.request(Operation::BindWindow(bad), true);
    match bench.nic.post_send(pair.owner.qp, &[request]) {
        // Binds name objects by id, so an unknown id may be noticed before the request is posted.
        Err(VerbsError::NoSuch { .. }) => {}
        Err(other) => return Err(Stop::Broken(format!("posting a bad bind gave: {other}"))),
        Ok(_) => {
            let status = bench.completions(pair.owner.send_cq, 1)?[0].status;
            ensure!(status == Status::WindowBindError, "{bad:?} gave {status}");
        }
    }
    bench.recover(pair)?;
    opens_nothing(bench, pair, HELD, bad.rkey)?;
    opens_nothing(bench, pair, bad.address.0, bad.rkey)?;
    opens_nothing(bench, pair, HELD, good.rkey)?;
    let range = match kind {
        WindowKind::One => Guarantee::WindowRange,
        WindowKind::Two => Guarantee::Type2Range,
    };
    if bench.capabilities.unenforced.contains(&range) {
        return Ok(());
    }
    opens_nothing(bench, pair, HELD + HELD_BYTES, before)
}

/// Tries a READ and a WRITE, and puts the pair back into service after each.
fn opens_nothing<N: Nic>(bench: &mut Bench<N>, pair: Pair, address: u64, rkey: Rkey) -> Check {
    for operation in [bench.read(address, 1, rkey), bench.write(address, 1, rkey)] {
        bench.refused(pair, operation)?;
        bench.recover(pair)?;
    }
    Ok(())
}

//! Regions alone: the accesses that their keys open, and when that ends.

use portcullis_examination::bench::{
    Bench, HELD, HELD_BYTES, HELD_OFFSET, HeldObject, Holder, MEMORY_BYTES, POOL_BASE,
};
use portcullis_examination::check::Check;
use portcullis_examination::ensure;
use portcullis_nic::{Access, Nic, RemoteAddress, VerbsError};

pub(super) fn without_remote_rights_open_nothing_to_peers<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let read = bench.read(HELD, 8, bench.pool.rkey);
    bench.refused(pair, read)?;
    let pair = bench.pair()?;
    let write = bench.write(HELD, 8, bench.pool.rkey);
    bench.refused(pair, write)
}

pub(super) fn refuse_a_queue_pair_of_another_domain<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (_, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let stranger = bench.stranger()?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.refused(stranger, read)?;
    let stranger = bench.stranger()?;
    let write = bench.write(HELD, 8, held.rkey);
    bench.refused(stranger, write)
}

pub(super) fn that_are_gone_open_nothing<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.succeed(pair.client, read)?;
    if let HeldObject::Region(region) = held.object {
        bench.nic.deregister_region(region)?;
    }
    bench.refused(pair, read)
}

pub(super) fn refuse_a_key_that_nobody_gave<N: Nic>(bench: &mut Bench<N>) -> Check {
    for key in [0, u32::MAX, 0x00ab_cd00] {
        let pair = bench.pair()?;
        let read = bench.read(HELD, 8, portcullis_nic::Rkey(key));
        bench.refused(pair, read)?;
    }
    Ok(())
}

pub(super) fn over_the_same_bytes_do_not_share_rights<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, readable) = bench.fresh(Holder::Region, Access::REMOTE_READ)?;
    let writable = bench.key(pair, Holder::Region, Access::REMOTE_WRITE)?;
    ensure!(readable.rkey != writable.rkey, "two regions have the key {:?}", readable.rkey);
    let (read, write) = (bench.read(HELD, 8, readable.rkey), bench.write(HELD, 8, writable.rkey));
    bench.succeed(pair.client, read)?;
    bench.succeed(pair.client, write)?;
    let write = bench.write(HELD, 8, readable.rkey);
    bench.refused(pair, write)
}

pub(super) fn are_not_made_of_nothing_or_of_bytes_outside<N: Nic>(bench: &mut Bench<N>) -> Check {
    let outside = [
        HELD_OFFSET..HELD_OFFSET,
        MEMORY_BYTES..MEMORY_BYTES + 8,
        MEMORY_BYTES - 8..MEMORY_BYTES + 1,
        u64::MAX - 8..u64::MAX,
    ];
    for span in outside {
        let said = bench.nic.register_region(
            bench.owner_pd,
            &bench.pool_memory,
            span.clone(),
            RemoteAddress(POOL_BASE),
            Access::LOCAL_WRITE,
        );
        ensure!(matches!(said, Err(VerbsError::Invalid(_))), "registering {span:?} gave {said:?}");
    }
    Ok(())
}

pub(super) fn let_no_peer_write_where_their_owner_may_not<N: Nic>(bench: &mut Bench<N>) -> Check {
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let said = bench.nic.register_region(
            bench.owner_pd,
            &bench.pool_memory,
            HELD_OFFSET..HELD_OFFSET + HELD_BYTES,
            RemoteAddress(HELD),
            access,
        );
        ensure!(matches!(said, Err(VerbsError::Invalid(_))), "registering with {access:?} gave {said:?}");
    }
    Ok(())
}

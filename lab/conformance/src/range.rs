//! A key opens its own bytes and no other byte.

use portcullis_examination::bench::{
    Bench, HELD, HELD_BYTES, HELD_OFFSET, Holder, LOCAL_OFFSET, MEMORY_BYTES, POOL_BASE, at,
};
use portcullis_examination::check::Check;
use portcullis_nic::{Access, Nic, Operation, RemoteAddress, WindowBinding};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub(super) fn refuses_the_byte_below<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    refuses(bench, holder, HELD - 1, 1)
}

pub(super) fn refuses_the_byte_past_the_end<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    refuses(bench, holder, HELD + HELD_BYTES, 1)
}

pub(super) fn refuses_what_straddles_the_start<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    refuses(bench, holder, HELD - 1, 9)
}

pub(super) fn refuses_what_straddles_the_end<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    refuses(bench, holder, HELD + HELD_BYTES - 8, 9)
}

pub(super) fn refuses_more_than_the_whole<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    refuses(bench, holder, HELD - 8, u32::try_from(HELD_BYTES).unwrap_or(u32::MAX) + 16)
}

/// These addresses lie outside the region too, so a device that checks only regions must refuse them.
pub(super) fn refuses_what_is_far_outside<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    for address in [0, POOL_BASE - 1, POOL_BASE + MEMORY_BYTES, u64::MAX - 7] {
        refuses(bench, holder, address, 8)?;
    }
    Ok(())
}

/// If the end of such an access overflows when it is computed, the access seems to lie inside the range.
pub(super) fn refuses_a_length_that_wraps_the_address_space<N: Nic>(
    bench: &mut Bench<N>,
    holder: Holder,
) -> Check {
    const LOW_BASE: u64 = 4096;
    let access = READ_WRITE | Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let (pd, base) = (bench.owner_pd, RemoteAddress(LOW_BASE));
    for writes in [false, true] {
        let pair = bench.pair()?;
        let region =
            bench.nic.register_region(pd, &bench.pool_memory, HELD_OFFSET..MEMORY_BYTES, base, access)?;
        let rkey = match holder {
            Holder::Region => region.rkey,
            Holder::Window(kind) => {
                let window = bench.window(kind)?;
                let binding = bench.binding(window.id, window.rkey.advanced(), READ_WRITE);
                let binding = WindowBinding { region: region.id, address: base, ..binding };
                bench.succeed(pair.owner, Operation::BindWindow(binding))?;
                binding.rkey
            }
        };
        let (address, length) = (u64::MAX - 15, 16 + 4096 + 8);
        let operation =
            if writes { bench.write(address, length, rkey) } else { bench.read(address, length, rkey) };
        bench.refused(pair, operation)?;
    }
    Ok(())
}

pub(super) fn reads_exactly_what_is_inside<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    let (pair, held) = bench.fresh(holder, Access::REMOTE_READ)?;
    for (offset, length) in spans_inside() {
        let mut expected = bench.bytes();
        let remote = expected.pool[at(HELD_OFFSET + offset, length)].to_vec();
        expected.local[at(LOCAL_OFFSET, length)].copy_from_slice(&remote);
        let read = bench.read(HELD + offset, length, held.rkey);
        bench.succeed(pair.client, read)?;
        bench.expect_bytes(&expected)?;
    }
    Ok(())
}

pub(super) fn writes_exactly_what_is_inside<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    let (pair, held) = bench.fresh(holder, Access::REMOTE_WRITE)?;
    for (offset, length) in spans_inside() {
        let mut expected = bench.bytes();
        let local = expected.local[at(LOCAL_OFFSET, length)].to_vec();
        expected.pool[at(HELD_OFFSET + offset, length)].copy_from_slice(&local);
        let write = bench.write(HELD + offset, length, held.rkey);
        bench.succeed(pair.client, write)?;
        bench.expect_bytes(&expected)?;
    }
    Ok(())
}

/// InfiniBand leaves open whether the key of such a request is checked (C9-88). The key here is valid.
pub(super) fn moves_nothing_for_length_zero<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    let (pair, held) = bench.fresh(holder, READ_WRITE)?;
    let before = bench.bytes();
    let (read, write) = (bench.read(HELD, 0, held.rkey), bench.write(HELD, 0, held.rkey));
    bench.succeed(pair.client, read)?;
    bench.succeed(pair.client, write)?;
    bench.expect_bytes(&before)
}

/// Tries a READ and a WRITE, each on a fresh pair and key, since a refusal breaks the pair.
fn refuses<N: Nic>(bench: &mut Bench<N>, holder: Holder, address: u64, length: u32) -> Check {
    let (pair, held) = bench.fresh(holder, READ_WRITE)?;
    let read = bench.read(address, length, held.rkey);
    bench.refused(pair, read)?;
    let (pair, held) = bench.fresh(holder, READ_WRITE)?;
    let write = bench.write(address, length, held.rkey);
    bench.refused(pair, write)
}

/// Returns offsets and lengths inside the range: its edges, all of it, and unaligned bytes.
fn spans_inside() -> [(u64, u32); 6] {
    [(0, 1), (HELD_BYTES - 1, 1), (0, 256), (3, 7), (8, 8), (61, 130)]
}

//! A key allows only the accesses that it was made for, and so does a queue pair.

use portcullis_examination::bench::{Bench, HELD, Holder};
use portcullis_examination::check::Check;
use portcullis_nic::{Access, Nic, QpChange, Status};

/// A queue pair without the right may report a malformed request instead of a refusal.
const QP_REFUSALS: [Status; 2] = [Status::RemoteAccessError, Status::RemoteInvalidRequestError];

pub(super) fn refuses_a_read_without_the_right<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    let (pair, held) = bench.fresh(holder, Access::REMOTE_WRITE)?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.refused(pair, read)
}

pub(super) fn refuses_a_write_without_the_right<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    let (pair, held) = bench.fresh(holder, Access::REMOTE_READ)?;
    let write = bench.write(HELD, 8, held.rkey);
    bench.refused(pair, write)
}

pub(super) fn refuses_atomics_without_the_right<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    bench.require_atomics()?;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (pair, held) = bench.fresh(holder, access)?;
    let add = bench.fetch_and_add(HELD, 1, held.rkey);
    bench.refused(pair, add)?;
    let (pair, held) = bench.fresh(holder, access)?;
    let word = bench.held_word();
    let swap = bench.compare_and_swap(HELD, word, !word, held.rkey);
    bench.refused(pair, swap)
}

pub(super) fn refuses_reads_and_writes_with_the_atomic_right_alone<N: Nic>(
    bench: &mut Bench<N>,
    holder: Holder,
) -> Check {
    bench.require_atomics()?;
    let (pair, held) = bench.fresh(holder, Access::REMOTE_ATOMIC)?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.refused(pair, read)?;
    let (pair, held) = bench.fresh(holder, Access::REMOTE_ATOMIC)?;
    let write = bench.write(HELD, 8, held.rkey);
    bench.refused(pair, write)
}

/// The rights of a live queue pair can be changed without informing its peer (Patronus §5.5).
pub(super) fn follow_the_flags_of_a_live_queue_pair<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (pair, held) = bench.fresh(holder, all)?;
    let (read, write) = (bench.read(HELD, 8, held.rkey), bench.write(HELD, 8, held.rkey));
    bench.succeed(pair.client, read)?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Access { access: Access::REMOTE_WRITE })?;
    bench.succeed(pair.client, write)?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Access { access: all })?;
    bench.succeed(pair.client, read)?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Access { access: Access::REMOTE_WRITE })?;
    bench.fails(pair.client, read, &QP_REFUSALS)?;

    let (pair, held) = bench.fresh(holder, all)?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Access { access: Access::REMOTE_READ })?;
    let write = bench.write(HELD, 8, held.rkey);
    bench.fails(pair.client, write, &QP_REFUSALS)
}

pub(super) fn follow_the_atomic_flag_of_a_live_queue_pair<N: Nic>(
    bench: &mut Bench<N>,
    holder: Holder,
) -> Check {
    bench.require_atomics()?;
    let (pair, held) = bench.fresh(holder, Access::REMOTE_ATOMIC)?;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Access { access })?;
    let add = bench.fetch_and_add(HELD, 1, held.rkey);
    bench.fails(pair.client, add, &QP_REFUSALS)
}

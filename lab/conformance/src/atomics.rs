//! Atomics: their effects, and that the same ranges apply to them as to other accesses.

use portcullis_examination::bench::{
    Bench, HELD, HELD_BYTES, HELD_OFFSET, Holder, LOCAL_OFFSET, POOL_BASE, at, remote,
};
use portcullis_examination::check::Check;
use portcullis_examination::ensure;
use portcullis_nic::{Access, Memory, Nic, Operation, Rkey, Status};

pub(super) fn refuse_the_word_below<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    refuses_both(bench, holder, HELD - 8, &[Status::RemoteAccessError])
}

pub(super) fn refuse_the_word_past_the_end<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    refuses_both(bench, holder, HELD + HELD_BYTES, &[Status::RemoteAccessError])
}

/// The range ends in the middle of a word. The first half of the word lies inside, which is not enough.
pub(super) fn refuse_a_word_that_straddles_the_end<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    bench.require_atomics()?;
    let pair = bench.pair()?;
    let held = bench.key_over(pair, holder, Access::REMOTE_ATOMIC, 12)?;
    let (inside, across) =
        (bench.fetch_and_add(HELD, 1, held.rkey), bench.fetch_and_add(HELD + 8, 1, held.rkey));
    bench.succeed(pair.client, inside)?;
    // The result of the first atomic must not hide what the refused one would return.
    bench.local_memory.zero(LOCAL_OFFSET, 8);
    bench.refused(pair, across)
}

pub(super) fn refuse_a_word_that_is_not_aligned<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    for offset in [1, 4] {
        // Either the peer's NIC or the requester's driver notices the misalignment.
        let statuses =
            [Status::RemoteAccessError, Status::RemoteInvalidRequestError, Status::LocalQpOperationError];
        refuses_both(bench, holder, HELD + offset, &statuses)?;
    }
    Ok(())
}

/// The request itself is wrong. A device may refuse it when it is posted, or complete it with an error.
pub(super) fn refuse_a_local_span_that_is_not_one_word<N: Nic>(
    bench: &mut Bench<N>,
    holder: Holder,
) -> Check {
    bench.require_atomics()?;
    for length in [0, 4, 7, 9, 16] {
        let (pair, held) = bench.fresh(holder, Access::REMOTE_ATOMIC)?;
        let (local, remote) = (bench.local(LOCAL_OFFSET, length), remote(HELD, held.rkey));
        let request = bench.request(Operation::FetchAndAdd { local, remote, add: 1 }, true);
        let before = bench.bytes();
        if bench.nic.post_send(pair.client.qp, &[request]).is_ok() {
            let status = bench.completions(pair.client.send_cq, 1)?[0].status;
            ensure!(status != Status::Success, "an atomic with {length} local bytes succeeded");
        }
        bench.expect_bytes(&before)?;
    }
    Ok(())
}

pub(super) fn swap_when_the_word_compares<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    let swap = 0x1122_3344_5566_7788;
    gives_and_leaves(bench, holder, |bench, rkey| {
        let word = bench.held_word();
        (bench.compare_and_swap(HELD, word, swap, rkey), swap)
    })
}

pub(super) fn leave_a_word_that_does_not_compare<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    gives_and_leaves(bench, holder, |bench, rkey| {
        let word = bench.held_word();
        (bench.compare_and_swap(HELD, !word, 1, rkey), word)
    })
}

pub(super) fn add_and_give_the_value_before<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    gives_and_leaves(bench, holder, |bench, rkey| {
        (bench.fetch_and_add(HELD, 5, rkey), bench.held_word().wrapping_add(5))
    })
}

pub(super) fn add_past_the_largest_number_by_wrapping<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    bench.pool_memory.store(HELD_OFFSET, u64::MAX - 1);
    gives_and_leaves(bench, holder, |bench, rkey| (bench.fetch_and_add(HELD, 3, rkey), 1))
}

/// Each atomic sees the result of the one before it, even if all are posted with one doorbell.
pub(super) fn of_one_queue_see_each_other_in_order<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Check {
    bench.require_atomics()?;
    let (pair, held) = bench.fresh(holder, Access::REMOTE_ATOMIC)?;
    let word = bench.held_word();
    let mut requests = Vec::new();
    for step in 0..8 {
        let (local, remote) = (bench.local(LOCAL_OFFSET + 8 * step, 8), remote(HELD, held.rkey));
        requests.push(bench.request(Operation::FetchAndAdd { local, remote, add: 1 }, true));
    }
    bench.post(pair.client, &requests)?;
    for completion in bench.completions(pair.client.send_cq, 8)? {
        ensure!(completion.status == Status::Success, "an atomic inside gave {}", completion.status);
    }
    for step in 0..8 {
        let seen = bench.local_memory.load(LOCAL_OFFSET + 8 * step);
        ensure!(seen == word.wrapping_add(step), "atomic {step} saw {seen:#x}, after {word:#x} at first");
    }
    ensure!(bench.held_word() == word.wrapping_add(8), "eight atomics left {:#x}", bench.held_word());
    Ok(())
}

/// Executes one atomic. The local word must become the remote word's old value, the remote word must become the value
/// that `plan` returns, and no other byte may change.
fn gives_and_leaves<N: Nic>(
    bench: &mut Bench<N>,
    holder: Holder,
    plan: impl Fn(&Bench<N>, Rkey) -> (Operation, u64),
) -> Check {
    bench.require_atomics()?;
    let (pair, held) = bench.fresh(holder, Access::REMOTE_ATOMIC)?;
    let mut expected = bench.bytes();
    let before = expected.pool[at(HELD_OFFSET, 8)].to_vec();
    expected.local[at(LOCAL_OFFSET, 8)].copy_from_slice(&before);
    let (operation, after) = plan(bench, held.rkey);
    bench.succeed(pair.client, operation)?;
    expected.pool[at(HELD_OFFSET, 8)].copy_from_slice(&after.to_ne_bytes());
    bench.expect_bytes(&expected)
}

fn refuses_both<N: Nic>(bench: &mut Bench<N>, holder: Holder, address: u64, statuses: &[Status]) -> Check {
    bench.require_atomics()?;
    let (pair, held) = bench.fresh(holder, Access::REMOTE)?;
    let add = bench.fetch_and_add(address, 1, held.rkey);
    bench.fails(pair.client, add, statuses)?;
    let (pair, held) = bench.fresh(holder, Access::REMOTE)?;
    // Compares with the present value, so that a swap that the NIC lets through would show.
    let mut word = [0; 8];
    bench.pool_memory.read(address - POOL_BASE, &mut word);
    let word = u64::from_ne_bytes(word);
    let swap = bench.compare_and_swap(address, word, !word, held.rkey);
    bench.fails(pair.client, swap, statuses)
}

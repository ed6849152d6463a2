//! Consequences of a violation: which queue pairs fail, and how they recover.

use portcullis_examination::bench::{Bench, HELD, Holder, Pair, Plan, remote};
use portcullis_examination::check::Check;
use portcullis_examination::ensure;
use portcullis_nic::{Access, AccessFault, Nic, Operation, QpChange, QpState, Rkey, Status};

/// The upper bits of a key that a NIC assigns only after millions of other keys.
const NOBODYS_INDEX: u32 = 0x00ff_fff0;

pub(super) fn put_both_ends_in_error_and_name_the_owners<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE_READ)?;
    let early = bench.nic.poll_event();
    ensure!(early.is_none(), "there is {early:?} before anything happened");
    let stray = bench.read(HELD - 1, 1, held.rkey);
    bench.refused(pair, stray)?;
    bench.expect_state(pair.client, QpState::Error)?;
    bench.expect_state(pair.owner, QpState::Error)?;
    bench.expect_access_error(pair.owner)?;
    let surplus = bench.nic.poll_event();
    ensure!(surplus.is_none(), "one violation gave {surplus:?} too");
    Ok(())
}

/// One client's violation is never an error of another client.
pub(super) fn leave_other_queue_pairs_undisturbed<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (bystander, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let (stray, good) = (bench.read(HELD - 1, 1, held.rkey), bench.read(HELD, 8, held.rkey));
    // From here on the bystander's reads do not change its memory, so that the culprit's stray byte would be noticed.
    bench.succeed(bystander.client, good)?;
    for _ in 0..4 {
        let culprit = bench.pair()?;
        let requests: Vec<_> = (0..8).map(|_| bench.request(good, true)).collect();
        bench.post(bystander.client, &requests)?;
        bench.refused(culprit, stray)?;
        for completion in bench.completions(bystander.client.send_cq, 8)? {
            ensure!(completion.status == Status::Success, "a bystander got {completion:?}");
        }
        bench.succeed(bystander.client, good)?;
        bench.expect_state(bystander.client, QpState::ReadyToSend)?;
        bench.expect_state(bystander.owner, QpState::ReadyToSend)?;
        bench.expect_access_error(culprit.owner)?;
    }
    Ok(())
}

/// A NIC need not report the access that it refused, but its report must be true.
pub(super) fn are_what_the_nic_says_of_them<N: Nic>(bench: &mut Bench<N>) -> Check {
    use AccessFault::{MissingRight, OutsideRange, StaleKey, UnknownKey, WrongDomain};
    let (_, held) = bench.fresh(Holder::Region, Access::REMOTE_READ)?;
    let (family, stranger) = (bench.plan(), bench.stranger()?);
    let stale = Rkey::new(held.rkey.index(), held.rkey.low_byte().wrapping_add(1));
    let nobodys = Rkey::new(NOBODYS_INDEX, 0);
    let read = Access::REMOTE_READ;
    let strays = [
        (Access::REMOTE, bench.read(HELD - 1, 9, held.rkey), (HELD - 1, 9, read, held.rkey, OutsideRange)),
        (Access::REMOTE, bench.read(HELD, 8, stale), (HELD, 8, read, stale, StaleKey)),
        (Access::REMOTE, bench.read(HELD, 8, nobodys), (HELD, 8, read, nobodys, UnknownKey)),
        (
            Access::REMOTE,
            bench.write(HELD + 8, 16, held.rkey),
            (HELD + 8, 16, Access::REMOTE_WRITE, held.rkey, MissingRight),
        ),
        (Access::REMOTE_WRITE, bench.read(HELD, 4, held.rkey), (HELD, 4, read, held.rkey, MissingRight)),
    ];
    for (access, stray, expected) in strays {
        let pair = bench.pair_as(Plan { access, ..family })?;
        tells_truly(bench, pair, stray, expected)?;
    }
    let elsewhere = bench.read(HELD, 8, held.rkey);
    tells_truly(bench, stranger, elsewhere, (HELD, 8, read, held.rkey, WrongDomain))
}

/// Address, length, right, key and fault of a refused access.
type Refused = (u64, u64, Access, Rkey, AccessFault);

fn tells_truly<N: Nic>(bench: &mut Bench<N>, pair: Pair, stray: Operation, expected: Refused) -> Check {
    bench.fails(pair.client, stray, &[Status::RemoteAccessError, Status::RemoteInvalidRequestError])?;
    let told = bench.expect_access_error(pair.owner)?;
    let told = told.map(|it| (it.address.0, it.length, it.needs, it.rkey, it.fault));
    ensure!(
        told.is_none_or(|told| told == expected),
        "{stray:?} was reported as {told:x?}, not {expected:x?}"
    );
    Ok(())
}

pub(super) fn at_home_leave_the_peer_in_service<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let wrong = Operation::Read { local: bench.pool(0, 8), remote: remote(HELD, held.rkey) };
    bench.fails(pair.client, wrong, &[Status::LocalProtectionError])?;
    bench.expect_state(pair.client, QpState::Error)?;
    let event = bench.nic.poll_event();
    ensure!(event.is_none(), "a client's own mistake gave its peer {event:?}");
    bench.expect_state(pair.owner, QpState::ReadyToSend)
}

pub(super) fn of_the_peer_show_as_retries_exceeded<N: Nic>(bench: &mut Bench<N>) -> Check {
    for change in [QpChange::Error, QpChange::Reset] {
        let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
        bench.nic.modify_qp(pair.owner.qp, change)?;
        let read = bench.read(HELD, 8, held.rkey);
        bench.fails(pair.client, read, &[Status::RetryExceededError])?;
        bench.expect_state(pair.client, QpState::Error)?;
    }
    Ok(())
}

pub(super) fn of_a_peer_that_is_gone_show_as_retries_exceeded<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    bench.nic.destroy_qp(pair.owner.qp)?;
    let read = bench.read(HELD, 8, held.rkey);
    bench.fails(pair.client, read, &[Status::RetryExceededError])
}

pub(super) fn are_over_after_reset_and_reconnection<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let (stray, good) = (bench.write(HELD - 1, 1, held.rkey), bench.write(HELD, 8, held.rkey));
    for _ in 0..3 {
        let flushed = [bench.request(stray, true), bench.request(good, true)];
        bench.post(pair.client, &flushed)?;
        bench.completions(pair.client.send_cq, 2)?;
        bench.recover(pair)?;
        bench.succeed(pair.client, good)?;
        let buffer = bench.pool(0, 64);
        let id = bench.receive(pair.owner, buffer)?;
        let local = bench.local(0, 8);
        bench.succeed(pair.client, Operation::Send { local })?;
        bench.received(pair.owner, id)?;
    }
    Ok(())
}

/// A recovered queue pair has the rights that it was given in the recovery, not its earlier ones.
pub(super) fn do_not_bring_old_rights_back<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let (stray, read) = (bench.read(HELD - 1, 1, held.rkey), bench.read(HELD, 8, held.rkey));
    bench.refused(pair, stray)?;
    for end in [pair.client, pair.owner] {
        bench.nic.modify_qp(end.qp, QpChange::Reset)?;
    }
    let plan = Plan { access: Access::REMOTE_WRITE, ..bench.plan() };
    bench.connect(pair, plan)?;
    let write = bench.write(HELD, 8, held.rkey);
    bench.succeed(pair.client, write)?;
    bench.fails(pair.client, read, &[Status::RemoteAccessError, Status::RemoteInvalidRequestError])
}

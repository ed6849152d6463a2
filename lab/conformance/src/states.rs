//! The states of a queue pair: the allowed transitions, and that all others are refused.

use portcullis_examination::bench::{Bench, End, Pair, RETRY_FOR_EVER};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{Access, Nic, QpAddress, QpChange, QpState, VerbsError};

pub(super) fn skip_no_step_and_take_none_back<N: Nic>(bench: &mut Bench<N>) -> Check {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
    for from in [Reset, Init, ReadyToReceive, ReadyToSend, Error] {
        let plan = bench.plan();
        let pair = bench.unconnected(plan)?;
        let peer = bench.nic.qp_address(pair.owner.qp)?;
        let steps = [
            (QpChange::Init { access: Access::REMOTE }, &[Reset, Init][..]),
            (QpChange::ReadyToReceive { peer }, &[Init]),
            (QpChange::ReadyToSend { rnr_retries: RETRY_FOR_EVER }, &[ReadyToReceive, ReadyToSend]),
            (QpChange::Access { access: Access::REMOTE_READ }, &[Init, ReadyToReceive, ReadyToSend]),
        ];
        take_to(bench, pair.client, peer, from)?;
        for (step, allowed_from) in steps {
            // If InfiniBand allows a step to repeat, a device may allow it or not.
            if allowed_from.contains(&from) {
                continue;
            }
            let said = bench.nic.modify_qp(pair.client.qp, step);
            ensure!(said == Err(VerbsError::State { from }), "{step:?} in {from} gave {said:?}");
            let now = bench.nic.qp_state(pair.client.qp)?;
            ensure!(now == from, "a step refused in {from} led to {now}");
        }
    }
    Ok(())
}

pub(super) fn are_what_the_last_step_made_them<N: Nic>(bench: &mut Bench<N>) -> Check {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
    for state in [Reset, Init, ReadyToReceive, ReadyToSend, Error] {
        let plan = bench.plan();
        let Pair { client, owner } = bench.unconnected(plan)?;
        let peer = bench.nic.qp_address(owner.qp)?;
        take_to(bench, client, peer, state)?;
        let now = bench.nic.qp_state(client.qp)?;
        ensure!(now == state, "a queue pair taken to {state} is in {now}");
    }
    Ok(())
}

pub(super) fn all_lead_back_to_reset<N: Nic>(bench: &mut Bench<N>) -> Check {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
    let all = [Reset, Init, ReadyToReceive, ReadyToSend, Error];
    leads(bench, &all, QpChange::Reset, Reset)
}

pub(super) fn all_that_can_hold_requests_lead_to_error<N: Nic>(bench: &mut Bench<N>) -> Check {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend};
    // Linux refuses RESET to ERR, because nothing is posted that could be flushed. A device may allow it or not.
    leads(bench, &[Init, ReadyToReceive, ReadyToSend, Error], QpChange::Error, Error)
}

pub(super) fn of_a_queue_pair_in_error_end_only_by_reset<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Error)?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Error)?;
    let said = bench.nic.modify_qp(pair.owner.qp, QpChange::ReadyToSend { rnr_retries: 0 });
    ensure!(said == Err(VerbsError::State { from: QpState::Error }), "ERR to RTS gave {said:?}");
    bench.nic.modify_qp(pair.owner.qp, QpChange::Reset)?;
    bench.expect_state(pair.owner, QpState::Reset)
}

/// Two queue pairs have different addresses.
pub(super) fn have_addresses_that_tell_queue_pairs_apart<N: Nic>(bench: &mut Bench<N>) -> Check {
    let plan = bench.plan();
    let pair = bench.unconnected(plan)?;
    let (client, owner) = (bench.nic.qp_address(pair.client.qp)?, bench.nic.qp_address(pair.owner.qp)?);
    ensure!(client.number != owner.number, "two queue pairs have the number {}", client.number);
    Ok(())
}

fn leads<N: Nic>(bench: &mut Bench<N>, froms: &[QpState], change: QpChange, to: QpState) -> Check {
    for &from in froms {
        let plan = bench.plan();
        let pair = bench.unconnected(plan)?;
        let peer = bench.nic.qp_address(pair.owner.qp)?;
        take_to(bench, pair.client, peer, from)?;
        bench.nic.modify_qp(pair.client.qp, change)?;
        let now = bench.nic.qp_state(pair.client.qp)?;
        ensure!(now == to, "{change:?} in {from} led to {now}");
    }
    Ok(())
}

/// Takes a queue pair from RESET to a state.
fn take_to<N: Nic>(bench: &mut Bench<N>, end: End, peer: QpAddress, state: QpState) -> Result<(), Stop> {
    let steps = [
        QpChange::Init { access: Access::REMOTE },
        QpChange::ReadyToReceive { peer },
        QpChange::ReadyToSend { rnr_retries: RETRY_FOR_EVER },
        QpChange::Error,
    ];
    let count = match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::ReadyToReceive => 2,
        QpState::ReadyToSend => 3,
        QpState::Error => 4,
    };
    for step in &steps[..count] {
        bench.nic.modify_qp(end.qp, *step)?;
    }
    Ok(())
}

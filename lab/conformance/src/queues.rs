//! Queues and completions: one completion for each signalled request, none for others. A full queue is no error.

use portcullis_examination::bench::{Bench, HELD, Holder, QUEUE_DEPTH};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{
    Access, Nic, Operation, QpAttributes, QpChange, QpState, ReceiveRequest, Status, VerbsError, WorkRequest,
};

const DEPTH: usize = QUEUE_DEPTH as usize;

pub(super) fn take_nothing_before_they_are_ready<N: Nic>(bench: &mut Bench<N>) -> Check {
    let plan = bench.plan();
    let pair = bench.unconnected(plan)?;
    let (qp, peer) = (pair.client.qp, bench.nic.qp_address(pair.owner.qp)?);
    let steps = [
        (QpState::Reset, Some(QpChange::Init { access: plan.access })),
        (QpState::Init, Some(QpChange::ReadyToReceive { peer })),
        (QpState::ReadyToReceive, None),
    ];
    for (from, step) in steps {
        let local = bench.local(0, 8);
        let request = bench.request(Operation::Send { local }, true);
        let said = bench.nic.post_send(qp, &[request]);
        ensure!(said == Err(VerbsError::State { from }), "posting a send in {from} gave {said:?}");
        if from == QpState::Reset {
            let said = bench.nic.post_receive(qp, &[ReceiveRequest { id: 1, local }]);
            ensure!(said == Err(VerbsError::State { from }), "posting a receive in {from} gave {said:?}");
        }
        if let Some(step) = step {
            bench.nic.modify_qp(qp, step)?;
        }
    }
    bench.no_completion(pair.client.send_cq)
}

pub(super) fn in_error_flush_what_is_posted<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    bench.nic.modify_qp(pair.client.qp, QpChange::Error)?;
    let write = bench.write(HELD, 8, held.rkey);
    let before = bench.bytes();
    let requests = [bench.request(write, true), bench.request(write, false)];
    bench.post(pair.client, &requests)?;
    let id = bench.receive(pair.client, bench.local(0, 8))?;
    let flushed = bench.completions(pair.client.send_cq, 2)?;
    for (request, completion) in requests.iter().zip(flushed) {
        let right = completion.request == request.id && completion.status == Status::FlushError;
        ensure!(right, "request {} in ERR got {completion:?}", request.id);
    }
    let completion = bench.completions(pair.client.receive_cq, 1)?[0];
    let right = completion.request == id && completion.status == Status::FlushError;
    ensure!(right, "receive {id} in ERR got {completion:?}");
    bench.expect_bytes(&before)
}

pub(super) fn flush_the_receives_that_wait_when_they_go_to_error<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let mut ids = Vec::new();
    for _ in 0..4 {
        let buffer = bench.pool(0, 64);
        ids.push(bench.receive(pair.owner, buffer)?);
    }
    bench.nic.modify_qp(pair.owner.qp, QpChange::Error)?;
    let flushed = bench.completions(pair.owner.receive_cq, 4)?;
    let right = flushed
        .iter()
        .zip(&ids)
        .all(|(completion, id)| completion.request == *id && completion.status == Status::FlushError);
    ensure!(right, "receives {ids:?} were flushed as {flushed:?}");
    Ok(())
}

pub(super) fn forget_without_a_completion_when_they_are_reset<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let buffer = bench.pool(0, 64);
    bench.receive(pair.owner, buffer)?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::Reset)?;
    bench.no_completion(pair.owner.receive_cq)?;
    bench.recover(pair)?;
    // The first message goes into the new first receive, not into the discarded one.
    let id = bench.receive(pair.owner, buffer)?;
    let local = bench.local(0, 8);
    bench.succeed(pair.client, Operation::Send { local })?;
    bench.received(pair.owner, id)?;
    Ok(())
}

pub(super) fn complete_the_signalled_once_and_the_others_never<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let read = bench.read(HELD, 8, held.rkey);
    let requests = repeated(bench, read, DEPTH, |slot| slot % 3 == 2 || slot == DEPTH - 1);
    bench.post(pair.client, &requests)?;
    let wanted: Vec<u64> =
        requests.iter().filter(|request| request.signalled).map(|request| request.id).collect();
    let seen = bench.completions(pair.client.send_cq, wanted.len())?;
    let right = seen
        .iter()
        .zip(&wanted)
        .all(|(completion, id)| completion.request == *id && completion.status == Status::Success);
    ensure!(right, "{wanted:?} were signalled, and there is {seen:?}");
    Ok(())
}

pub(super) fn take_as_many_as_they_hold_and_say_so<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let read = bench.read(HELD, 8, held.rkey);
    let requests = repeated(bench, read, DEPTH + 4, |_| true);
    let taken = bench.nic.post_send(pair.client.qp, &requests)?;
    ensure!(taken == DEPTH, "a queue of {DEPTH} took {taken} of {}", requests.len());
    let more = bench.nic.post_send(pair.client.qp, &requests[taken..])?;
    ensure!(more == 0, "a full queue took {more} more with none of its completions polled");
    bench.completions(pair.client.send_cq, DEPTH)?;
    bench.post(pair.client, &requests[taken..])?;
    bench.completions(pair.client.send_cq, 4)?;
    Ok(())
}

pub(super) fn free_the_unsignalled_with_a_later_completion<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let read = bench.read(HELD, 8, held.rkey);
    for _ in 0..5 {
        let requests = repeated(bench, read, DEPTH, |slot| slot == DEPTH - 1);
        bench.post(pair.client, &requests)?;
        bench.completions(pair.client.send_cq, 1)?;
    }
    Ok(())
}

pub(super) fn of_receives_take_as_many_as_they_hold_and_say_so<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let local = bench.pool(0, 64);
    let receives: Vec<ReceiveRequest> =
        (0..).take(DEPTH + 4).map(|id| ReceiveRequest { id, local }).collect();
    let taken = bench.nic.post_receive(pair.owner.qp, &receives)?;
    ensure!(taken == DEPTH, "a receive queue of {DEPTH} took {taken} of {}", receives.len());
    let message = bench.local(0, 8);
    bench.succeed(pair.client, Operation::Send { local: message })?;
    bench.received(pair.owner, 0)?;
    let more = bench.nic.post_receive(pair.owner.qp, &receives[taken..])?;
    ensure!(more == 1, "a receive queue with one free slot took {more}");
    Ok(())
}

pub(super) fn give_no_more_completions_than_a_poll_asks_for<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let read = bench.read(HELD, 8, held.rkey);
    let requests = repeated(bench, read, 8, |_| true);
    bench.post(pair.client, &requests)?;
    let mut seen = Vec::new();
    while seen.len() < 8 {
        let before = seen.len();
        let said = bench.until("completion", |bench| {
            let said = bench.nic.poll(pair.client.send_cq, 1, &mut seen)?;
            Ok((said > 0).then_some(said))
        })?;
        ensure!(said == 1 && seen.len() == before + 1, "a poll for one gave {said}");
    }
    let ids: Vec<u64> = seen.iter().map(|completion| completion.request).collect();
    let posted: Vec<u64> = requests.iter().map(|request| request.id).collect();
    ensure!(ids == posted, "{posted:?} were completed as {ids:?}");
    Ok(())
}

/// Two queue pairs may share a completion queue: each completion names its queue pair.
pub(super) fn that_share_a_completion_queue_are_told_apart<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let sharer = bench.nic.create_qp(
        bench.client_pd,
        QpAttributes {
            send_cq: pair.client.send_cq,
            receive_cq: pair.client.send_cq,
            send_depth: QUEUE_DEPTH,
            receive_depth: QUEUE_DEPTH,
        },
    )?;
    let plan = bench.plan();
    let mut second = bench.unconnected(plan)?;
    second.client.qp = sharer;
    bench.connect(second, plan)?;
    let read = bench.read(HELD, 8, held.rkey);
    let (first_requests, second_requests) =
        (repeated(bench, read, 4, |_| true), repeated(bench, read, 4, |_| true));
    bench.post(pair.client, &first_requests)?;
    bench.post(second.client, &second_requests)?;
    let seen = bench.completions(pair.client.send_cq, 8)?;
    for (qp, requests) in [(pair.client.qp, first_requests), (sharer, second_requests)] {
        let own: Vec<u64> =
            seen.iter().filter(|entry| entry.queue_pair == qp).map(|entry| entry.request).collect();
        let posted: Vec<u64> = requests.iter().map(|request| request.id).collect();
        ensure!(own == posted, "{posted:?} on {qp:?} were completed as {own:?}");
    }
    Ok(())
}

/// The queue wraps many times: no request is lost, doubled or out of order.
pub(super) fn go_round_and_lose_nothing<N: Nic>(bench: &mut Bench<N>) -> Check {
    const TOTAL: usize = 20 * DEPTH + 5;
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE)?;
    let read = bench.read(HELD, 8, held.rkey);
    let requests = repeated(bench, read, TOTAL, |_| true);
    let (mut posted, mut seen) = (0, Vec::new());
    while seen.len() < TOTAL {
        posted += bench.nic.post_send(pair.client.qp, &requests[posted..])?;
        bench.until("completion", |bench| {
            let said = bench.nic.poll(pair.client.send_cq, 3, &mut seen)?;
            Ok((said > 0).then_some(()))
        })?;
    }
    let wrong = seen.iter().zip(&requests).find(|(completion, request)| {
        completion.request != request.id || completion.status != Status::Success
    });
    if let Some((completion, request)) = wrong {
        return Err(Stop::Broken(format!("request {} was completed as {completion:?}", request.id)));
    }
    bench.no_completion(pair.client.send_cq)
}

/// Returns requests for the same operation many times. `signalled` decides by its index whether a request is
/// signalled.
fn repeated<N: Nic>(
    bench: &mut Bench<N>,
    operation: Operation,
    count: usize,
    signalled: impl Fn(usize) -> bool,
) -> Vec<WorkRequest> {
    (0..count).map(|slot| bench.request(operation, signalled(slot))).collect()
}

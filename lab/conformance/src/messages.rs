//! SEND and RECV.

use portcullis_examination::bench::{Bench, LOCAL_OFFSET, Plan, RETRY_FOR_EVER, at};
use portcullis_examination::check::Check;
use portcullis_examination::ensure;
use portcullis_nic::{LocalSpan, Nic, Operation, QpChange, QpState, Status};

/// Statuses that the sender may get for a message that the receiver cannot accept.
const NOT_TAKEN: [Status; 2] = [Status::RemoteInvalidRequestError, Status::RemoteOperationError];

pub(super) fn longer_than_their_receive_fail_at_both_ends<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let buffer = bench.pool(512, 16);
    let id = bench.receive(pair.owner, buffer)?;
    let before = bench.bytes();
    let local = bench.local(LOCAL_OFFSET, 17);
    let status = bench.execute(pair.client, Operation::Send { local })?;
    ensure!(NOT_TAKEN.contains(&status), "the sender of a message too long got {status}");
    let completion = bench.completions(pair.owner.receive_cq, 1)?[0];
    let right = completion.request == id && completion.status == Status::LocalLengthError;
    ensure!(right, "the receiver of a message too long got {completion:?}");
    // The content of the buffer itself is not promised after that.
    let mut after = bench.bytes();
    after.pool[at(512, 16)].copy_from_slice(&before.pool[at(512, 16)]);
    ensure!(after == before, "a message too long went beyond its receive");
    bench.expect_state(pair.client, QpState::Error)?;
    bench.expect_state(pair.owner, QpState::Error)
}

pub(super) fn with_no_receive_posted_fail_after_the_retries<N: Nic>(bench: &mut Bench<N>) -> Check {
    for rnr_retries in [0, 1] {
        let plan = Plan { rnr_retries, ..bench.plan() };
        let pair = bench.pair_as(plan)?;
        let local = bench.local(0, 8);
        bench.fails(pair.client, Operation::Send { local }, &[Status::RnrRetryExceededError])?;
        bench.expect_state(pair.client, QpState::Error)?;
    }
    Ok(())
}

pub(super) fn into_the_wrong_bytes_fail_at_both_ends<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    // The client's key belongs to another domain than the receiver.
    let wrong = LocalSpan { lkey: bench.local.lkey, ..bench.pool(0, 64) };
    bench.receive(pair.owner, wrong)?;
    let local = bench.local(LOCAL_OFFSET, 8);
    bench.fails(pair.client, Operation::Send { local }, &NOT_TAKEN)?;
    let completion = bench.completions(pair.owner.receive_cq, 1)?[0];
    ensure!(completion.status == Status::LocalProtectionError, "a receive into nothing got {completion:?}");
    Ok(())
}

pub(super) fn wait_for_a_receive_that_comes_while_they_are_tried<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let local = bench.local(LOCAL_OFFSET, 8);
    let request = bench.request(Operation::Send { local }, true);
    bench.post(pair.client, &[request])?;
    // The other senders give up one after another, after the largest number of retries that can be counted. This
    // sender, which retries for ever, must not give up.
    for _ in 0..3 {
        let plan = Plan { rnr_retries: RETRY_FOR_EVER - 1, ..bench.plan() };
        let impatient = bench.pair_as(plan)?;
        bench.fails(impatient.client, Operation::Send { local }, &[Status::RnrRetryExceededError])?;
        bench.no_completion(pair.client.send_cq)?;
    }
    let buffer = bench.pool(512, 64);
    let id = bench.receive(pair.owner, buffer)?;
    let completion = bench.completions(pair.client.send_cq, 1)?[0];
    ensure!(completion.status == Status::Success, "a message whose receive came late got {completion:?}");
    let (length, _) = bench.received(pair.owner, id)?;
    ensure!(length == 8, "8 bytes arrived as {length}");
    Ok(())
}

pub(super) fn carry_their_bytes_and_their_length<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    for length in [0, 1, 64, 1000, 2048] {
        let buffer = bench.pool(512, 2048);
        let id = bench.receive(pair.owner, buffer)?;
        let mut expected = bench.bytes();
        let message = expected.local[at(LOCAL_OFFSET, length)].to_vec();
        expected.pool[at(512, length)].copy_from_slice(&message);
        let local = bench.local(LOCAL_OFFSET, length);
        bench.succeed(pair.client, Operation::Send { local })?;
        let (said, invalidated) = bench.received(pair.owner, id)?;
        ensure!(said == length && invalidated.is_none(), "{length} bytes: {said}, {invalidated:?}");
        bench.expect_bytes(&expected)?;
    }
    Ok(())
}

pub(super) fn take_the_receives_in_order<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let mut ids = Vec::new();
    for slot in 0..8 {
        let buffer = bench.pool(512 + 64 * slot, 64);
        ids.push(bench.receive(pair.owner, buffer)?);
    }
    let mut expected = bench.bytes();
    let mut requests = Vec::new();
    for slot in 0..8 {
        let local = bench.local(LOCAL_OFFSET + 8 * slot, 8);
        requests.push(bench.request(Operation::Send { local }, false));
        let message = expected.local[at(LOCAL_OFFSET + 8 * slot, 8)].to_vec();
        expected.pool[at(512 + 64 * slot, 8)].copy_from_slice(&message);
    }
    bench.post(pair.client, &requests)?;
    let received: Vec<u64> =
        bench.completions(pair.owner.receive_cq, 8)?.iter().map(|completion| completion.request).collect();
    ensure!(received == ids, "receives {ids:?} were completed as {received:?}");
    bench.expect_bytes(&expected)
}

pub(super) fn go_both_ways<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    let (question, answer) = (bench.local(LOCAL_OFFSET, 64), bench.pool(512, 64));
    let answered = bench.receive(pair.client, bench.local(0, 64))?;
    let asked = bench.receive(pair.owner, answer)?;
    bench.succeed(pair.client, Operation::Send { local: question })?;
    bench.received(pair.owner, asked)?;
    bench.succeed(pair.owner, Operation::Send { local: answer })?;
    bench.received(pair.client, answered)?;
    let bytes = bench.bytes();
    ensure!(bytes.local[at(0, 64)] == bytes.local[at(LOCAL_OFFSET, 64)], "the echo is not the question");
    Ok(())
}

/// Receives can be posted before the connection: the first message finds them.
pub(super) fn find_receives_posted_before_the_connection<N: Nic>(bench: &mut Bench<N>) -> Check {
    let plan = bench.plan();
    let pair = bench.unconnected(plan)?;
    let (client, owner) = (bench.nic.qp_address(pair.client.qp)?, bench.nic.qp_address(pair.owner.qp)?);
    let access = QpChange::Init { access: plan.access };
    let ready = QpChange::ReadyToSend { rnr_retries: 0 };
    bench.nic.modify_qp(pair.owner.qp, access)?;
    let buffer = bench.pool(512, 64);
    let id = bench.receive(pair.owner, buffer)?;
    bench.nic.modify_qp(pair.owner.qp, QpChange::ReadyToReceive { peer: client })?;
    bench.nic.modify_qp(pair.client.qp, access)?;
    bench.nic.modify_qp(pair.client.qp, QpChange::ReadyToReceive { peer: owner })?;
    bench.nic.modify_qp(pair.client.qp, ready)?;
    let local = bench.local(LOCAL_OFFSET, 8);
    bench.succeed(pair.client, Operation::Send { local })?;
    bench.received(pair.owner, id)?;
    Ok(())
}

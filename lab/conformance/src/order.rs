//! One queue's requests are executed in order up to the first that fails, and no request after it is executed.

use portcullis_examination::bench::{Bench, HELD, HELD_OFFSET, Held, Holder, LOCAL_OFFSET, Pair, at, remote};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{Access, Completion, Nic, Operation, Status, WorkRequest};

/// Good writes, then a bad request, then more good writes, with one doorbell.
struct Batch {
    requests: Vec<WorkRequest>,
    /// The index of the bad request.
    bad: usize,
}

pub(super) fn executes_nothing_after_a_refused_request<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let stray = bench.read(HELD - 1, 1, held.rkey);
    stops_at(bench, pair, held, stray, Status::RemoteAccessError)
}

pub(super) fn executes_nothing_after_a_request_that_fails_at_home<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let wrong = Operation::Read { local: bench.pool(0, 8), remote: remote(HELD, held.rkey) };
    stops_at(bench, pair, held, wrong, Status::LocalProtectionError)
}

/// A client learns from the completions which of its requests were executed. Replay rests on that (Patronus §5.5).
pub(super) fn flushes_the_rest_once_each_in_order_unsignalled_too<N: Nic>(bench: &mut Bench<N>) -> Check {
    for bad_is_signalled in [true, false] {
        let (pair, held) = held(bench)?;
        let stray = bench.write(HELD - 1, 1, held.rkey);
        let mut batch = batch(bench, held, stray);
        batch.requests[batch.bad].signalled = bad_is_signalled;
        bench.post(pair.client, &batch.requests)?;
        let seen = bench.completions(pair.client.send_cq, batch.requests.len() - batch.bad)?;
        expect_rest(&batch, &seen, Status::RemoteAccessError)?;
        // A request posted now is flushed too, after the others.
        let late = bench.request(stray, false);
        bench.post(pair.client, &[late])?;
        let completion = bench.completions(pair.client.send_cq, 1)?[0];
        let right = completion.request == late.id && completion.status == Status::FlushError;
        ensure!(right, "a request posted after the flush got {completion:?}");
    }
    Ok(())
}

pub(super) fn lets_a_read_see_the_write_before_it<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let mut expected = bench.bytes();
    let written = expected.local[at(LOCAL_OFFSET, 64)].to_vec();
    expected.pool[at(HELD_OFFSET, 64)].copy_from_slice(&written);
    expected.local[at(0, 64)].copy_from_slice(&written);
    let write = bench.write(HELD, 64, held.rkey);
    let read = Operation::Read { local: bench.local(0, 64), remote: remote(HELD, held.rkey) };
    let requests = [bench.request(write, false), bench.request(read, true)];
    bench.post(pair.client, &requests)?;
    let completion = bench.completions(pair.client.send_cq, 1)?[0];
    ensure!(completion.status == Status::Success, "a read behind a write gave {completion:?}");
    bench.expect_bytes(&expected)
}

pub(super) fn lets_the_last_write_win<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    let mut expected = bench.bytes();
    let mut requests = Vec::new();
    for step in 0..8 {
        let local = bench.local(LOCAL_OFFSET + 8 * step, 8);
        let write = Operation::Write { local, remote: remote(HELD, held.rkey) };
        requests.push(bench.request(write, step == 7));
    }
    let last = expected.local[at(LOCAL_OFFSET + 56, 8)].to_vec();
    expected.pool[at(HELD_OFFSET, 8)].copy_from_slice(&last);
    bench.post(pair.client, &requests)?;
    bench.completions(pair.client.send_cq, 1)?;
    bench.expect_bytes(&expected)
}

/// When the receiver gets the message, the data written before it has arrived.
pub(super) fn lets_a_message_announce_the_write_before_it<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = held(bench)?;
    for round in 0..8 {
        let buffer = bench.pool(0, 64);
        let id = bench.receive(pair.owner, buffer)?;
        let (from, to) = (LOCAL_OFFSET + 64 * round, HELD_OFFSET + 8 * round);
        let remote = remote(HELD + 8 * round, held.rkey);
        let write = Operation::Write { local: bench.local(from, 8), remote };
        let send = Operation::Send { local: bench.local(0, 8) };
        let requests = [bench.request(write, false), bench.request(send, false)];
        bench.post(pair.client, &requests)?;
        bench.received(pair.owner, id)?;
        let bytes = bench.bytes();
        ensure!(bytes.pool[at(to, 8)] == bytes.local[at(from, 8)], "message {id} overtook its data");
    }
    Ok(())
}

fn held<N: Nic>(bench: &mut Bench<N>) -> Result<(Pair, Held), Stop> {
    bench.fresh(Holder::Region, Access::REMOTE)
}

fn batch<N: Nic>(bench: &mut Bench<N>, held: Held, bad: Operation) -> Batch {
    let mut requests: Vec<WorkRequest> = Vec::new();
    for slot in 0..8 {
        let good = bench.write(HELD + 8 * slot, 8, held.rkey);
        requests.push(bench.request(good, slot > 4));
    }
    let place = 2;
    requests[place].operation = bad;
    Batch { requests, bad: place }
}

fn stops_at<N: Nic>(bench: &mut Bench<N>, pair: Pair, held: Held, bad: Operation, status: Status) -> Check {
    let batch = batch(bench, held, bad);
    let mut expected = bench.bytes();
    let written = expected.local[at(LOCAL_OFFSET, 8)].to_vec();
    for slot in [0, 8] {
        expected.pool[at(HELD_OFFSET + slot, 8)].copy_from_slice(&written);
    }
    bench.post(pair.client, &batch.requests)?;
    let seen = bench.completions(pair.client.send_cq, batch.requests.len() - batch.bad)?;
    expect_rest(&batch, &seen, status)?;
    bench.expect_bytes(&expected)
}

/// Checks the completions from the bad request on. Good unsignalled requests before it have no completion, the bad
/// request has `status`, and requests after it are flushed.
fn expect_rest(batch: &Batch, seen: &[Completion], status: Status) -> Check {
    let rest = &batch.requests[batch.bad..];
    for (place, (request, completion)) in rest.iter().zip(seen).enumerate() {
        let status = if place == 0 { status } else { Status::FlushError };
        let right = completion.request == request.id && completion.status == status;
        ensure!(right, "request {} should give {status} and there is {completion:?}", request.id);
    }
    Ok(())
}

//! Requests of chains: which queue pairs may post them, what they wait for, and which requests they let run.

use super::engine::{Engine, MANAGED, PRIVILEGED, engine, managed, require};
use portcullis_examination::bench::{Bench, End, HELD, HELD_OFFSET, Holder, Pair, QUEUE_DEPTH, at};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{
    Access, ChainFeatures, ChainNic, ChainRole, ChainVerb, CqId, Event, Memory, Nic, Operation, QpChange,
    QpId, QpState, RemoteAddress, Status, VerbsError,
};

const REFUSED: [Status; 1] = [Status::LocalQpOperationError];
/// Half of the 32-bit count range. This many counts lie behind any count.
const HALF: u32 = 1 << 31;

fn wait(cq: CqId, threshold: u32) -> Operation {
    Operation::Chain(ChainVerb::Wait { cq, threshold })
}

fn enable(end: End, limit: u64) -> Operation {
    Operation::Chain(ChainVerb::Enable { queue_pair: end.qp, limit })
}

fn enable_receive(end: End, limit: u64) -> Operation {
    Operation::Chain(ChainVerb::EnableReceive { queue_pair: end.qp, limit })
}

/// Gives the NIC time for its pending work, by executing other requests meanwhile.
fn let_it_work<N: Nic>(bench: &mut Bench<N>) -> Check {
    let (pair, held) = bench.fresh(Holder::Region, Access::REMOTE_READ)?;
    for _ in 0..4 {
        let read = bench.read(HELD + 8, 8, held.rkey);
        bench.succeed(pair.client, read)?;
    }
    Ok(())
}

/// Posts requests to a queue that is not enabled yet or waits, so none of them is executed.
fn post<N: Nic>(bench: &mut Bench<N>, end: End, operations: &[Operation], signalled: bool) -> Check {
    let requests: Vec<_> = operations.iter().map(|it| bench.request(*it, signalled)).collect();
    bench.post(end, &requests)
}

pub(super) fn of_ordinary_queue_pairs_are_refused<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::all())?;
    let counting = bench.nic.require_chains()?.create_counting_cq()?;
    let target = managed(bench, MANAGED)?;
    let add = target.add_to_held(bench, 1);
    post(bench, target.end, &[add], false)?;
    let word = bench.held_word();
    let own = bench.pair()?;
    for verb in [
        Operation::Chain(ChainVerb::Nop),
        wait(counting, u32::MAX),
        enable(target.end, 1),
        enable_receive(target.end, 1),
        Operation::Chain(ChainVerb::LocalInvalidate { rkey: bench.pool.rkey, queue_pair: own.owner.qp }),
    ] {
        for end in [own.client, own.owner] {
            bench.fails(end, verb, &REFUSED)?;
            bench.recover(own)?;
        }
    }
    let_it_work(bench)?;
    ensure!(bench.held_word() == word, "an ordinary queue pair has enabled a managed queue");
    Ok(())
}

/// Managed queues alone give no privilege.
pub(super) fn of_managed_queue_pairs_without_the_privilege_fail<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::NOP | ChainFeatures::ENABLE)?;
    let engine = engine(bench)?;
    let target = managed(bench, ChainRole { privileged: false, ..MANAGED })?;
    post(bench, target.end, &[Operation::Chain(ChainVerb::Nop)], true)?;
    bench.succeed(engine.end, enable(target.end, 1))?;
    let completion = bench.completions(target.end.send_cq, 1)?[0];
    ensure!(completion.status == Status::LocalQpOperationError, "there is {completion:?}");
    Ok(())
}

pub(super) fn of_queue_pairs_with_another_peer_are_not_possible<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::NOP)?;
    let other = bench.pair()?;
    let engine = Engine::unconnected(bench, PRIVILEGED)?;
    let peer = bench.nic.qp_address(other.client.qp)?;
    bench.nic.modify_qp(engine.end.qp, QpChange::Init { access: Access::REMOTE })?;
    let said = bench.nic.modify_qp(engine.end.qp, QpChange::ReadyToReceive { peer });
    ensure!(matches!(said, Err(VerbsError::Invalid(_))), "the step gave {said:?}");
    Ok(())
}

pub(super) fn waits_for_what_does_not_count_fail<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::WAIT)?;
    let engine = engine(bench)?;
    for cq in [engine.end.send_cq, CqId(u32::MAX)] {
        bench.fails(engine.end, wait(cq, u32::MAX), &REFUSED)?;
        engine.recover(bench)?;
    }
    let said = bench.nic.require_chains()?.completions_counted(engine.end.send_cq);
    ensure!(said.is_err(), "a queue that does not count returns {said:?}");
    Ok(())
}

pub(super) fn limits_are_set_for_managed_queues_only<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE | ChainFeatures::ENABLE_RECEIVE)?;
    let engine = engine(bench)?;
    let ordinary = bench.pair()?;
    let nobody = End { qp: QpId(u32::MAX - 1), ..engine.end };
    for end in [ordinary.owner, engine.end, nobody] {
        for verb in [enable(end, 1), enable_receive(end, 1)] {
            bench.fails(engine.end, verb, &REFUSED)?;
            engine.recover(bench)?;
        }
    }
    Ok(())
}

pub(super) fn queue_memory_of_ordinary_queues_cannot_be_registered<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::QUEUE_MEMORY)?;
    let ordinary = bench.pair()?;
    let (pd, base) = (bench.owner_pd, RemoteAddress(0));
    let said =
        bench.nic.require_chains()?.register_queue_memory(pd, ordinary.owner.qp, base, Access::LOCAL_WRITE);
    ensure!(said.is_err(), "the memory of an ordinary queue is {said:?}");
    Ok(())
}

pub(super) fn nothing_runs_beyond_a_limit<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE)?;
    let engine = engine(bench)?;
    let target = managed(bench, MANAGED)?;
    let add = target.add_to_held(bench, 1);
    post(bench, target.end, &[add; 4], false)?;
    let before = bench.held_word();
    let_it_work(bench)?;
    ensure!(bench.held_word() == before, "a managed queue began without a limit");
    bench.succeed(engine.end, enable(target.end, 3))?;
    bench.until("third request", |bench| {
        bench.nic.poll(engine.end.send_cq, 0, &mut Vec::new())?;
        Ok((bench.held_word() >= before.wrapping_add(3)).then_some(()))
    })?;
    let_it_work(bench)?;
    ensure!(bench.held_word() == before.wrapping_add(3), "the limit is 3 and more were executed");
    Ok(())
}

/// A request that was enabled stays enabled, even before it is executed.
pub(super) fn limits_do_not_go_back<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE | ChainFeatures::WAIT | ChainFeatures::COUNTING)?;
    let (engine, counted) = (engine(bench)?, Engine::counted(bench)?);
    let target = managed(bench, MANAGED)?;
    let add = target.add_to_held(bench, 1);
    post(bench, target.end, &[wait(counted.end.send_cq, 1), add, add, add], true)?;
    for limit in [3, 1, 0] {
        bench.succeed(engine.end, enable(target.end, limit))?;
    }
    let_it_work(bench)?;
    bench.no_completion(target.end.send_cq)?;
    post(bench, counted.end, &[Operation::Chain(ChainVerb::Nop)], true)?;
    bench.completions(target.end.send_cq, 3)?;
    let_it_work(bench)?;
    bench.no_completion(target.end.send_cq)
}

/// Requests stay in the ring, and each lap executes the present content of the ring.
pub(super) fn managed_queues_execute_their_ring_again<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE)?;
    let engine = engine(bench)?;
    let target = managed(bench, MANAGED)?;
    let before = bench.held_word();
    let adds: Vec<_> =
        (0..u64::from(QUEUE_DEPTH)).map(|number| target.add_to_held(bench, 1 << number)).collect();
    post(bench, target.end, &adds, true)?;
    const LAPS: u32 = 5;
    let executed = QUEUE_DEPTH * LAPS + 1;
    bench.succeed(engine.end, enable(target.end, executed.into()))?;
    bench.completions(target.end.send_cq, executed as usize)?;
    let added = u64::from(LAPS) * ((1 << QUEUE_DEPTH) - 1) + 1;
    ensure!(bench.held_word() == before.wrapping_add(added), "the ring's laps have not added {added}");
    Ok(())
}

pub(super) fn messages_wait_until_a_receive_is_enabled<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE_RECEIVE)?;
    let engine = engine(bench)?;
    let pair = Engine::receiver(bench)?;
    let into = bench.pool(HELD_OFFSET, 8);
    let first = bench.receive(pair.owner, into)?;
    bench.receive(pair.owner, into)?;
    let send = Operation::Send { local: bench.local(0, 8) };
    post(bench, pair.client, &[send; 2], false)?;
    let_it_work(bench)?;
    bench.no_completion(pair.owner.receive_cq)?;
    bench.succeed(engine.end, enable_receive(pair.owner, 1))?;
    bench.received(pair.owner, first)?;
    let_it_work(bench)?;
    bench.no_completion(pair.owner.receive_cq)
}

pub(super) fn waits_end_when_the_count_is_reached_and_not_before<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::WAIT | ChainFeatures::COUNTING)?;
    let counted = Engine::counted(bench)?;
    let waiter = engine(bench)?;
    let reached = bench.request(wait(counted.end.send_cq, 2), true);
    bench.post(waiter.end, &[reached])?;
    for count in 1..=2 {
        let_it_work(bench)?;
        bench.no_completion(waiter.end.send_cq)?;
        post(bench, counted.end, &[Operation::Chain(ChainVerb::Nop)], true)?;
        bench.until("count", |bench| {
            bench.nic.poll(counted.end.send_cq, 0, &mut Vec::new())?;
            Ok((bench.nic.require_chains()?.completions_counted(counted.end.send_cq)? == count).then_some(()))
        })?;
    }
    let completion = bench.completions(waiter.end.send_cq, 1)?[0];
    ensure!(completion.status == Status::Success, "a wait ended as {completion:?}");
    Ok(())
}

/// Counts have 32 bits and wrap around.
pub(super) fn waits_compare_counts_that_go_round<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::WAIT | ChainFeatures::COUNTING)?;
    let cq = bench.nic.require_chains()?.create_counting_cq()?;
    let engine = engine(bench)?;
    for reached in [0, u32::MAX, HALF + 1] {
        bench.succeed(engine.end, wait(cq, reached))?;
    }
    for not_reached in [1, HALF - 1, HALF] {
        post(bench, engine.end, &[wait(cq, not_reached)], true)?;
        let_it_work(bench)?;
        bench.no_completion(engine.end.send_cq)?;
        engine.recover(bench)?;
    }
    Ok(())
}

pub(super) fn counts_are_of_signalled_successes_and_failures_are_told<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::COUNTING | ChainFeatures::NOP)?;
    let counted = Engine::counted(bench)?;
    let nop = Operation::Chain(ChainVerb::Nop);
    post(bench, counted.end, &[nop], false)?;
    post(bench, counted.end, &[nop, wait(CqId(u32::MAX), 0), nop], true)?;
    bench.expect_state(counted.end, QpState::Error)?;
    let_it_work(bench)?;
    let count = bench.nic.require_chains()?.completions_counted(counted.end.send_cq)?;
    ensure!(count == 1, "one signalled request has succeeded, and {count} are counted");
    let event = bench.nic.poll_event();
    ensure!(event == Some(Event::Fatal(counted.end.qp)), "the failure shows as {event:?}");
    Ok(())
}

pub(super) fn waits_fail_when_what_they_wait_for_goes<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::WAIT | ChainFeatures::COUNTING)?;
    let cq = bench.nic.require_chains()?.create_counting_cq()?;
    let engine = engine(bench)?;
    post(bench, engine.end, &[wait(cq, 1)], true)?;
    let_it_work(bench)?;
    bench.nic.destroy_cq(cq)?;
    let completion = bench.completions(engine.end.send_cq, 1)?[0];
    ensure!(completion.status == Status::LocalQpOperationError, "the wait ended as {completion:?}");
    bench.expect_state(engine.end, QpState::Error)
}

pub(super) fn waits_end_with_their_queue_pair<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::WAIT | ChainFeatures::COUNTING)?;
    let cq = bench.nic.require_chains()?.create_counting_cq()?;
    let engine = engine(bench)?;
    post(bench, engine.end, &[wait(cq, 1)], true)?;
    let_it_work(bench)?;
    bench.nic.modify_qp(engine.end.qp, QpChange::Error)?;
    let completion = bench.completions(engine.end.send_cq, 1)?[0];
    ensure!(completion.status == Status::FlushError, "the wait ended as {completion:?}");
    engine.recover(bench)?;
    post(bench, engine.end, &[wait(cq, 1)], true)?;
    let_it_work(bench)?;
    bench.nic.destroy_qp(engine.end.qp)?;
    bench.nic.destroy_cq(cq)?;
    Ok(())
}

/// A request is fetched after all requests before it have been executed.
pub(super) fn requests_see_what_those_before_them_wrote_to_them<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE | ChainFeatures::QUEUE_MEMORY)?;
    let engine = engine(bench)?;
    let target = managed(bench, MANAGED)?;
    let entries = target.queue_memory(bench)?;
    let before = bench.held_word();
    // The first two add to the third's operand, which adds that to the word.
    let patch = |bench: &Bench<N>, add| target.add(bench, entries.word(2, 4), entries.region.rkey, add);
    let requests = [patch(bench, 20), patch(bench, 300), target.add_to_held(bench, 1)];
    post(bench, target.end, &requests, true)?;
    bench.succeed(engine.end, enable(target.end, 3))?;
    bench.completions(target.end.send_cq, 3)?;
    ensure!(bench.held_word() == before.wrapping_add(321), "the third has added something else");
    Ok(())
}

pub(super) fn patched_requests_that_mean_nothing_fail<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE | ChainFeatures::QUEUE_MEMORY)?;
    let engine = engine(bench)?;
    let target = managed(bench, MANAGED)?;
    let entries = target.queue_memory(bench)?;
    // The number of an operation that does not exist.
    let nonsense = target.add(bench, entries.word(1, 0), entries.region.rkey, 200);
    let nop = Operation::Chain(ChainVerb::Nop);
    let never = target.add_to_held(bench, 1);
    post(bench, target.end, &[nonsense, nop, never], true)?;
    let before = bench.held_word();
    bench.succeed(engine.end, enable(target.end, 3))?;
    let said: Vec<_> =
        bench.completions(target.end.send_cq, 3)?.iter().map(|completion| completion.status).collect();
    let right = [Status::Success, Status::LocalQpOperationError, Status::FlushError];
    ensure!(said == right, "the three ended with {said:?}");
    ensure!(bench.held_word() == before, "what follows nonsense was executed");
    Ok(())
}

/// A loop: the last request of each lap enables the next lap, without end.
pub(super) fn that_never_end_leave_time_for_others<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE | ChainFeatures::QUEUE_MEMORY)?;
    let engine = engine(bench)?;
    let target = managed(bench, MANAGED)?;
    let entries = target.queue_memory(bench)?;
    let depth = u64::from(QUEUE_DEPTH);
    let (last, nop) = (QUEUE_DEPTH - 1, Operation::Chain(ChainVerb::Nop));
    let mut lap = vec![nop; QUEUE_DEPTH as usize];
    lap[0] = target.add_to_held(bench, 1);
    lap[1] = target.add(bench, entries.word(last, 4), entries.region.rkey, depth);
    lap[last as usize] = enable(target.end, depth);
    post(bench, target.end, &lap, false)?;
    let before = bench.held_word();
    bench.succeed(engine.end, enable(target.end, depth))?;
    for laps in 1..20 {
        let_it_work(bench)?;
        bench.until("lap", |bench| {
            bench.nic.poll(engine.end.send_cq, 0, &mut Vec::new())?;
            Ok((bench.held_word().wrapping_sub(before) >= laps).then_some(()))
        })?;
    }
    bench.nic.modify_qp(target.end.qp, QpChange::Reset)?;
    let stopped = bench.held_word();
    let_it_work(bench)?;
    ensure!(bench.held_word() == stopped, "a chain goes on after its queue pair was reset");
    Ok(())
}

pub(super) fn go_on_when_what_they_enable_is_broken<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::ENABLE)?;
    let engine = engine(bench)?;
    let target = managed(bench, MANAGED)?;
    bench.nic.modify_qp(target.end.qp, QpChange::Error)?;
    bench.succeed(engine.end, enable(target.end, 1))?;
    bench.nic.modify_qp(target.end.qp, QpChange::Reset)?;
    // A reset clears earlier limits.
    target.connect(bench)?;
    let word = bench.held_word();
    let add = target.add_to_held(bench, 1);
    post(bench, target.end, &[add], false)?;
    let_it_work(bench)?;
    ensure!(bench.held_word() == word, "a limit has outlived a reset");
    Ok(())
}

pub(super) fn reach_the_memory_of_their_own_domain_only<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, ChainFeatures::NOP)?;
    let engine = engine(bench)?;
    let before = bench.held_word();
    let (local, rkey) = (bench.pool(0, 8), engine.pool.rkey);
    let remote = portcullis_examination::bench::remote(HELD, rkey);
    bench.succeed(engine.end, Operation::Read { local, remote })?;
    let mut bytes = [0; 8];
    bench.pool_memory.read(0, &mut bytes);
    ensure!(u64::from_le_bytes(bytes) == before, "a READ to itself has brought {bytes:?}");
    let shown = bench.bytes();
    let stray =
        portcullis_examination::bench::remote(portcullis_examination::bench::LOCAL_BASE, bench.local.rkey);
    bench.fails(engine.end, Operation::Write { local, remote: stray }, &[Status::RemoteAccessError])?;
    ensure!(bench.bytes().local[at(0, 64)] == shown.local[at(0, 64)], "another domain's memory has changed");
    Ok(())
}

impl Engine {
    /// Creates a pair whose owner's end has a managed receive queue.
    fn receiver<N: Nic>(bench: &mut Bench<N>) -> Result<Pair, Stop> {
        let role = ChainRole { managed_receive: true, ..ChainRole::default() };
        let (plan, owner) = (bench.plan(), Self::unconnected(bench, role)?.end);
        let client = bench.unconnected(plan)?.client;
        let pair = Pair { client, owner };
        bench.connect(pair, plan)?;
        Ok(pair)
    }
}

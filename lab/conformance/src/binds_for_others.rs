//! Windows that a chain binds to a queue pair other than its own, and frees from it.

use super::engine::{Engine, engine, require};
use portcullis_examination::bench::{Bench, HELD, HELD_BYTES, HELD_OFFSET, Pair, at, remote};
use portcullis_examination::check::{Check, Stop};
use portcullis_examination::ensure;
use portcullis_nic::{
    Access, ChainFeatures, ChainVerb, Nic, Operation, QpId, Rkey, Status, Window, WindowKind,
};

/// Number of ends of accesses while a write is under way.
const ENDS: usize = 32;

const READ: Access = Access::REMOTE_READ;
const NEEDED: ChainFeatures = ChainFeatures::BIND_FOR_OTHERS;

fn bind<N: Nic>(bench: &Bench<N>, window: Window, queue_pair: QpId) -> (Operation, Rkey) {
    let binding = bench.binding(window.id, window.rkey.advanced(), READ);
    (Operation::Chain(ChainVerb::BindWindow { binding, queue_pair }), binding.rkey)
}

/// Creates an engine, a pair, and a window that the engine has bound to the owner's end of the pair.
fn bound<N: Nic>(bench: &mut Bench<N>) -> Result<(Engine, Pair, Window), Stop> {
    let (engine, pair) = (engine(bench)?, bench.pair()?);
    let window = bench.window(WindowKind::Two)?;
    let (operation, rkey) = bind(bench, window, pair.owner.qp);
    bench.succeed(engine.end, operation)?;
    Ok((engine, pair, Window { rkey, ..window }))
}

pub(super) fn are_refused_to_ordinary_queue_pairs<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (victim, culprit) = (bench.pair()?, bench.pair()?);
    let window = bench.window(WindowKind::Two)?;
    let (operation, rkey) = bind(bench, window, victim.owner.qp);
    bench.fails(culprit.owner, operation, &[Status::LocalQpOperationError])?;
    let read = bench.read(HELD, 8, rkey);
    bench.refused(victim, read)
}

pub(super) fn name_a_queue_pair_of_their_own_domain<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (engine, stranger) = (engine(bench)?, bench.stranger()?);
    let window = bench.window(WindowKind::Two)?;
    for nobody in [stranger.owner.qp, QpId(u32::MAX - 1)] {
        let (operation, _) = bind(bench, window, nobody);
        bench.fails(engine.end, operation, &[Status::WindowBindError])?;
        engine.recover(bench)?;
    }
    Ok(())
}

pub(super) fn are_of_type_2<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (engine, pair) = (engine(bench)?, bench.pair()?);
    let window = bench.window(WindowKind::One)?;
    let (operation, rkey) = bind(bench, window, pair.owner.qp);
    bench.fails(engine.end, operation, &[Status::WindowBindError])?;
    let read = bench.read(HELD, 8, rkey);
    bench.refused(pair, read)
}

pub(super) fn do_not_take_a_window_that_is_bound<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (engine, pair, window) = bound(bench)?;
    let thief = bench.pair()?;
    let (operation, rkey) = bind(bench, window, thief.owner.qp);
    bench.fails(engine.end, operation, &[Status::WindowBindError])?;
    let (stolen, good) = (bench.read(HELD, 8, rkey), bench.read(HELD, 8, window.rkey));
    bench.refused(thief, stolen)?;
    bench.succeed(pair.client, good)
}

pub(super) fn work_on_the_named_queue_pair_only<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (_, pair, window) = bound(bench)?;
    let sibling = bench.pair()?;
    let read = bench.read(HELD, 8, window.rkey);
    bench.refused(sibling, read)?;
    bench.succeed(pair.client, read)
}

pub(super) fn end_for_the_named_queue_pair_only<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (engine, pair, window) = bound(bench)?;
    let sibling = bench.pair()?;
    let free = |queue_pair| Operation::Chain(ChainVerb::LocalInvalidate { rkey: window.rkey, queue_pair });
    // The engine cannot free the window for itself either, with a request that names no queue pair.
    for wrong in [free(sibling.owner.qp), Operation::LocalInvalidate { rkey: window.rkey }] {
        bench.fails(engine.end, wrong, &[Status::LocalQpOperationError])?;
        engine.recover(bench)?;
    }
    let read = bench.read(HELD, 8, window.rkey);
    bench.succeed(pair.client, read)?;
    bench.succeed(engine.end, free(pair.owner.qp))?;
    bench.refused(pair, read)
}

/// A queue pair that posts an invalidation for another queue pair does not free a window of its own.
pub(super) fn do_not_end_for_the_one_that_posts<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (engine, sibling) = (engine(bench)?, bench.pair()?);
    let window = bench.window(WindowKind::Two)?;
    let (operation, rkey) = bind(bench, window, engine.end.qp);
    bench.succeed(engine.end, operation)?;
    let wrong = Operation::Chain(ChainVerb::LocalInvalidate { rkey, queue_pair: sibling.owner.qp });
    bench.fails(engine.end, wrong, &[Status::LocalQpOperationError])?;
    engine.recover(bench)?;
    let read = Operation::Read { local: bench.pool(0, 8), remote: remote(HELD, rkey) };
    bench.succeed(engine.end, read)
}

/// A freed window can be bound for another queue pair, and its old key opens nothing.
pub(super) fn move_to_another_queue_pair_once_they_are_free<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let (engine, first, window) = bound(bench)?;
    let queue_pair = first.owner.qp;
    let free = Operation::Chain(ChainVerb::LocalInvalidate { rkey: window.rkey, queue_pair });
    bench.succeed(engine.end, free)?;
    let second = bench.pair()?;
    let (operation, rkey) = bind(bench, window, second.owner.qp);
    bench.succeed(engine.end, operation)?;
    let (new, old) = (bench.read(HELD, 8, rkey), bench.read(HELD, 8, window.rkey));
    bench.succeed(second.client, new)?;
    bench.refused(second, old)?;
    bench.refused(first, new)
}

/// A chain writes memory right behind the end of a window over it: no byte of an access through the window arrives later.
/// So a chain may hand memory out as soon as it has ended the accesses of its last holder.
pub(super) fn have_ended_all_accesses_when_the_chain_goes_on<N: Nic>(bench: &mut Bench<N>) -> Check {
    require(bench, NEEDED)?;
    let engine = engine(bench)?;
    let window = bench.window(WindowKind::Two)?;
    let mut rkey = window.rkey;
    let pair = bench.pair()?;
    let length = u32::try_from(HELD_BYTES).unwrap_or(u32::MAX);
    let written = bench.bytes().pool[at(0, length)].to_vec();
    for _ in 0..ENDS {
        let queue_pair = pair.owner.qp;
        let binding = bench.binding(window.id, rkey.advanced(), Access::REMOTE_WRITE);
        rkey = binding.rkey;
        bench.succeed(engine.end, Operation::Chain(ChainVerb::BindWindow { binding, queue_pair }))?;
        let write = bench.write(HELD, length, rkey);
        let write = bench.request(write, true);
        bench.post(pair.client, &[write])?;
        // A device that works when it is polled begins with the write.
        bench.nic.poll(pair.client.send_cq, 0, &mut Vec::new())?;
        let free = Operation::Chain(ChainVerb::LocalInvalidate { rkey, queue_pair });
        let next = Operation::Write { local: bench.pool(0, length), remote: remote(HELD, engine.pool.rkey) };
        let requests = [bench.request(free, true), bench.request(next, true)];
        bench.post(engine.end, &requests)?;
        for completion in bench.completions(engine.end.send_cq, 2)? {
            ensure!(completion.status == Status::Success, "the chain has failed: {completion:?}");
        }
        let shown = bench.bytes().pool[at(HELD_OFFSET, length)] == written;
        ensure!(shown, "the chain goes on while an access that it has ended moves bytes");
        // The write was carried out before, or refused.
        let _ = bench.completions(pair.client.send_cq, 1)?;
        ensure!(
            bench.bytes().pool[at(HELD_OFFSET, length)] == written,
            "a byte arrives after the end of its access"
        );
        bench.recover(pair)?;
    }
    Ok(())
}

//! A client process of the demo that works on a table: it loads keys, stops in the middle of a split, or examines the
//! whole content.

use super::actor::{Failure, fine_micros, say};
use super::figures::Content;
use super::orders::{Load, Order, OrderReply};
use portcullis::{Lifetime, ObjectRef, Session};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Swept, Table, TableError, TableOptions};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// A small table is split often: after about 250 keys for the first time, and in six rounds of buckets.
const GROUPS: u32 = 16;
const DEPTH_MAX: u32 = 10;
/// Number of requests of the round in the middle of a split that are executed before the client stops. The first
/// requests of the round are reads and extensions, and the other 56 freeze slots, so the client stops among the latter.
const REQUESTS_OF_THE_ROUND: u64 = 40;
/// The most keys that a loader stores before the order to finish: the table does not grow without a limit while another
/// loader is slow.
const KEYS_MOST: u64 = 4_000;
/// Keys that a loader stores after that order.
const KEYS_AFTER: u64 = 200;
/// The most sweeps until one finds nothing. The second sweep frees what the first takes out of slots.
const SWEEPS_MOST: u32 = 4;

/// Executes orders about tables, until the input ends.
pub fn act(session: Session, orders: &Receiver<Order>, first: Order) -> Result<(), Failure> {
    let pipeline = Rc::new(Pipeline::new(session));
    let mut next = Some(first);
    while let Some(order) = next {
        let answer = match order {
            Order::MakeTable { lease_us } => make(&pipeline, Lifetime(lease_us)),
            Order::Load { table, loader } => load(&pipeline, table, loader, orders),
            Order::LoadIntoSplit { table, loader } => load_into_split(&pipeline, table, loader, orders),
            Order::Examine { table, loads } => examine(&pipeline, table, &loads),
            _ => Err(Failure::Order("this client works on tables".to_owned())),
        };
        say(&answer.unwrap_or_else(|failure| OrderReply::Failed { why: failure.to_string() }))?;
        next = orders.recv().ok();
    }
    Ok(())
}

fn make(pipeline: &Rc<Pipeline>, lease: Lifetime) -> Result<OrderReply, Failure> {
    let options = TableOptions { lease, groups: GROUPS, depth_max: DEPTH_MAX, ..TableOptions::default() };
    let table = pipeline.block_on(Table::create(pipeline, &options))?;
    Ok(OrderReply::Table { table: table.head() })
}

fn key_of(loader: usize, number: u64) -> Vec<u8> {
    format!("{loader}:{number}").into_bytes()
}

/// Returns the value of a key. Values have several lengths, and each consists of copies of its key.
fn value_of(key: &[u8], number: u64) -> Vec<u8> {
    key.repeat(usize::try_from(number % 16).unwrap_or(0) + 1)
}

/// The loader and the number of a key that [`key_of`] has made.
fn parse(key: &[u8]) -> Option<(usize, u64)> {
    let (loader, number) = std::str::from_utf8(key).ok()?.split_once(':')?;
    Some((loader.parse().ok()?, number.parse().ok()?))
}

fn load(
    pipeline: &Rc<Pipeline>,
    table: ObjectRef,
    loader: usize,
    orders: &Receiver<Order>,
) -> Result<OrderReply, Failure> {
    let table = pipeline.block_on(Table::open(pipeline, table, Access::Write))?;
    say(&OrderReply::Started)?;
    let (mut told, mut longest) = (0, Duration::ZERO);
    let mut store = || -> Result<u64, Failure> {
        let key = key_of(loader, told);
        let before = Instant::now();
        let inserted = pipeline.block_on(table.insert(&key, &value_of(&key, told)));
        longest = longest.max(before.elapsed());
        is_new(inserted, told)?;
        told += 1;
        Ok(told)
    };
    let mut go_on = true;
    while go_on && store()? < KEYS_MOST {
        go_on = matches!(orders.try_recv(), Err(TryRecvError::Empty));
    }
    if go_on {
        // The loader has stored as many keys as it may, and waits for the order.
        let _ = orders.recv();
    }
    for _ in 0..KEYS_AFTER {
        store()?;
    }
    pipeline.block_on(table.close())?;
    Ok(OrderReply::Loaded { told, longest_us: fine_micros(longest) })
}

/// Checks that a key was new: no loader stores a key of another loader, or a key twice.
fn is_new(inserted: Result<bool, TableError>, number: u64) -> Result<(), Failure> {
    if inserted? {
        Ok(())
    } else {
        Err(Failure::Order(format!("key {number} was there before it was stored")))
    }
}

/// Stores keys until the client stops in the middle of a split. It stays there until the process is ended.
fn load_into_split(
    pipeline: &Rc<Pipeline>,
    table: ObjectRef,
    loader: usize,
    orders: &Receiver<Order>,
) -> Result<OrderReply, Failure> {
    let table = pipeline.block_on(Table::open(pipeline, table, Access::Write))?;
    for told in 0.. {
        let key = key_of(loader, told);
        let value = value_of(&key, told);
        let mut insert = pin!(table.insert(&key, &value));
        let mut watched = pin!(poll_fn(|context| {
            let polled = insert.as_mut().poll(context);
            let in_the_middle = table.split_under_way().is_some_and(|split| split.moved * 2 >= split.buckets);
            if in_the_middle && pipeline.posts_left().is_none() {
                pipeline.halt_after(Some(REQUESTS_OF_THE_ROUND));
            }
            polled
        }));
        if let Some(inserted) = pipeline.drive(watched.as_mut()) {
            is_new(inserted, told)?;
            continue;
        }
        let Some(split) = table.split_under_way() else { break };
        say(&OrderReply::Stands { told, moved: split.moved, buckets: split.buckets })?;
        let _ = orders.recv();
        return Err(Failure::Order("it was to be killed".to_owned()));
    }
    Err(Failure::Order("it stands, but not in a split".to_owned()))
}

fn examine(pipeline: &Rc<Pipeline>, table: ObjectRef, loads: &[Load]) -> Result<OrderReply, Failure> {
    let table = pipeline.block_on(Table::open(pipeline, table, Access::Write))?;
    let mut content = Content::default();
    for _ in 0..SWEEPS_MOST {
        // An extent without a used block is not left over from a dead client.
        let Swept { blocks, pending, subtables, unfinished, splits, extents: _ } =
            pipeline.block_on(table.sweep())?;
        content.freed += blocks + pending + subtables + unfinished;
        content.splits_finished += splits;
        content.unfreed = blocks + pending + subtables + unfinished + splits;
        if content.unfreed == 0 {
            break;
        }
    }
    let mut found: HashMap<(usize, u64), u64> = HashMap::new();
    pipeline.block_on(table.for_each(|key, value| {
        let known = parse(key).filter(|(loader, number)| {
            loads.get(*loader).is_some_and(|load| *number < load.begun) && key_of(*loader, *number) == key
        });
        match known {
            Some(known) => {
                *found.entry(known).or_default() += 1;
                content.torn += u64::from(value != value_of(key, known.1));
            }
            None => content.strange += 1,
        }
    }))?;
    content.keys = found.len() as u64;
    content.twice = found.values().filter(|times| **times > 1).count() as u64;
    for (loader, load) in loads.iter().enumerate() {
        content.told += load.told;
        content.lost +=
            (0..load.told).filter(|&number| !found.contains_key(&(loader, number))).count() as u64;
    }
    let statistics = pipeline.block_on(table.statistics())?;
    content.subtables = statistics.subtables;
    content.slots_used = statistics.keys;
    content.unlinked = statistics.unlinked;
    content.dangling = statistics.dangling;
    content.objects = 1 + statistics.subtables + statistics.extents;
    pipeline.block_on(table.close())?;
    Ok(OrderReply::Examined(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_whose_it_is() {
        for (loader, number) in [(0, 0), (2, 17), (1, u64::MAX)] {
            assert_eq!(parse(&key_of(loader, number)), Some((loader, number)));
        }
        for key in [&b""[..], b"1", b"a:1", b"1:", b"\xff:1"] {
            assert_eq!(parse(key), None);
        }
        assert_ne!(value_of(&key_of(1, 0), 0), value_of(&key_of(0, 0), 0));
    }
}

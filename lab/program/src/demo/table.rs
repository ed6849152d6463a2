//! Part 7: three processes load one table, and one of them is killed in the middle of a split.

use super::cast::{ClientProcess, DemoError, Ground, Node};
use super::figures::SharedTable;
use super::orders::{Load, Order, OrderReply};
use crate::network::NicKind;
use portcullis::ObjectRef;
use std::time::Duration;

/// The table's lease. A sweep takes two of them.
const LEASE: Duration = Duration::from_millis(200);
/// The lease on a device: a software device, such as Soft-RoCE, takes milliseconds for each grant.
const LEASE_ON_DEVICE: Duration = Duration::from_secs(1);
/// The longest time that loaders may take. They take milliseconds, but half a minute on a software device that shares
/// its processors.
const LOADED_WITHIN: Duration = Duration::from_secs(60);

/// Shows part 7 on a separate node, so that all objects left there at the end are the table's.
pub fn show(ground: &Ground<'_>) -> Result<SharedTable, DemoError> {
    let node = Node::start(ground, "table", &["--memory", "256MiB"])?;
    let mut examiner = node.client("orange", "examiner")?;
    let lease = match ground.nic {
        NicKind::Software | NicKind::Udp => LEASE,
        NicKind::Ibverbs => LEASE_ON_DEVICE,
    };
    let lease_us = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX);
    let table = match examiner.ask(&Order::MakeTable { lease_us })? {
        OrderReply::Table { table } => table,
        other => return Err(examiner.strange(&other)),
    };
    let mut others = [begin(&node, table, 0)?, begin(&node, table, 1)?];
    let mut doomed = node.client("orange", "loader that will be killed")?;
    doomed.order(&Order::LoadIntoSplit { table, loader: others.len() })?;
    let (load, moved, buckets) = match patient_answer(&mut doomed)? {
        OrderReply::Stands { told, moved, buckets } => (Load { told, begun: told + 1 }, moved, buckets),
        other => return Err(doomed.strange(&other)),
    };
    doomed.kill()?;
    let (mut loads, longest_ms) = end(&mut others)?;
    loads.push(load);
    let content = match examiner.ask(&Order::Examine { table, loads })? {
        OrderReply::Examined(content) => content,
        other => return Err(examiner.strange(&other)),
    };
    drop((others, doomed));
    let objects_left = node.objects(content.objects)?.abs_diff(content.objects);
    drop(examiner);
    node.stop()?;
    let lease_ms = lease.as_secs_f64() * 1e3;
    Ok(SharedTable { loaders: 3, moved, buckets, lease_ms, longest_ms, content, objects_left })
}

/// Starts a loader that continues until it is ordered to finish.
fn begin(node: &Node, table: ObjectRef, loader: usize) -> Result<ClientProcess, DemoError> {
    let mut process = node.client("orange", "loader")?;
    match process.ask(&Order::Load { table, loader })? {
        OrderReply::Started => Ok(process),
        other => Err(process.strange(&other)),
    }
}

/// Returns the answer of a loader, which must store a few hundred keys first.
fn patient_answer(loader: &mut ClientProcess) -> Result<OrderReply, DemoError> {
    let answer = loader.answer_within(LOADED_WITHIN)?;
    answer.ok_or_else(|| DemoError::Slow { who: format!("a loader of tenant {}", loader.tenant()) })
}

/// Orders loaders to finish. Returns the keys that they have loaded, and the time of their longest operation, in ms.
fn end(loaders: &mut [ClientProcess]) -> Result<(Vec<Load>, f64), DemoError> {
    for loader in loaders.iter_mut() {
        loader.order(&Order::Halt)?;
    }
    let (mut loads, mut longest) = (Vec::new(), 0f64);
    for loader in loaders {
        match patient_answer(loader)? {
            OrderReply::Loaded { told, longest_us } => {
                loads.push(Load { told, begun: told });
                longest = longest.max(longest_us / 1e3);
            }
            other => return Err(loader.strange(&other)),
        }
    }
    Ok((loads, longest))
}

//! The effect of a violation: on both ends of the guilty queue pair, and on no other queue pair.

use super::attempt::{refused, works};
use super::probe::Said;
use super::setback::Setback;
use crate::bench::{Bench, End, HELD, Holder};
use portcullis_nic::{Access, Event, Nic, Operation, QpState, Rkey, Status};
use std::time::Duration;

/// A key that names no object: its refusal depends on no range or right.
const NOBODYS: Rkey = Rkey(0x00ab_cd00);
/// Number of violations, one after another.
const CULPRITS: u32 = 4;
/// Number of the bystander's requests under way at each violation.
const UNDER_WAY: usize = 8;

/// Time after which an event counts as missing. The states of the queue pairs have shown already what the event would
/// report.
const EVENT_PATIENCE: Duration = Duration::from_secs(1);

fn violation<N: Nic>(bench: &Bench<N>) -> Operation {
    bench.read(HELD, 8, NOBODYS)
}

pub(super) fn spares_others<N: Nic>(bench: &mut Bench<N>) -> Said {
    let (bystander, held) = bench.fresh(Holder::Region, Access::REMOTE_READ)?;
    let (stray, good) = (violation(bench), bench.read(HELD, 8, held.rkey));
    works(bench, bystander, good, "a READ before the violations")?;
    for number in 1..=CULPRITS {
        let culprit = bench.pair()?;
        let requests: Vec<_> = (0..UNDER_WAY).map(|_| bench.request(good, true)).collect();
        bench.post(bystander.client, &requests)?;
        refused(bench, culprit, stray, "a READ with a key that was never granted")?;
        for completion in bench.completions(bystander.client.send_cq, UNDER_WAY)? {
            if completion.status != Status::Success {
                let status = completion.status;
                return Err(Setback::Broken(format!(
                    "at violation {number} a bystander's READ ended with {status}"
                )));
            }
        }
        for end in [bystander.client, bystander.owner] {
            let state = bench.nic.qp_state(end.qp)?;
            if state != QpState::ReadyToSend {
                return Err(Setback::Broken(format!(
                    "violation {number} took a bystander's queue pair to {state}"
                )));
            }
        }
        if bench.execute(bystander.client, good)? != Status::Success {
            return Err(Setback::Broken(format!("after violation {number} a bystander is refused")));
        }
    }
    Ok(String::new())
}

pub(super) fn takes_both_ends<N: Nic>(bench: &mut Bench<N>) -> Said {
    let pair = bench.pair()?;
    let stray = violation(bench);
    refused(bench, pair, stray, "a READ with a key that was never granted")?;
    for (end, whose) in [(pair.client, "client's"), (pair.owner, "owner's")] {
        if !reaches_error(bench, end)? {
            let state = bench.nic.qp_state(end.qp)?;
            return Err(Setback::Broken(format!("after a violation the {whose} end is in {state}")));
        }
    }
    let after = bench.read(HELD, 8, NOBODYS);
    let status = bench.execute(pair.client, after)?;
    if status != Status::FlushError {
        return Err(Setback::Broken(format!(
            "the next request of the broken queue pair ended with {status}"
        )));
    }
    bench.limits.patience = bench.limits.patience.min(EVENT_PATIENCE);
    let told = bench.until("event", |bench| Ok(bench.nic.poll_event())).ok();
    // A missing event does not mean that the device did not answer.
    bench.limits.reached = false;
    Ok(match told {
        Some(Event::AccessError(qp, _)) if qp == pair.owner.qp => String::new(),
        Some(other) => format!("the device reported {other:?} to the owner"),
        None => "no event reports it to the owner, which has to poll the states".to_owned(),
    })
}

fn reaches_error<N: Nic>(bench: &mut Bench<N>, end: End) -> Result<bool, Setback> {
    let said = bench.expect_state(end, QpState::Error);
    bench.limits.reached = false;
    Ok(said.is_ok() || bench.nic.qp_state(end.qp)? == QpState::Error)
}

//! Whether a key, and a queue pair, allow what they were made for and nothing else.

use super::attempt::{Subject, refused, works};
use super::probe::Said;
use super::setback::Setback;
use crate::bench::{Bench, HELD, Holder, Plan};
use portcullis_nic::{Access, AtomicScope, Nic, Operation, QpChange, Rkey};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    FetchAndAdd,
    CompareAndSwap,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::FetchAndAdd, Self::CompareAndSwap];

    fn right(self) -> Access {
        match self {
            Self::Read => Access::REMOTE_READ,
            Self::Write => Access::REMOTE_WRITE,
            Self::FetchAndAdd | Self::CompareAndSwap => Access::REMOTE_ATOMIC,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Read => "a READ",
            Self::Write => "a WRITE",
            Self::FetchAndAdd => "a FETCH_AND_ADD",
            Self::CompareAndSwap => "a COMPARE_AND_SWAP",
        }
    }

    /// Returns an operation of this kind whose execution would leave a trace.
    fn operation<N: Nic>(self, bench: &Bench<N>, rkey: Rkey) -> Operation {
        match self {
            Self::Read => bench.read(HELD, 8, rkey),
            Self::Write => bench.write(HELD, 8, rkey),
            Self::FetchAndAdd => bench.fetch_and_add(HELD, 1, rkey),
            Self::CompareAndSwap => {
                let word = bench.held_word();
                bench.compare_and_swap(HELD, word, !word, rkey)
            }
        }
    }

    /// Returns the kinds that this device supports.
    fn of<N: Nic>(bench: &Bench<N>) -> impl Iterator<Item = Self> + use<N> {
        let atomics = bench.capabilities.atomics != AtomicScope::None;
        Self::ALL.into_iter().filter(move |kind| atomics || kind.right() != Access::REMOTE_ATOMIC)
    }
}

/// Tries every kind of access with a key for every other kind.
pub(super) fn of_keys<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Said {
    let mut subject = Subject::new(bench, holder)?;
    for given in Kind::of(bench) {
        for taken in Kind::of(bench).filter(|taken| taken.right() != given.right()) {
            let (held, pair) = (subject.key(bench, given.right())?, subject.pair);
            let allowed = given.operation(bench, held.rkey);
            works(bench, pair, allowed, given.name())?;
            let stray = taken.operation(bench, held.rkey);
            refused(bench, pair, stray, &format!("{} with a key for {} alone", taken.name(), given.name()))?;
        }
    }
    if holder == Holder::Region {
        without_any(bench)?;
    }
    Ok(String::new())
}

/// Checks that a region's own key opens nothing to peers. Pools under windows rest on this.
fn without_any<N: Nic>(bench: &mut Bench<N>) -> Result<(), Setback> {
    for taken in Kind::of(bench) {
        let pair = bench.pair()?;
        let stray = taken.operation(bench, bench.pool.rkey);
        refused(
            bench,
            pair,
            stray,
            &format!("{} with the key of a region without remote rights", taken.name()),
        )?;
    }
    Ok(())
}

/// Checks the access flags of a queue pair, set at its start or changed while it is in service.
pub(super) fn of_queue_pairs<N: Nic>(bench: &mut Bench<N>) -> Said {
    for taken in Kind::of(bench) {
        for from_the_start in [true, false] {
            let rest = Access::REMOTE - taken.right();
            let plan = bench.plan();
            let access = if from_the_start { rest } else { Access::REMOTE };
            let pair = bench.pair_as(Plan { access, ..plan })?;
            let held = bench.key(pair, Holder::Region, Access::REMOTE)?;
            if !from_the_start {
                let allowed = taken.operation(bench, held.rkey);
                works(bench, pair, allowed, taken.name())?;
                bench.nic.modify_qp(pair.owner.qp, QpChange::Access { access: rest })?;
            }
            let stray = taken.operation(bench, held.rkey);
            refused(bench, pair, stray, &format!("{} through a queue pair without the right", taken.name()))?;
        }
    }
    Ok(String::new())
}

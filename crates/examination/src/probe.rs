//! One guarantee, the trial of it, and the texts for the report.

use super::setback::Setback;
use super::{Finding, Limits, Verdict, atomics, domains, isolation, keys, many, range, revocation, rights};
use crate::bench::{Bench, Holder};
use portcullis_nic::{Guarantee, Nic, VerbsError};
use portcullis_protocol::Mechanism;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The result of a probe: the guarantee holds, with a remark if there is one, or the reason why that was not found.
pub(super) type Said = Result<String, Setback>;

pub(super) struct Probe {
    pub(super) name: &'static str,
    /// The guarantee that a starting node checks with this probe, if any.
    pub(super) guarantee: Option<Guarantee>,
    pub(super) mechanisms: &'static [Mechanism],
    /// The meaning for the operator if the guarantee holds.
    pub(super) kept: &'static str,
    /// The meaning for the operator if the guarantee does not hold, and the action to take.
    pub(super) missing: &'static str,
    pub(super) trial: Trial,
}

#[derive(Clone, Copy)]
pub(super) enum Trial {
    Range(Holder),
    Rights(Holder),
    StaleAfterRebind,
    StaleAfterUnbind,
    StaleAfterInvalidate,
    StaleOfRegion,
    KeyAdvance,
    QueuePairBinding,
    Domains,
    QueuePairRights,
    Revocation(Holder),
    FaultIsolation,
    BothEndsInError,
    Atomics,
    WindowCount,
    ManyBinds,
    Misuse,
}

impl Trial {
    fn on<N: Nic>(self, bench: &mut Bench<N>) -> Said {
        match self {
            Self::Range(holder) => range::of(bench, holder),
            Self::Rights(holder) => rights::of_keys(bench, holder),
            Self::StaleAfterRebind => keys::end_with_a_rebind(bench),
            Self::StaleAfterUnbind => keys::end_with_an_unbind(bench),
            Self::StaleAfterInvalidate => keys::end_with_an_invalidate(bench),
            Self::StaleOfRegion => keys::end_with_their_region(bench),
            Self::KeyAdvance => keys::advance(bench),
            Self::QueuePairBinding => domains::bind_to_queue_pairs(bench),
            Self::Domains => domains::protect(bench),
            Self::QueuePairRights => rights::of_queue_pairs(bench),
            Self::Revocation(holder) => revocation::is_final(bench, holder),
            Self::FaultIsolation => isolation::spares_others(bench),
            Self::BothEndsInError => isolation::takes_both_ends(bench),
            Self::Atomics => atomics::count(bench),
            Self::WindowCount => many::windows(bench),
            Self::ManyBinds => many::binds(bench),
            Self::Misuse => keys::survive_misuse(bench),
        }
    }
}

impl Probe {
    pub(super) fn finding(&self, said: Said) -> Finding {
        let (verdict, detail) = match said {
            Ok(remark) if remark.is_empty() => (Verdict::Holds, self.kept.to_owned()),
            Ok(remark) => (Verdict::Holds, format!("{}; {remark}", self.kept)),
            Err(Setback::Broken(seen)) => (Verdict::Broken, format!("{seen}. {}", self.missing)),
            Err(Setback::Absent(reason) | Setback::Failed(reason)) => (Verdict::Untried, reason),
        };
        Finding { name: self.name, verdict, detail, mechanisms: self.mechanisms }
    }
}

/// Runs one trial after another, each on the device opened anew.
pub(super) struct Conductor<'a, N> {
    limits: Limits,
    make: &'a mut dyn FnMut() -> Result<N, VerbsError>,
    /// Number of trials in a row that ran out of time.
    late: u32,
}

/// Number of trials in a row out of time after which the device counts as dead: the others would only wait as long.
const LATE_MAX: u32 = 2;

impl<'a, N: Nic> Conductor<'a, N> {
    pub(super) fn new(limits: Limits, make: &'a mut dyn FnMut() -> Result<N, VerbsError>) -> Self {
        Self { limits, make, late: 0 }
    }

    pub(super) fn conduct(&mut self, probe: &Probe) -> Said {
        let (remark, cleared) = self.on_a_bench(|bench| probe.trial.on(bench))?;
        Ok(match cleared {
            None => remark,
            Some(complaint) if remark.is_empty() => complaint,
            Some(complaint) => format!("{remark}; {complaint}"),
        })
    }

    /// Runs `work` on a fresh bench. Also returns a description of the objects that could not be destroyed afterwards.
    pub(super) fn on_a_bench<T>(
        &mut self,
        work: impl FnOnce(&mut Bench<N>) -> Result<T, Setback>,
    ) -> Result<(T, Option<String>), Setback> {
        if self.late >= LATE_MAX {
            return Err(Setback::Failed("the device does not answer any more".to_owned()));
        }
        let limits = self.limits;
        let make = &mut self.make;
        // The device is dropped with its bench, in whatever state a panic left it.
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut bench = Bench::new(make()?)?;
            bench.limits.patience = limits.patience;
            bench.limits.deadline = Some(Instant::now() + limits.probe);
            let said = work(&mut bench);
            let late = bench.limits.reached;
            Ok::<_, Setback>((said, late, bench.clear()))
        }));
        let done = done.unwrap_or_else(|_| Err(Setback::Failed("the device's driver panicked".to_owned())));
        let (said, late, cleared) = done?;
        self.late = if late { self.late + 1 } else { 0 };
        let cleared = cleared.err().map(|stop| format!("afterwards, {}", Setback::from(stop).text()));
        Ok((said?, cleared))
    }
}

impl Setback {
    /// Returns the description of the failure, without its meaning for the guarantee.
    pub(super) fn text(self) -> String {
        match self {
            Self::Broken(text) | Self::Absent(text) | Self::Failed(text) => text,
        }
    }
}

//! The examination of a device. Each guarantee that a permission rests on is tried on the device at hand: the claims of
//! a data sheet or a driver, and the results of another device of the same name, prove nothing about it.
//!
//! The conformance suite of the laboratory reports whether a NIC is right, promise by promise. An examination reports
//! what that means for lending memory through the device: a [`Finding`] for each guarantee, the duration of some steps
//! ([`Time`]), and the mechanism that a node takes there ([`mechanism_for`]).
//!
//! A device may lie, hang or refuse. So each guarantee is tried on the device opened anew, with objects of its own and
//! within a time limit, and a failure there affects only that finding. The examination does nothing that the device
//! does not survive ([`Misuse`](portcullis_nic::Misuse)).
//!
//! The suite sets up the same [bench](mod@bench) on a NIC. Both use the NIC only through its trait, [`Nic`].
#![forbid(unsafe_code)]

mod around;
mod atomics;
mod attempt;
pub mod bench;
pub mod check;
mod domains;
mod isolation;
mod keys;
mod list;
mod many;
mod mechanism;
mod nic_objects;
mod posting;
mod probe;
mod range;
mod revocation;
mod rights;
mod setback;
mod times;

pub use around::{Around, Hook};
pub use mechanism::{mechanism_for, mechanisms_that_hold, rests_on};
pub use times::{Time, Untimed};

use portcullis_nic::{Capabilities, Guarantee, Nic, VerbsError};
use portcullis_protocol::Mechanism;
use probe::{Conductor, Said};
use std::fmt;
use std::time::Duration;

/// The result of an examination for one guarantee.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The device keeps the guarantee, as far as a trial can show.
    Holds,
    /// The device was seen not to keep the guarantee.
    Broken,
    /// The guarantee could not be tried.
    Untried,
}

impl Verdict {
    /// The name used in reports for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Broken => "broken",
            Self::Untried => "untried",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The result for one guarantee.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The guarantee's name.
    pub name: &'static str,
    /// Whether the guarantee holds.
    pub verdict: Verdict,
    /// The meaning of the verdict for lending memory and the action to take, or the reason why the guarantee could not
    /// be tried.
    pub detail: String,
    /// The mechanisms that do not protect as they promise if the guarantee is missing.
    pub mechanisms: &'static [Mechanism],
}

/// The time limits of an examination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest wait for one condition, such as a completion.
    pub patience: Duration,
    /// Time for one guarantee as a whole. A call of the device that never returns cannot be cut short.
    pub probe: Duration,
}

impl Default for Limits {
    /// Limits long enough for a device that runs in an emulated machine.
    fn default() -> Self {
        Self { patience: Duration::from_secs(5), probe: Duration::from_mins(1) }
    }
}

/// The results of an examination.
#[derive(Clone, PartialEq, Debug)]
pub struct Examination {
    /// The device's own name for itself.
    pub device: String,
    /// The capabilities that the device reports. Only `unenforced` differs: it lists the guarantees that the device was
    /// seen not to keep, or could not be shown to keep.
    pub capabilities: Capabilities,
    /// One finding for each guarantee, in a fixed order.
    pub findings: Vec<Finding>,
    /// How long some steps took.
    pub times: Vec<Time>,
    /// Steps that could not be measured, and why.
    pub untimed: Vec<Untimed>,
}

impl Examination {
    /// Returns the mechanism that a node takes on this device by default, and why.
    #[must_use]
    pub fn mechanism(&self) -> (Mechanism, String) {
        mechanism_for(&self.capabilities)
    }

    /// Returns the broken guarantees that a mechanism rests on.
    pub fn broken(&self, mechanism: Mechanism) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(move |it| it.verdict == Verdict::Broken && it.mechanisms.contains(&mechanism))
    }
}

/// Returns the names of the guarantees that [`examine`] tries, in that order.
#[must_use]
pub fn names() -> Vec<&'static str> {
    list::PROBES.iter().map(|probe| probe.name).collect()
}

/// Examines a device. `make` opens it anew for each guarantee; `progress` is called with each finding as it is made.
///
/// # Errors
/// The device cannot be opened at all.
pub fn examine<N: Nic>(
    make: impl FnMut() -> Result<N, VerbsError>,
    progress: impl FnMut(&Finding),
) -> Result<Examination, VerbsError> {
    examine_within(Limits::default(), make, progress)
}

/// Examines a device as [`examine`] does, within the given limits.
///
/// # Errors
/// The device cannot be opened at all.
pub fn examine_within<N: Nic>(
    limits: Limits,
    mut make: impl FnMut() -> Result<N, VerbsError>,
    mut progress: impl FnMut(&Finding),
) -> Result<Examination, VerbsError> {
    let mut capabilities = make()?.capabilities();
    let mut conductor = Conductor::new(limits, &mut make);
    let mut findings = Vec::new();
    let mut unenforced = Vec::new();
    for probe in &list::PROBES {
        let said = conductor.conduct(probe);
        note(&mut unenforced, probe.guarantee, &said);
        let finding = probe.finding(said);
        progress(&finding);
        findings.push(finding);
    }
    capabilities.unenforced = unenforced;
    let (times, untimed) = times::measure(&mut conductor);
    Ok(Examination { device: capabilities.name.clone(), capabilities, findings, times, untimed })
}

/// Returns the guarantees that mechanisms rest on ([`rests_on`]) and that a device does not keep: the quick part of an
/// examination, for a node that starts. A guarantee that could not be tried counts as not kept, unless the device lacks
/// the feature that the guarantee is about.
///
/// # Errors
/// The device cannot be opened at all.
pub fn unenforced<N: Nic>(
    mut make: impl FnMut() -> Result<N, VerbsError>,
) -> Result<Vec<Guarantee>, VerbsError> {
    drop(make()?);
    let mut conductor = Conductor::new(Limits::default(), &mut make);
    let mut unenforced = Vec::new();
    for probe in &list::PROBES {
        // A broken guarantee need not be tried twice.
        let guarantee = probe.guarantee;
        if guarantee.is_some_and(|guarantee| !unenforced.contains(&guarantee)) {
            let said = conductor.conduct(probe);
            note(&mut unenforced, guarantee, &said);
        }
    }
    Ok(unenforced)
}

fn note(unenforced: &mut Vec<Guarantee>, guarantee: Option<Guarantee>, said: &Said) {
    if let Some(guarantee) = guarantee
        && said.as_ref().is_err_and(|setback| !setback.is_absence())
        && !unenforced.contains(&guarantee)
    {
        unenforced.push(guarantee);
    }
}

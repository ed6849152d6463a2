//! The examination of a device: each guarantee that a permission rests on is tried on the device at hand, since what a
//! data sheet, a driver or another device of the same name says proves nothing about this one.
//!
//! The conformance suite says whether a NIC is right, promise by promise; an examination says what that means for
//! whoever wants to lend memory through it: one [`Finding`] a guarantee, what some steps cost ([`Time`]), and the
//! protection mechanism that a node takes there ([`mechanism_for`]).
//!
//! A device may lie, hang or refuse: each guarantee is tried on a device of its own making, with objects of its own and
//! within a time; whatever goes wrong there is that finding's and not the end. What a device does not survive
//! ([`Misuse`](portcullis_nic::Misuse)) is not done to it.

mod atomics;
mod attempt;
mod domains;
mod isolation;
mod keys;
mod list;
mod many;
mod mechanism;
mod probe;
mod range;
mod revocation;
mod rights;
mod setback;
mod times;

pub use mechanism::{mechanism_for, mechanisms_that_hold, rests_on};
pub use times::{Time, Untimed};

use portcullis_nic::{Capabilities, Guarantee, Nic, VerbsError};
use portcullis_protocol::Mechanism;
use probe::{Conductor, Said};
use std::fmt;
use std::time::Duration;

/// What an examination says of one guarantee.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The device keeps it, as far as trying can show.
    Holds,
    /// It was seen not to.
    Broken,
    /// It could not be tried.
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

/// What became of one guarantee.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The guarantee's name.
    pub name: &'static str,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What that means for whoever lends memory and what to do about it, or why it could not be tried.
    pub detail: String,
    /// The mechanisms that are not what they promise without it.
    pub mechanisms: &'static [Mechanism],
}

/// How long an examination waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// For one condition, such as a completion.
    pub patience: Duration,
    /// For one guarantee as a whole. A call of the device that never returns cannot be cut short.
    pub probe: Duration,
}

impl Default for Limits {
    /// Long enough for a device that runs in an emulated machine.
    fn default() -> Self {
        Self { patience: Duration::from_secs(5), probe: Duration::from_mins(1) }
    }
}

/// What an examination found.
#[derive(Clone, PartialEq, Debug)]
pub struct Examination {
    /// The device, by its own name.
    pub device: String,
    /// What it says it can do. `unenforced` is what it was seen not to keep, or could not be shown to, and nothing that
    /// the device says.
    pub capabilities: Capabilities,
    /// One a guarantee, in a fixed order.
    pub findings: Vec<Finding>,
    /// What some steps took.
    pub times: Vec<Time>,
    /// What took no time that could be measured, and why.
    pub untimed: Vec<Untimed>,
}

impl Examination {
    /// The mechanism that a node takes on this device by itself, and why.
    #[must_use]
    pub fn mechanism(&self) -> (Mechanism, String) {
        mechanism_for(&self.capabilities)
    }

    /// What is broken among the guarantees that a mechanism rests on.
    pub fn broken(&self, mechanism: Mechanism) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(move |it| it.verdict == Verdict::Broken && it.mechanisms.contains(&mechanism))
    }
}

/// The names of the guarantees that [`examine`] tries, in its order.
#[must_use]
pub fn names() -> Vec<&'static str> {
    list::PROBES.iter().map(|probe| probe.name).collect()
}

/// Examines a device. `make` opens it, for each guarantee anew; `progress` hears each finding as it is made.
///
/// # Errors
/// The device cannot be opened at all.
pub fn examine<N: Nic>(
    make: impl FnMut() -> Result<N, VerbsError>,
    progress: impl FnMut(&Finding),
) -> Result<Examination, VerbsError> {
    examine_within(Limits::default(), make, progress)
}

/// The same within other limits.
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
        note(&mut unenforced, probe.guarantee_on(&capabilities), &said);
        let finding = probe.finding(said);
        progress(&finding);
        findings.push(finding);
    }
    capabilities.unenforced = unenforced;
    let (times, untimed) = times::measure(&mut conductor);
    Ok(Examination { device: capabilities.name.clone(), capabilities, findings, times, untimed })
}

/// What a device does not keep of all that a mechanism rests on ([`rests_on`]): the quick part of an examination, for a
/// node that starts. What could not be tried counts as not kept, unless the device has nothing of the kind. Windows of
/// type 2 are asked only for what they alone promise, where there are some of type 1.
///
/// # Errors
/// The device cannot be opened at all.
pub fn unenforced<N: Nic>(
    mut make: impl FnMut() -> Result<N, VerbsError>,
) -> Result<Vec<Guarantee>, VerbsError> {
    let capabilities = make()?.capabilities();
    let mut conductor = Conductor::new(Limits::default(), &mut make);
    let mut unenforced = Vec::new();
    for probe in &list::PROBES {
        // What is known to be missing need not be seen missing twice.
        let guarantee = probe.guarantee_on(&capabilities);
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

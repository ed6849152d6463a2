//! Running a model in every order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which orders are looked at.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// All.
    Every,
    /// Those in which threads that could have gone on are interrupted so many times at most.
    Interruptions(usize),
}

/// Steps of one run, at most: more means that a model does not end.
const STEPS_MAX: usize = 20_000;

/// Runs `model` in every order within the bound. Says how many runs that were.
///
/// # Panics
/// Some run panics, or comes to a point where all threads wait.
pub fn explore(bound: Bound, model: impl Fn() + Send + Sync + 'static) -> u64 {
    let runs = Tally::default();
    let counted = runs.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match bound {
        Bound::Every => None,
        Bound::Interruptions(most) => Some(most),
    };
    builder.max_branches = STEPS_MAX;
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.check(move || {
        counted.add();
        model();
    });
    runs.value()
}

/// Asserts that `exploration` finds a run that goes wrong, and that this is what it says of it.
pub fn finds(what: &str, exploration: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(exploration)) else {
        panic!("no run was found that goes wrong with: {what}");
    };
    let said = payload.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(said.contains(what), "a run went wrong in another way than with {what:?}: {said}");
}

/// A number that outlives the runs: how often, or how far at most, something came.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicU64>);

impl Tally {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Some run came this far.
    pub fn reached(&self, far: u64) {
        self.0.fetch_max(far, Ordering::Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

//! The exploration of a model: it runs the model in every order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The orders that are explored.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    Every,
    /// The orders with at most this many preemptions of threads.
    Interruptions(usize),
}

/// The most steps of a run. A model with more steps does not end.
const STEPS_MAX: usize = 20_000;

/// Runs `model` in every order within the bound. Returns the number of runs.
///
/// # Panics
/// A run panics, or reaches a point at which all threads wait.
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

/// Asserts that `exploration` finds a run that panics, and that the message contains `what`.
pub fn finds(what: &str, exploration: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(exploration)) else {
        panic!("no run was found that goes wrong with: {what}");
    };
    let said = payload.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(said.contains(what), "a run went wrong in another way than with {what:?}: {said}");
}

/// A number that outlives the runs: a count, or a maximum.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicU64>);

impl Tally {
    /// Adds one to the number.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a run has reached `far`.
    pub fn reached(&self, far: u64) {
        self.0.fetch_max(far, Ordering::Relaxed);
    }

    /// Returns the number.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

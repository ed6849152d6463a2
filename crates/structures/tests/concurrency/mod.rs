//! Clients on several threads, which work on the same few keys of a table that is split meanwhile. Some of them die or
//! stand still.

use crate::perform::perform;
use crate::rig::{User, node};
use portcullis::host::Host;
use portcullis::{Lifetime, Mechanism, ObjectRef};
use portcullis_histories::key::{Event, Operation, is_linearizable};
use portcullis_planted as planted;
use portcullis_structures::table::{Access, Grain, TableOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 3;
/// Number of keys that all threads change. Other keys only make the table grow.
const HOT: u64 = 4;
/// Number of all keys.
const KEYS: u64 = 600;
/// Number of operations of a thread.
const OPERATIONS: u64 = 400;
/// One operation in this many ends its client.
const DEATH_ONE_IN: u64 = 40;

/// The state that all threads share.
struct Run<'a> {
    node: &'a Host,
    head: ObjectRef,
    began: Instant,
    /// The next value: each value is stored at most once.
    values: AtomicU64,
    histories: Mutex<Vec<(u64, Operation)>>,
}

impl Run<'_> {
    fn time(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("a short test")
    }

    fn open(&self) -> User {
        User::open(self.node, "red", self.head, Access::Write)
    }

    fn record(&self, key: u64, operation: Operation) {
        self.histories.lock().expect("no panic").push((key, operation));
    }
}

/// Carries out one operation, in which the client may die or be late. Returns whether it lives.
fn operate(run: &Run<'_>, dice: &mut StdRng, user: &User, seen: &mut u64) -> bool {
    let hot = dice.random_range(0..10) < 8;
    let key = if hot { dice.random_range(0..HOT) } else { dice.random_range(HOT..KEYS) };
    let new = run.values.fetch_add(1, Ordering::Relaxed);
    let event = match dice.random_range(0..10) {
        0..4 => Event::Get(None),
        4 => Event::Insert(new, false),
        5 => Event::Update(new, false),
        6 | 7 => Event::Upsert(new),
        8 => Event::Remove(false),
        _ => Event::Exchange(*seen, new, false),
    };
    let ends = dice.random_range(0..DEATH_ONE_IN) == 0;
    user.pipeline.halt_after(ends.then(|| dice.random_range(0..25)));
    let start = run.time();
    let mut operation = pin!(perform(&user.table, key, event));
    let mut told = user.pipeline.drive(operation.as_mut());
    if told.is_none() && dice.random() {
        // In this case the client was only late.
        std::thread::sleep(Duration::from_millis(dice.random_range(0..100)));
        user.pipeline.halt_after(None);
        told = user.pipeline.drive(operation.as_mut());
    }
    let end = told.is_some().then(|| run.time());
    let event = told.map_or(event, |told| told.expect("the node serves all"));
    if let Event::Get(Some(value)) = event {
        *seen = value;
    }
    run.record(key, Operation { event, start, end });
    end.is_some()
}

fn thread(run: &Run<'_>, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut user = run.open();
    let mut seen = 0;
    for _ in 0..OPERATIONS {
        if !operate(run, &mut dice, &user, &mut seen) {
            user = run.open();
        }
    }
}

pub fn explore(seed: u64, grain: Grain) {
    explore_on(&node(Mechanism::MemoryWindow), seed, grain);
}

pub fn explore_on(node: &Host, seed: u64, grain: Grain) {
    let lease = Lifetime::millis(20);
    let options =
        TableOptions { grain, lease, groups: 1, depth_max: 10, seed: Some(0), ..TableOptions::default() };
    let first = User::create(node, "red", &options);
    let run = Run {
        node,
        head: first.table.head(),
        began: Instant::now(),
        values: AtomicU64::new(1),
        histories: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let plant = planted::for_another_thread();
                scope.spawn(move || {
                    plant();
                    thread(run, seed * THREADS + number);
                })
            })
            .collect();
        // Meanwhile the first client sweeps.
        while threads.iter().any(|thread| !thread.is_finished()) {
            first.run(first.table.sweep());
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
    });
    let histories = run.histories.into_inner().expect("no panic");
    for key in 0..KEYS {
        let history: Vec<Operation> = histories.iter().filter(|(of, _)| *of == key).map(|it| it.1).collect();
        assert!(
            is_linearizable(&history),
            "seed {seed}, {grain:?}: key {key} is not linearizable: {history:#?}"
        );
    }
    for _ in 0..2 {
        first.run(first.table.sweep());
    }
    let statistics = first.run(first.table.statistics());
    let lost = (statistics.unlinked, statistics.dangling);
    assert_eq!(lost, (0, 0), "seed {seed}, {grain:?}: blocks are leaked or lost: {statistics:?}");
}

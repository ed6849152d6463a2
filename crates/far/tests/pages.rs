//! The page state machine against a model of the memory: whatever a program does, it reads what it wrote last, no more is
//! local than may be, and nobody waits for ever.

use portcullis_far::pages::{Effect, HELD_MIN, Limits, MAPPED_MIN, Pages, RunId, SEGMENT_PAGES, Span};
use proptest::prelude::*;
use std::collections::HashMap;

const PAGES: u64 = 4 * SEGMENT_PAGES;
/// Turns of the world after which a thread that waits has been forgotten.
const TURNS_MAX: usize = 10_000;

/// What a thread of the program does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Touch a page, and its neighbours after it.
    Touch { page: u64, count: u64, is_down: bool, is_write: bool },
    /// Write zeros over pages.
    Clear { page: u64, count: u64 },
    /// Give pages back.
    Release { page: u64, count: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly a part of the range, so that pages come again.
    let page = prop_oneof![3 => 0..PAGES / 3, 1 => 0..PAGES];
    let count = prop_oneof![4 => 1..3u64, 2 => 1..200u64];
    let touch = (page.clone(), count.clone(), any::<bool>(), any::<bool>())
        .prop_map(|(page, count, is_down, is_write)| Step::Touch { page, count, is_down, is_write });
    prop_oneof![
        12 => touch,
        2 => (page.clone(), count.clone()).prop_map(|(page, count)| Step::Clear { page, count }),
        1 => (page, 1..400u64).prop_map(|(page, count)| Step::Release { page, count }),
    ]
}

/// Something that takes time.
#[derive(Clone, Debug)]
enum Pending {
    Load(RunId, Span),
    Save(RunId, Span),
    Allocate(u64),
    Free(u64),
}

/// A page of the kernel's: its bytes as one number, and whether writes fault.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    value: u64,
    is_protected: bool,
}

/// The kernel, the node and the buffers between them.
struct World {
    pages: Pages,
    limits: Limits,
    mapped: HashMap<u64, Mapped>,
    buffers: HashMap<RunId, (u64, Vec<u64>)>,
    /// What chunks hold, by segment. A new chunk is full of zeros.
    node: HashMap<u64, Vec<u64>>,
    pending: Vec<Pending>,
    /// Pages whose waiting threads were woken since they fell asleep.
    woken: Vec<u64>,
    dice: u64,
}

impl World {
    fn new(limits: Limits, dice: u64) -> Self {
        Self {
            pages: Pages::new(limits),
            limits,
            mapped: HashMap::new(),
            buffers: HashMap::new(),
            node: HashMap::new(),
            pending: Vec::new(),
            woken: Vec::new(),
            dice,
        }
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        usize::try_from(self.dice >> 33).unwrap() % sides
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.pages.poll_effect() {
            self.effect(effect);
            assert!(self.mapped.len() <= self.limits.mapped as usize, "too many pages are mapped");
            let held: u32 = self
                .buffers
                .values()
                .map(|(_, values)| u32::try_from(values.len()).unwrap().next_power_of_two())
                .sum();
            assert!(held <= self.limits.held, "the buffers take too much");
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Load(run, span) => self.pending.push(Pending::Load(run, span)),
            Effect::Save(run, span) => self.pending.push(Pending::Save(run, span)),
            Effect::AllocateChunk(segment) => self.pending.push(Pending::Allocate(segment)),
            Effect::FreeChunk(segment) => self.pending.push(Pending::Free(segment)),
            Effect::TakeOut { run, span, is_dirty } => {
                let values: Vec<_> = (span.first..span.end())
                    .map(|page| {
                        let page = self.mapped.remove(&page).expect("only what is mapped is taken out");
                        assert!(
                            is_dirty || page.is_protected,
                            "a page that can be written is taken out as clean"
                        );
                        page.value
                    })
                    .collect();
                let zeros = values
                    .iter()
                    .enumerate()
                    .fold(0, |all, (bit, &value)| all | u64::from(value == 0) << bit);
                self.buffers.insert(run, (span.first, values));
                self.pages.taken_out(run, zeros);
            }
            Effect::Map { run, first, span, is_writable } => {
                let (at, values) = &self.buffers[&run];
                assert_eq!(*at, first);
                for page in span.first..span.end() {
                    let value = values[usize::try_from(page - first).unwrap()];
                    let was = self.mapped.insert(page, Mapped { value, is_protected: !is_writable });
                    assert!(was.is_none(), "page {page} is mapped twice");
                    self.woken.push(page);
                }
            }
            Effect::Zero(span) => {
                for page in span.first..span.end() {
                    let was = self.mapped.insert(page, Mapped { value: 0, is_protected: false });
                    assert!(was.is_none(), "page {page} is mapped twice");
                    self.woken.push(page);
                }
            }
            Effect::Allow(span) => {
                for page in span.first..span.end() {
                    self.mapped.get_mut(&page).expect("it is mapped").is_protected = false;
                    self.woken.push(page);
                }
            }
            Effect::Wake(span) => self.woken.extend(span.first..span.end()),
            Effect::Forget(span) => self.mapped.retain(|&page, _| page < span.first || page >= span.end()),
            Effect::Discard(run) => {
                self.buffers.remove(&run).expect("it has a buffer");
            }
        }
    }

    /// The monitor has nothing else to do.
    fn prepare(&mut self) {
        while self.pages.prepare() {
            self.carry_out();
        }
    }

    /// One of the things that take time ends.
    fn finish_one(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let at = self.roll(self.pending.len());
        match self.pending.swap_remove(at) {
            Pending::Load(run, span) => {
                let chunk = &self.node[&(span.first / SEGMENT_PAGES)];
                let from = usize::try_from(span.first % SEGMENT_PAGES).unwrap();
                let values = chunk[from..from + span.count as usize].to_vec();
                self.buffers.insert(run, (span.first, values));
                self.pages.loaded(run);
            }
            Pending::Save(run, span) => {
                let chunk =
                    self.node.get_mut(&(span.first / SEGMENT_PAGES)).expect("the segment has a chunk");
                let from = usize::try_from(span.first % SEGMENT_PAGES).unwrap();
                chunk[from..from + span.count as usize].copy_from_slice(&self.buffers[&run].1);
                self.pages.saved(run);
            }
            Pending::Allocate(segment) => {
                let was = self.node.insert(segment, vec![0; usize::try_from(SEGMENT_PAGES).unwrap()]);
                assert!(was.is_none(), "a segment has one chunk");
                self.pages.chunk_allocated(segment);
            }
            Pending::Free(segment) => {
                self.node.remove(&segment).expect("what is freed was allocated");
                self.pages.chunk_freed(segment);
            }
        }
        self.carry_out();
        true
    }

    /// A thread touches a page, and sleeps until it may.
    fn access(&mut self, page: u64, write: Option<u64>) -> Result<u64, TestCaseError> {
        let mut is_asleep = false;
        for _ in 0..TURNS_MAX {
            let is_woken = self.woken.contains(&page);
            if !is_asleep || is_woken {
                self.woken.clear();
                match (self.mapped.get_mut(&page), write) {
                    (Some(there), None) => return Ok(there.value),
                    (Some(there), Some(value)) if !there.is_protected => {
                        return Ok(std::mem::replace(&mut there.value, value));
                    }
                    _ => {}
                }
                self.pages.fault(page, write.is_some());
                self.carry_out();
                is_asleep = true;
            } else if !self.finish_one() {
                return Err(TestCaseError::fail(format!("nobody wakes who waits for page {page}")));
            }
        }
        Err(TestCaseError::fail(format!("page {page} does not come")))
    }
}

/// Pages that a step is about, in its order.
fn pages_of(page: u64, count: u64, is_down: bool) -> Vec<u64> {
    if is_down {
        (page.saturating_sub(count - 1)..=page).rev().collect()
    } else {
        (page..(page + count).min(PAGES)).collect()
    }
}

fn run(limits: Limits, steps: &[Step], dice: u64) -> Result<(), TestCaseError> {
    let mut world = World::new(limits, dice);
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut next = 1;
    for &step in steps {
        match step {
            Step::Touch { page, count, is_down, is_write } => {
                for page in pages_of(page, count, is_down) {
                    let write = is_write.then_some(next);
                    let seen = world.access(page, write)?;
                    prop_assert_eq!(seen, model.get(&page).copied().unwrap_or(0), "page {}", page);
                    if is_write {
                        model.insert(page, next);
                        next += 1;
                    }
                    match world.roll(8) {
                        0 | 1 => drop(world.finish_one()),
                        2 => world.prepare(),
                        _ => {}
                    }
                }
            }
            Step::Clear { page, count } => {
                for page in pages_of(page, count, false) {
                    world.access(page, Some(0))?;
                    model.remove(&page);
                }
            }
            Step::Release { page, count } => {
                let count = count.min(PAGES - page);
                world.pages.release(Span { first: page, count: u32::try_from(count).unwrap() });
                world.carry_out();
                model.retain(|&it, _| it < page || it >= page + count);
            }
        }
    }
    // What is under way ends, and when all is given back the node has nothing any more.
    world.pages.release(Span { first: 0, count: u32::try_from(PAGES).unwrap() });
    world.carry_out();
    while world.finish_one() {}
    prop_assert!(world.pages.is_at_rest());
    prop_assert_eq!(world.pages.local(), (0, 0));
    prop_assert!(world.node.is_empty() && world.buffers.is_empty() && world.mapped.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_program_reads_what_it_wrote_last(
        steps in prop::collection::vec(step(), 1..60),
        dice in any::<u64>(),
        more in (0..100u32, 0..100u32),
    ) {
        let limits = Limits { pages: PAGES, mapped: MAPPED_MIN + more.0, held: HELD_MIN + more.1 };
        run(limits, &steps, dice)?;
    }
}

/// Touches pages one after another, and returns the machine's counters.
fn scan(pages: impl Iterator<Item = u64>, rounds: usize) -> portcullis_far::pages::Counters {
    let limits = Limits { pages: PAGES, mapped: 256, held: 128 };
    let mut world = World::new(limits, 1);
    let pages: Vec<_> = pages.collect();
    for &page in &pages {
        world.access(page, Some(page + 1)).expect("it is written");
        world.finish_one();
        world.prepare();
    }
    for _ in 0..rounds {
        for &page in &pages {
            assert_eq!(world.access(page, None).expect("it is read"), page + 1);
            world.finish_one();
            world.prepare();
        }
    }
    world.pages.counters()
}

#[test]
fn a_scan_faults_once_for_many_pages_in_either_direction() {
    for is_down in [false, true] {
        let order: Vec<_> = if is_down { (0..PAGES).rev().collect() } else { (0..PAGES).collect() };
        let counters = scan(order.into_iter(), 2);
        assert!(counters.faults < 3 * PAGES / 8, "{counters:?}");
        assert!(counters.prefetched_used > PAGES / 2, "{counters:?}");
    }
}

#[test]
fn pages_that_were_only_read_are_not_written_again() {
    let counters = scan(0..PAGES, 3);
    assert!(counters.saved <= PAGES + 64, "{counters:?}");
}

#[test]
fn zeros_take_no_memory_on_the_node() {
    let mut world = World::new(Limits { pages: PAGES, mapped: 64, held: 64 }, 1);
    for page in 0..PAGES {
        assert_eq!(world.access(page, None).expect("it is read"), 0);
        world.access(page, Some(0)).expect("it is written");
    }
    while world.finish_one() {}
    assert!(world.node.is_empty());
    assert_eq!(world.pages.counters().saved, 0);
}

#[test]
fn a_page_that_is_used_again_soon_comes_back_without_the_node() {
    let mut world = World::new(Limits { pages: PAGES, mapped: 64, held: 128 }, 1);
    for round in 0..50 {
        for page in (0..80).map(|page| page * 5) {
            world.access(page, Some(round + 1)).expect("it is written");
        }
    }
    let counters = world.pages.counters();
    assert!(counters.second_chances > 1000, "{counters:?}");
    assert!(counters.saved < counters.evicted / 4, "{counters:?}");
}

//! The page state machine against a model of the memory. Whatever a program does, it reads the bytes that it wrote
//! last, and a forked child reads those at the fork. No more pages are local than allowed and necessary, and no thread
//! waits for ever.

use portcullis_far::pages::{
    Access, ChildEffect, ChunkId, Effect, HELD_MIN, Limits, MAPPED_MIN, Pages, RunId, SEGMENT_PAGES,
    SnapshotId, Span, TakenOut,
};
use proptest::prelude::*;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

const PAGES: u64 = 4 * SEGMENT_PAGES;
/// Number of turns of the world after which a waiting thread counts as forgotten.
const TURNS_MAX: usize = 10_000;
/// Value in a buffer for a page that was not moved into it.
const GARBAGE: u64 = u64::MAX;

/// An action of a thread of the program.
#[derive(Clone, Copy, Debug)]
enum ThreadAction {
    /// Touch a page, and its neighbours after it.
    Touch {
        page: u64,
        count: u64,
        is_down: bool,
        is_write: bool,
    },
    /// Write zeros over pages.
    Clear {
        page: u64,
        count: u64,
    },
    /// Make the kernel drop pages. The kernel may do so some time later (`is_slow`), but before the program continues.
    Drop {
        page: u64,
        count: u64,
        is_slow: bool,
    },
    /// Pin pages, or unpin all.
    Pin {
        page: u64,
        count: u64,
    },
    Unpin,
    /// Fork. A former child ends before that. The fork may happen while an effect is carried out (`is_amid`).
    Fork {
        is_amid: bool,
    },
    /// A child reads pages.
    ReadInChild {
        page: u64,
        count: u64,
    },
    /// A child drops pages.
    DropInChild {
        page: u64,
        count: u64,
    },
}

fn action() -> impl Strategy<Value = ThreadAction> {
    // Mostly a part of the range, so that pages are used again.
    let page = prop_oneof![3 => 0..PAGES / 3, 1 => 0..PAGES];
    let count = prop_oneof![4 => 1..3u64, 2 => 1..200u64];
    let touch = (page.clone(), count.clone(), any::<bool>(), any::<bool>())
        .prop_map(|(page, count, is_down, is_write)| ThreadAction::Touch { page, count, is_down, is_write });
    prop_oneof![
        12 => touch,
        2 => (page.clone(), count.clone()).prop_map(|(page, count)| ThreadAction::Clear { page, count }),
        2 => (page.clone(), 1..400u64, any::<bool>())
            .prop_map(|(page, count, is_slow)| ThreadAction::Drop { page, count, is_slow }),
        1 => (page.clone(), 1..150u64).prop_map(|(page, count)| ThreadAction::Pin { page, count }),
        1 => Just(ThreadAction::Unpin),
        1 => any::<bool>().prop_map(|is_amid| ThreadAction::Fork { is_amid }),
        3 => (page.clone(), 1..60u64).prop_map(|(page, count)| ThreadAction::ReadInChild { page, count }),
        1 => (page, 1..60u64).prop_map(|(page, count)| ThreadAction::DropInChild { page, count }),
    ]
}

/// An operation in progress.
#[derive(Clone, Debug)]
enum Pending {
    Load(RunId, Span, ChunkId),
    Save(RunId, Span, ChunkId),
    Allocate(ChunkId),
}

/// A forked child.
struct Child {
    id: SnapshotId,
    mapped: HashMap<u64, u64>,
    /// The memory at the fork, without the pages that the child has dropped.
    model: HashMap<u64, u64>,
    woken: bool,
}

/// A page in the kernel: its bytes as one number, and whether writes fault.
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
    /// Contents of chunks. A new chunk is full of zeros.
    node: HashMap<ChunkId, Vec<u64>>,
    pinned: HashSet<u64>,
    /// Pages that stayed at their last attempt, because they are pinned or the program changed its mappings.
    refused: HashSet<u64>,
    /// Pages that the kernel has to drop and has not dropped yet.
    dropping: Vec<u64>,
    child: Option<Child>,
    /// The program changes its mappings and shares pages now and then.
    is_restless: bool,
    /// The memory as the program must see it.
    model: HashMap<u64, u64>,
    /// The program forks while the next effect that maps pages is carried out.
    is_fork_due: bool,
    now: Duration,
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
            pinned: HashSet::new(),
            refused: HashSet::new(),
            dropping: Vec::new(),
            child: None,
            is_restless: false,
            model: HashMap::new(),
            is_fork_due: false,
            now: Duration::ZERO,
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
            // A page that stays may keep a window of other pages mapped until the next ones are taken out. A page that
            // is dropped and written again takes no more room than before.
            let stay = self.refused.iter().filter(|page| self.mapped.contains_key(page)).count();
            let most = self.limits.mapped as usize + stay + self.dropping.len() + 32;
            assert!(self.mapped.len() <= most, "too many pages are mapped: {} of {most}", self.mapped.len());
            let held: u32 = self
                .buffers
                .values()
                .map(|(_, values)| u32::try_from(values.len()).unwrap().next_power_of_two())
                .sum();
            assert!(held <= self.limits.held, "the buffers take too much");
        }
    }

    fn effect(&mut self, effect: Effect) {
        let takes_events = matches!(effect, Effect::Map { .. } | Effect::Zero(_) | Effect::Allow(_));
        if takes_events && std::mem::take(&mut self.is_fork_due) {
            self.fork_amid(Some(effect));
        }
        match effect {
            Effect::Load(run, span, chunk) => self.pending.push(Pending::Load(run, span, chunk)),
            Effect::Save(run, span, chunk) => self.pending.push(Pending::Save(run, span, chunk)),
            Effect::AllocateChunk(id) => self.pending.push(Pending::Allocate(id)),
            Effect::FreeChunk(id) => drop(self.node.remove(&id).expect("what is freed was allocated")),
            Effect::TakeOut(run, span) => self.take_out(run, span),
            Effect::Look(span) => {
                let there: HashSet<u64> = self.mapped.keys().copied().collect();
                self.pages.looked(span, |page| there.contains(&page));
            }
            Effect::Refill(page) => {
                if let Entry::Vacant(place) = self.mapped.entry(page) {
                    place.insert(Mapped { value: 0, is_protected: false });
                    self.pages.refilled(page);
                }
                self.woken.push(page);
            }
            Effect::Child(id, effect) => self.effect_in_child(id, effect),
            Effect::Map { run, first, span, is_writable } => {
                let (at, values) = &self.buffers[&run];
                assert_eq!(*at, first);
                for page in span.first..span.end() {
                    let value = values[usize::try_from(page - first).unwrap()];
                    assert!(
                        !self.pages.is_dropped(page),
                        "nothing is dropped between a decision and its effect here"
                    );
                    let was = self.mapped.insert(page, Mapped { value, is_protected: !is_writable });
                    assert!(was.is_none(), "page {page} is mapped twice");
                    self.refused.remove(&page);
                    self.woken.push(page);
                }
            }
            Effect::Zero(span) => {
                for page in span.first..span.end() {
                    let was = self.mapped.insert(page, Mapped { value: 0, is_protected: false });
                    assert!(was.is_none(), "page {page} is mapped twice");
                    self.refused.remove(&page);
                    self.woken.push(page);
                }
            }
            Effect::Allow(span) => {
                for page in span.first..span.end() {
                    self.mapped.get_mut(&page).expect("it is mapped").is_protected = false;
                    self.woken.push(page);
                }
            }
            Effect::Discard(run) => {
                self.buffers.remove(&run).expect("it has a buffer");
            }
        }
    }

    fn take_out(&mut self, run: RunId, span: Span) {
        let mut taken = TakenOut::default();
        let mut values = Vec::new();
        // The program may change its mappings: the kernel moves no pages from there on.
        let until = if self.is_restless && self.roll(8) == 0 {
            self.roll(span.count as usize)
        } else {
            span.count as usize
        };
        taken.is_changing = until < span.count as usize;
        for (bit, page) in (span.first..span.end()).enumerate() {
            if bit >= until {
                values.push(GARBAGE);
                self.refused.insert(page);
                continue;
            }
            let here = self.mapped.get(&page).copied();
            let stays = here.is_some() && self.pinned.contains(&page);
            values.push(here.filter(|_| !stays).map_or(GARBAGE, |here| here.value));
            // The protection of a page that is pinned, or shared with a child, is lifted before the page is tried once more.
            if let Some(here) = self.mapped.get_mut(&page)
                && (stays || (self.is_restless && page % 3 == 0))
            {
                here.is_protected = false;
                taken.unprotected |= 1 << bit;
            }
            match here {
                None => taken.missing |= 1 << bit,
                Some(_) if stays => {
                    self.refused.insert(page);
                }
                Some(here) => {
                    assert!(!self.dropping.contains(&page), "bytes that are dropped are taken out");
                    taken.moved |= 1 << bit;
                    self.refused.remove(&page);
                    taken.zeros |= u64::from(here.value == 0) << bit;
                    self.mapped.remove(&page);
                }
            }
        }
        self.buffers.insert(run, (span.first, values));
        self.pages.taken_out(run, taken, self.now);
    }

    fn effect_in_child(&mut self, id: SnapshotId, effect: ChildEffect) {
        let Some(child) = self.child.as_mut().filter(|child| child.id == id) else { return };
        child.woken = true;
        match effect {
            ChildEffect::Map { run, first, span } => {
                for page in span.first..span.end() {
                    let value = self.buffers[&run].1[usize::try_from(page - first).unwrap()];
                    child.mapped.entry(page).or_insert(value);
                }
            }
            ChildEffect::Zero(page) => drop(child.mapped.entry(page).or_insert(0)),
            ChildEffect::Allow(_) => {}
        }
    }

    /// The kernel drops the pages that it has to drop.
    fn finish_dropping(&mut self) {
        for page in std::mem::take(&mut self.dropping) {
            self.mapped.remove(&page);
        }
    }

    fn fork(&mut self) {
        self.fork_amid(None);
        self.carry_out();
    }

    /// The program forks. `under_way` is an effect that is not carried out yet.
    fn fork_amid(&mut self, under_way: Option<Effect>) {
        if let Some(child) = self.child.take() {
            self.pages.child_ended(child.id);
        }
        while !self.pages.is_settled() {
            assert!(self.finish_one_quietly(), "what is on its way comes");
        }
        let id = self.pages.fork(None, under_way);
        let mapped = self.mapped.iter().map(|(&page, here)| (page, here.value)).collect();
        self.child = Some(Child { id, mapped, model: self.model.clone(), woken: false });
    }

    /// The child reads a page, and sleeps until the page is readable.
    fn read_in_child(&mut self, page: u64) -> Result<(), TestCaseError> {
        let mut is_asleep = false;
        for _ in 0..TURNS_MAX {
            let Some(child) = &mut self.child else { return Ok(()) };
            if let Some(&value) = child.mapped.get(&page) {
                prop_assert_eq!(
                    value,
                    child.model.get(&page).copied().unwrap_or(0),
                    "page {} of a child",
                    page
                );
                return Ok(());
            }
            if !is_asleep || std::mem::take(&mut child.woken) {
                let id = child.id;
                self.pages.child_fault(id, page, Access::Read);
                self.carry_out();
                is_asleep = true;
            } else if !self.finish_one() {
                return Err(TestCaseError::fail(format!(
                    "nothing wakes the child that waits for page {page}"
                )));
            }
        }
        Err(TestCaseError::fail(format!("page {page} does not come")))
    }

    /// Unpins all pages. Pages that stayed are tried again, and then no more pages are mapped than the limit allows.
    fn unpin(&mut self) -> Result<(), TestCaseError> {
        self.pinned.clear();
        for _ in 0..1000 {
            self.prepare();
            self.finish_one();
        }
        prop_assert!(self.mapped.len() <= self.limits.mapped as usize);
        self.refused.clear();
        Ok(())
    }

    /// Prepares while the monitor has no other work, and lets time pass.
    fn prepare(&mut self) {
        self.now += Duration::from_millis(7);
        while self.pages.prepare(self.now) {
            self.carry_out();
        }
    }

    /// Ends one of the operations in progress.
    fn finish_one(&mut self) -> bool {
        let is_one = self.finish_one_quietly();
        self.carry_out();
        is_one
    }

    fn finish_one_quietly(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let at = self.roll(self.pending.len());
        let from = |span: Span| usize::try_from(span.first % SEGMENT_PAGES).unwrap();
        match self.pending.swap_remove(at) {
            Pending::Load(run, span, chunk) => {
                let values = self.node[&chunk][from(span)..from(span) + span.count as usize].to_vec();
                self.buffers.insert(run, (span.first, values));
                self.pages.loaded(run);
            }
            Pending::Save(run, span, chunk) => {
                let chunk = self.node.get_mut(&chunk).expect("the chunk is there");
                chunk[from(span)..from(span) + span.count as usize].copy_from_slice(&self.buffers[&run].1);
                self.pages.saved(run);
            }
            Pending::Allocate(id) => {
                self.node.insert(id, vec![0; usize::try_from(SEGMENT_PAGES).unwrap()]);
                self.pages.chunk_allocated(id);
            }
        }
        true
    }

    /// A thread accesses a page, and sleeps until it can.
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
                let access = match (self.mapped.get(&page), write) {
                    (Some(_), _) => Access::Protected,
                    (None, Some(_)) => Access::Write,
                    (None, None) => Access::Read,
                };
                self.pages.fault(page, access);
                self.carry_out();
                is_asleep = true;
            } else if !self.finish_one() {
                return Err(TestCaseError::fail(format!(
                    "nothing wakes the thread that waits for page {page}"
                )));
            }
        }
        Err(TestCaseError::fail(format!("page {page} does not come")))
    }
}

/// The pages of an action, in its order.
fn pages_of(page: u64, count: u64, is_down: bool) -> Vec<u64> {
    if is_down {
        (page.saturating_sub(count - 1)..=page).rev().collect()
    } else {
        (page..(page + count).min(PAGES)).collect()
    }
}

fn run(limits: Limits, actions: &[ThreadAction], dice: u64) -> Result<(), TestCaseError> {
    let mut world = World { is_restless: true, ..World::new(limits, dice) };
    let mut next = 1;
    for &action in actions {
        match action {
            ThreadAction::Touch { page, count, is_down, is_write } => {
                for page in pages_of(page, count, is_down) {
                    let write = is_write.then_some(next);
                    let seen = world.access(page, write)?;
                    prop_assert_eq!(seen, world.model.get(&page).copied().unwrap_or(0), "page {}", page);
                    if is_write {
                        world.model.insert(page, next);
                        next += 1;
                    }
                    match world.roll(8) {
                        0 | 1 => drop(world.finish_one()),
                        2 => world.prepare(),
                        _ => {}
                    }
                }
            }
            ThreadAction::Clear { page, count } => {
                for page in pages_of(page, count, false) {
                    world.access(page, Some(0))?;
                    world.model.remove(&page);
                }
            }
            ThreadAction::Drop { page, count, is_slow } => {
                // The model does not define a child's bytes of pages that are dropped at the time of the fork.
                world.is_fork_due = false;
                let count = count.min(PAGES - page);
                let span = Span { first: page, count: u32::try_from(count).unwrap() };
                world.pages.removed(span);
                world.dropping = (page..page + count).collect();
                if !is_slow {
                    world.finish_dropping();
                }
                world.carry_out();
                world.prepare();
                world.finish_one();
                world.finish_dropping();
                world.model.retain(|&it, _| it < page || it >= page + count);
            }
            ThreadAction::Pin { page, count } => world.pinned.extend(page..(page + count).min(PAGES)),
            ThreadAction::Unpin => world.unpin()?,
            ThreadAction::Fork { is_amid: true } => world.is_fork_due = true,
            ThreadAction::Fork { is_amid: false } => world.fork(),
            ThreadAction::ReadInChild { page, count } => {
                for page in pages_of(page, count, false) {
                    world.read_in_child(page)?;
                }
            }
            ThreadAction::DropInChild { page, count } => {
                let count = count.min(PAGES - page);
                if let Some(child) = &mut world.child {
                    let span = Span { first: page, count: u32::try_from(count).unwrap() };
                    world.pages.child_removed(child.id, span);
                    child.mapped.retain(|&it, _| it < page || it >= page + count);
                    child.model.retain(|&it, _| it < page || it >= page + count);
                }
                world.carry_out();
            }
        }
    }
    end(world)
}

/// Ends all operations in progress, releases all pages, and checks that the node holds no chunks any more.
fn end(mut world: World) -> Result<(), TestCaseError> {
    world.is_fork_due = false;
    if let Some(child) = world.child.take() {
        world.pages.child_ended(child.id);
    }
    world.pages.unmapped(Span { first: 0, count: u32::try_from(PAGES).unwrap() });
    world.mapped.clear();
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
        actions in prop::collection::vec(action(), 1..60),
        dice in any::<u64>(),
        more in (0..100u32, 0..100u32),
    ) {
        let limits = Limits { pages: PAGES, mapped: MAPPED_MIN + more.0, held: HELD_MIN + more.1 };
        run(limits, &actions, dice)?;
    }
}

/// Touches pages one after another, and returns the machine's counters.
fn scan(pages: impl Iterator<Item = u64>, rounds: usize) -> portcullis_far::pages::Counters {
    let limits = Limits { pages: PAGES, mapped: 256, held: 128 };
    scan_in(World::new(limits, 1), pages, rounds)
}

fn scan_in(
    mut world: World,
    pages: impl Iterator<Item = u64>,
    rounds: usize,
) -> portcullis_far::pages::Counters {
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
fn pages_that_are_only_read_keep_their_bytes_when_some_of_them_stay_in_the_program() {
    for dice in 0..20 {
        let limits = Limits { pages: PAGES, mapped: 256, held: 128 };
        let world = World { is_restless: true, ..World::new(limits, dice) };
        scan_in(world, 0..PAGES, 6);
    }
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

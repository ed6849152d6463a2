//! Processes that die at each step, and others that continue in between.

use super::*;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const PAGES: u32 = 8;
const FIRST: Owner = Owner(1);
const SECOND: Owner = Owner(2);

/// The words of a heap of few pages, and the number of steps to the next interruption.
#[derive(Default)]
struct Memory {
    words: RefCell<Vec<u64>>,
    /// Number of steps until `at_step` is called.
    left: Cell<Option<u32>>,
}

/// A process's access to the words.
struct Words<'a> {
    memory: &'a Memory,
    /// Called between two steps of this process.
    at_step: Box<dyn Fn() + 'a>,
}

/// The panic by which a process dies.
struct Death;

impl Memory {
    fn new() -> Self {
        Self { words: RefCell::new(vec![Page::Free.word(); PAGES as usize]), left: Cell::new(None) }
    }

    /// Returns a process that is never interrupted.
    fn process(&self, owner: Owner) -> Runs<Words<'_>> {
        Runs::new(Words { memory: self, at_step: Box::new(|| {}) }, owner)
    }

    /// Checks that each page that is not free belongs to a run or is a slab.
    fn assert_sound(&self) {
        let words = self.words.borrow();
        let mut page = 0;
        while page < PAGES as usize {
            let read = Page::read(words[page]).expect("a page");
            page += match read {
                Page::Run { length, .. } => {
                    let bodies = &words[page + 1..page + length as usize];
                    assert!(bodies.iter().all(|it| *it == Page::Body.word()), "{words:x?}");
                    length as usize
                }
                Page::Free | Page::Slab { .. } => 1,
                other => panic!("{other:?} is left: {words:x?}"),
            };
        }
    }
}

impl PageWords for Words<'_> {
    fn count(&self) -> u32 {
        PAGES
    }

    fn load(&self, page: u32) -> Option<Page> {
        self.step();
        Page::read(self.memory.words.borrow()[page as usize])
    }

    fn change(&self, page: u32, before: Page, after: Page) -> bool {
        self.step();
        let mut words = self.memory.words.borrow_mut();
        let is_before = words[page as usize] == before.word();
        if is_before {
            words[page as usize] = after.word();
        }
        is_before
    }

    fn store(&self, page: u32, is: Page) {
        self.step();
        self.memory.words.borrow_mut()[page as usize] = is.word();
    }
}

impl Words<'_> {
    fn step(&self) {
        match self.memory.left.get() {
            Some(0) => {
                self.memory.left.set(None);
                (self.at_step)();
            }
            Some(left) => self.memory.left.set(Some(left - 1)),
            None => {}
        }
    }
}

/// An operation of a process.
#[derive(Clone, Copy, Debug)]
enum Act {
    Take(u32),
    TakeSlab,
    /// Frees the run that was taken before.
    Free,
}

/// Makes the first process run `act`, and calls `at_step` once before its step `step`. Returns whether that step was
/// reached.
fn interrupted(memory: &Memory, act: Act, step: u32, at_step: &dyn Fn()) -> (bool, Option<u32>) {
    // The run that is freed lies between others.
    let before = matches!(act, Act::Free).then(|| memory.process(FIRST).take(3, 2).expect("room"));
    let runs = Runs::new(Words { memory, at_step: Box::new(at_step) }, FIRST);
    memory.left.set(Some(step));
    let taken = catch_unwind(AssertUnwindSafe(|| match act {
        Act::Take(length) => runs.take(length, 1),
        Act::TakeSlab => runs.take_slab(3, 1, |_| {}),
        Act::Free => {
            runs.free(before.expect("a run"));
            None
        }
    }));
    let came = memory.left.take().is_none();
    match taken {
        Ok(taken) => (came, taken),
        Err(reason) if reason.is::<Death>() => (came, None),
        Err(reason) => resume_unwind(reason),
    }
}

const ACTS: [Act; 5] = [Act::Take(1), Act::Take(2), Act::Take(4), Act::TakeSlab, Act::Free];

fn each_step(act: Act, mut one: impl FnMut(u32) -> bool) {
    let mut step = 0;
    while one(step) {
        step += 1;
    }
    assert!(step > 0, "{act:?} takes steps");
}

#[test]
fn whoever_dies_at_any_step_leaves_nothing_behind() {
    for act in ACTS {
        each_step(act, |step| {
            let memory = Memory::new();
            let (died, _) = interrupted(&memory, act, step, &|| resume_unwind(Box::new(Death)));
            let heir = memory.process(SECOND);
            for (page, class) in heir.reclaim(FIRST) {
                assert!(heir.free_slab(page, class));
            }
            memory.assert_sound();
            assert_eq!(heir.free_pages(), PAGES, "{act:?}, dead at step {step}");
            died
        });
    }
}

#[test]
fn others_go_on_around_whoever_dies() {
    for act in ACTS {
        each_step(act, |step| {
            let memory = Memory::new();
            let other = memory.process(SECOND);
            let (died, _) = interrupted(&memory, act, step, &|| resume_unwind(Box::new(Death)));
            // The other process continues before it knows of the death, and after.
            let mine: Vec<u32> = std::iter::from_fn(|| other.take(2, 0)).collect();
            other.reclaim(FIRST).into_iter().for_each(|(page, class)| assert!(other.free_slab(page, class)));
            memory.assert_sound();
            assert_eq!(other.free_pages(), PAGES - 2 * u32::try_from(mine.len()).unwrap());
            mine.into_iter().for_each(|run| assert_eq!(other.free(run), Some(2)));
            assert_eq!(other.free_pages(), PAGES, "{act:?}, dead at step {step}");
            died
        });
    }
}

#[test]
fn two_who_take_and_free_at_once_never_have_the_same_page() {
    for act in ACTS {
        for length in 1..=PAGES {
            each_step(act, |step| {
                let memory = Memory::new();
                let got = Cell::new(None);
                let (came, taken) = interrupted(&memory, act, step, &|| {
                    got.set(memory.process(SECOND).take(length, 0));
                });
                memory.assert_sound();
                let freed = memory.process(FIRST);
                for (run, long) in taken.into_iter().zip([match act {
                    Act::Take(length) => length,
                    _ => 1,
                }]) {
                    if let Some(other) = got.get() {
                        let apart = run + long <= other || other + length <= run;
                        assert!(apart, "{act:?}: {run}+{long} and {other}+{length} at step {step}");
                    }
                    assert!(matches!(act, Act::TakeSlab) || freed.free(run) == Some(long));
                }
                if let Some(other) = got.get() {
                    assert_eq!(memory.process(SECOND).free(other), Some(length));
                }
                freed
                    .reclaim(FIRST)
                    .into_iter()
                    .for_each(|(page, class)| assert!(freed.free_slab(page, class)));
                assert_eq!(freed.free_pages(), PAGES);
                came
            });
        }
    }
}

#[test]
fn who_is_reclaimed_while_another_takes_costs_nobody_a_page() {
    for act in ACTS {
        for dead_act in ACTS {
            each_step(dead_act, |death| {
                let mut died = false;
                each_step(act, |step| {
                    let memory = Memory::new();
                    let die = || resume_unwind(Box::new(Death));
                    died = interrupted(&memory, dead_act, death, &die).0;
                    // A third process reclaims the pages while the second one is in the middle of an operation.
                    let second =
                        Runs::new(Words { memory: &memory, at_step: Box::new(|| clear_up(&memory)) }, SECOND);
                    memory.left.set(Some(step));
                    let taken = match act {
                        Act::Take(length) => second.take(length, 0),
                        Act::TakeSlab => second.take_slab(1, 0, |_| {}),
                        Act::Free => second.take(2, 0).inspect(|&run| assert_eq!(second.free(run), Some(2))),
                    };
                    let came = memory.left.take().is_none();
                    clear_up(&memory);
                    memory.assert_sound();
                    let kept = if matches!(act, Act::Free) { None } else { taken };
                    let length = if let Act::Take(length) = act { length } else { 1 };
                    let free = memory.process(SECOND).free_pages();
                    assert_eq!(
                        free,
                        PAGES - kept.map_or(0, |_| length),
                        "{dead_act:?} {act:?} {death} {step}"
                    );
                    came
                });
                died
            });
        }
    }
}

/// Makes a third process reclaim the pages of the first one.
fn clear_up(memory: &Memory) {
    let third = memory.process(Owner(3));
    third.reclaim(FIRST).into_iter().for_each(|(page, class)| assert!(third.free_slab(page, class)));
}

proptest! {
    /// Words that a hostile process has written cause no panic and no endless loop, and no page outside is accessed.
    #[test]
    fn words_of_any_value_do_no_harm(words in prop::collection::vec(any::<u64>(), PAGES as usize), kinds: u64) {
        let memory = Memory::new();
        // Most arbitrary words encode no state, so some get a kind.
        let words = words.iter().enumerate().map(|(at, word)| {
            if kinds >> at & 1 == 1 { (word & !0xffff) | ((word >> 8) % 6) } else { *word }
        });
        *memory.words.borrow_mut() = words.collect();
        let runs = memory.process(FIRST);
        for length in 1..=PAGES {
            if let Some(run) = runs.take(length, 3) {
                prop_assert!(run + length <= PAGES);
            }
        }
        for page in 0..PAGES + 2 {
            runs.free(page);
        }
        runs.reclaim(SECOND);
    }
}

/// Words as a hostile peer writes them in the worst case: each page is a run of a dead process, and when a run is being
/// freed, all pages behind it belong to it.
#[derive(Default)]
struct Unending {
    is_freed: Cell<bool>,
    loads: Cell<u32>,
}

impl PageWords for Unending {
    fn count(&self) -> u32 {
        1000
    }

    fn load(&self, _: u32) -> Option<Page> {
        self.loads.set(self.loads.get() + 1);
        let run = Page::Run { of: Owner(2), length: u32::MAX };
        Some(if self.is_freed.get() { Page::Body } else { run })
    }

    fn change(&self, _: u32, _: Page, _: Page) -> bool {
        self.is_freed.set(true);
        true
    }

    fn store(&self, _: u32, _: Page) {
        self.is_freed.set(false);
    }
}

#[test]
fn taking_back_looks_at_each_page_once_whatever_is_written_meanwhile() {
    let runs = Runs::new(Unending::default(), Owner(1));
    assert!(runs.reclaim(Owner(2)).is_empty());
    assert!(runs.words().loads.get() <= 2 * runs.words().count(), "{}", runs.words().loads.get());
}

//! The methods of simulated servers. They record the content that they have read, and their answers follow from it.

use super::judge::{Asked, Ending};
use crate::clock::Nanos;
use portcullis_memory::Memory;
use portcullis_rpc::channel::ends::{Clock, Methods};
use portcullis_rpc::channel::{CallError, Copied, Failure, Reply, Trusted};
use portcullis_rpc::{Boxed, Heap, List, PointerError, Vector};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Answers with a word computed from the numbers that it has read.
pub(super) const SUM: u32 = 1;
/// Answers with the numbers that it has read, each changed.
pub(super) const BACK: u32 = 2;
/// Reads the numbers in place, in the sender's scope.
pub(super) const TRUSTED: u32 = 3;
/// Fails.
pub(super) const FAIL: u32 = 4;
/// Panics after it has allocated a scope for its result.
pub(super) const PANIC: u32 = 5;
/// Answers with a word computed from the numbers of a list.
pub(super) const LIST: u32 = 6;
/// A method that no server has.
pub(super) const NONE: u32 = 7;
/// The most bytes of arguments.
pub(super) const ARGUMENTS_MAX: u64 = 5 << 12;

/// Count and hash of some numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Content {
    pub count: u64,
    pub hash: u64,
}

impl Content {
    pub fn of<'a>(numbers: impl IntoIterator<Item = &'a u64>) -> Self {
        numbers.into_iter().fold(Self::default(), |Self { count, hash }, number| Self {
            count: count + 1,
            hash: hash.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number,
        })
    }
}

/// Returns the word that the method of a call answers.
fn word(id: u64, content: Content) -> u64 {
    (id ^ content.hash).wrapping_mul(0xd1b5_4a32_d192_ed03)
}

fn reason(id: u64) -> (u32, String) {
    (u32::try_from(id % 1000).unwrap_or(0), format!("call {id} was to fail"))
}

fn changed(numbers: &[u64], id: u64) -> Vec<u64> {
    numbers.iter().map(|number| number ^ id).collect()
}

/// Whether a call that was not late, cancelled or given up can have ended in this way, if its method ran this many
/// times.
pub(super) fn is_right(id: u64, asked: &Asked, ending: &Ending) -> bool {
    let Asked { method, content, bytes, runs, .. } = asked;
    let has_run = *runs == 1;
    match (*method, ending) {
        (SUM | TRUSTED | LIST, Ending::Done(said, None)) => has_run && *said == word(id, *content),
        (BACK, Ending::Done(said, Some(numbers))) => {
            let sent = changed(numbers, id);
            has_run && *said == word(id, *content) && Content::of(&sent) == *content
        }
        (FAIL, Ending::Error(CallError::Failed { number, text })) => {
            let (wanted, why) = reason(id);
            // Without room for the text, the answer contains the number alone.
            has_run && *number == wanted && (*text == why || text.is_empty())
        }
        (PANIC, Ending::Error(CallError::Panicked)) => has_run,
        (BACK | PANIC, Ending::Error(CallError::NoRoom(_))) => has_run,
        (NONE, Ending::Error(CallError::NoSuchMethod(NONE))) => !has_run,
        (SUM | BACK | LIST, Ending::Error(CallError::ArgumentsTooLong)) => !has_run && *bytes > ARGUMENTS_MAX,
        _ => false,
    }
}

/// Record that a method has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub id: u64,
    pub method: u32,
    pub content: Content,
    pub at: Nanos,
    /// Whether what it read stayed the same while it ran.
    pub is_steady: bool,
}

/// A write by another process while a server executes a call.
#[derive(Clone, Debug)]
pub(super) struct Meanwhile {
    heap: Heap,
    offset: u64,
    bytes: u64,
    with: u64,
}

impl Meanwhile {
    /// Returns a write to this many bytes of a heap.
    pub fn writing(heap: &Heap, address: u64, bytes: u64, with: u64) -> Option<Self> {
        let offset = heap.place().offset(address, bytes)?;
        Some(Self { heap: heap.clone(), offset, bytes, with })
    }

    fn happen(self) {
        let Self { heap, offset, bytes, with } = self;
        let numbers: Vec<u8> =
            (0..bytes / 8).flat_map(|at| with.wrapping_mul(at + 1).to_le_bytes()).collect();
        heap.memory().write(offset, &numbers);
    }
}

/// The environment in which a server executes a call. All servers and their methods share it.
#[derive(Debug, Default)]
pub(super) struct Scene {
    time: AtomicU64,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    ran: Vec<Ran>,
    /// The write that happens while the method reads.
    meanwhile: Option<Meanwhile>,
    /// The end of a standstill of the server, which follows its next look at the clock, and the write that happens
    /// meanwhile.
    standstill: Option<(Nanos, Option<Meanwhile>)>,
}

impl Scene {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_time(&self, now: Nanos) {
        self.time.store(now, Ordering::Relaxed);
    }

    pub fn time(&self) -> Nanos {
        self.time.load(Ordering::Relaxed)
    }

    pub fn set_meanwhile(&self, meanwhile: Option<Meanwhile>) {
        self.parts().meanwhile = meanwhile;
    }

    pub fn stand_still(&self, until: Nanos, meanwhile: Option<Meanwhile>) {
        self.parts().standstill = Some((until, meanwhile));
    }

    /// Returns the time. If a standstill is set, the server stands still after that.
    pub fn look(&self) -> Nanos {
        let now = self.time();
        let standstill = self.parts().standstill.take();
        if let Some((until, meanwhile)) = standstill {
            meanwhile.into_iter().for_each(Meanwhile::happen);
            self.set_time(now.max(until));
        }
        now
    }

    /// Returns what methods have recorded since the last call. Cancels the pending write and the pending standstill.
    pub fn take_ran(&self) -> Vec<Ran> {
        let mut parts = self.parts();
        (parts.meanwhile, parts.standstill) = (None, None);
        std::mem::take(&mut parts.ran)
    }

    fn note(
        &self,
        method: u32,
        id: u64,
        mut read: impl FnMut() -> Result<Content, PointerError>,
    ) -> Result<Content, PointerError> {
        let at = self.time();
        let before = read();
        let meanwhile = self.parts().meanwhile.take();
        meanwhile.into_iter().for_each(Meanwhile::happen);
        // Each look takes steps of the view, so the second look can have another error: that no steps are left.
        let is_steady = read().ok() == before.ok();
        let content = before.unwrap_or_default();
        self.parts().ran.push(Ran { id, method, content, at, is_steady });
        before
    }
}

/// Returns the clock of a server.
pub(super) fn clock(scene: &Scene) -> impl Fn() -> u64 + Sync + '_ {
    move || scene.look()
}

const _: fn(&Scene) = |scene| {
    let clock = clock(scene);
    let _: Clock<'_> = &clock;
};

fn numbers(of: &Copied<'_, Vector<u64>>) -> Result<Content, PointerError> {
    Ok(Content::of(of.get()?.get(of.view())?))
}

/// Returns the methods of a server.
pub(super) fn methods(scene: &Arc<Scene>) -> Methods {
    let [sum, back, trusted, fail, panic, list] = std::array::from_fn(|_| Arc::clone(scene));
    Methods::default()
        .copied(SUM, ARGUMENTS_MAX, move |them: Copied<'_, Vector<u64>>, reply| {
            let content = sum.note(SUM, them.word(), || numbers(&them))?;
            reply.set_word(word(them.word(), content));
            Ok(())
        })
        .copied(BACK, ARGUMENTS_MAX, move |them: Copied<'_, Vector<u64>>, reply| {
            let id = them.word();
            let content = back.note(BACK, id, || numbers(&them))?;
            let values = changed(them.get()?.get(them.view())?, id);
            let scope = reply.scope(values.len() as u64 * 8 + 64)?;
            let result = Vector::new(scope, &values)?;
            let root = Boxed::new(scope, result)?;
            reply.set_root(root);
            reply.set_word(word(id, content));
            Ok(())
        })
        .trusted(TRUSTED, move |them: Trusted<'_, Vector<u64>>, reply| {
            let read = || Ok(Content::of(&them.read()?.read(them.heap())?));
            let content = trusted.note(TRUSTED, them.word(), read)?;
            reply.set_word(word(them.word(), content));
            Ok(())
        })
        .copied(FAIL, ARGUMENTS_MAX, move |none: Copied<'_, u64>, _| {
            let _ = fail.note(FAIL, none.word(), || Ok(Content::default()));
            let (number, text) = reason(none.word());
            Err(Failure::new(number, text))
        })
        .copied(PANIC, ARGUMENTS_MAX, move |none: Copied<'_, u64>, reply| {
            let _ = panic.note(PANIC, none.word(), || Ok(Content::default()));
            reply.scope(8000)?;
            // Unlike `panic!`, this prints no message.
            resume_unwind(Box::new("a method's panic"))
        })
        .copied(LIST, ARGUMENTS_MAX, move |them: Copied<'_, List<u64>>, reply: &mut Reply<'_>| {
            let read = || {
                let list = them.get()?;
                let numbers: Result<Vec<u64>, _> = list.iter(them.view()).map(|it| it.copied()).collect();
                Ok(Content::of(&numbers?))
            };
            let content = list.note(LIST, them.word(), read)?;
            reply.set_word(word(them.word(), content));
            Ok(())
        })
}

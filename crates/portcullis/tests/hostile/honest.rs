//! An honest client under load: a thread that checks every byte that it reads.

use portcullis::{Allocate, Lifetime, Permission, Session};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Bytes of an honest client's object: more than a page, less than the budget of a visit.
const OBJECT_BYTES: usize = 20_000;
/// Operations on one object before the client returns it and requests another.
const OPERATIONS_PER_OBJECT: u32 = 40;

/// A client that keeps the rules, on its own thread.
pub struct Honest {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    operations: AtomicU64,
    stop: AtomicBool,
}

impl Honest {
    /// Starts a client that works through `session` until [`Honest::stop`].
    pub fn start(session: Session, seed: u64) -> Self {
        let state = Arc::new(State::default());
        let its = Arc::clone(&state);
        let work = move || {
            let mut worker = Worker { session, random: StdRng::seed_from_u64(seed), state: its };
            while !worker.state.stop.load(Ordering::Relaxed) {
                worker.use_one_object();
            }
        };
        let thread = std::thread::Builder::new().name("honest".to_owned()).spawn(work).expect("a thread");
        Self { state, thread: Some(thread) }
    }

    /// Returns the number of operations that have succeeded so far.
    pub fn operations(&self) -> u64 {
        self.state.operations.load(Ordering::Relaxed)
    }

    /// Returns whether the client has stopped at an error. [`Honest::stop`] reports the error.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the client. Panics if the client met an error.
    pub fn stop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    session: Session,
    random: StdRng,
    state: Arc<State>,
}

impl Worker {
    fn use_one_object(&mut self) {
        let ask = Allocate::bytes(OBJECT_BYTES as u64).lifetime(Lifetime::seconds(5));
        let object = self.session.allocate(ask).expect("an honest client gets memory");
        let mut model = vec![0; OBJECT_BYTES];
        self.session.read(&object, 0, &mut model).expect("its own bytes");
        for _ in 0..OPERATIONS_PER_OBJECT {
            match self.random.random_range(0..8) {
                0..3 => self.write(&object, &mut model),
                3..6 => self.read(&object, &model),
                6 => self.add(&object, &mut model),
                _ => self.swap(&object, &mut model),
            }
            self.state.operations.fetch_add(1, Ordering::Relaxed);
        }
        self.session.extend(&object, Lifetime::seconds(6)).expect("it has not ended");
        self.session.read(&object, 0, &mut model.clone()).expect("extended");
        self.session.revoke(object).expect("it has not ended");
    }

    fn span(&mut self) -> std::ops::Range<usize> {
        let from = self.random.random_range(0..OBJECT_BYTES);
        let length = self.random.random_range(1..=(OBJECT_BYTES - from).min(6000));
        from..from + length
    }

    fn write(&mut self, object: &Permission, model: &mut [u8]) {
        let span = self.span();
        self.random.fill_bytes(&mut model[span.clone()]);
        self.session.write(object, span.start as u64, &model[span]).expect("an honest write");
    }

    fn read(&mut self, object: &Permission, model: &[u8]) {
        let span = self.span();
        let mut got = vec![0; span.len()];
        self.session.read(object, span.start as u64, &mut got).expect("an honest read");
        assert!(got == model[span.clone()], "wrong bytes in {span:?}");
    }

    fn word(&mut self, model: &[u8]) -> (usize, u64) {
        let at = 8 * self.random.random_range(0..OBJECT_BYTES / 8);
        (at, u64::from_le_bytes(model[at..at + 8].try_into().expect("eight bytes")))
    }

    fn add(&mut self, object: &Permission, model: &mut [u8]) {
        let ((at, old), add) = (self.word(model), self.random.random());
        let before = self.session.fetch_and_add(object, at as u64, add).expect("an honest addition");
        assert_eq!(before, old, "the word at {at}");
        model[at..at + 8].copy_from_slice(&old.wrapping_add(add).to_le_bytes());
    }

    fn swap(&mut self, object: &Permission, model: &mut [u8]) {
        let ((at, old), new) = (self.word(model), self.random.random());
        let compare = if self.random.random() { old } else { !old };
        let before = self.session.compare_and_swap(object, at as u64, compare, new).expect("an honest swap");
        assert_eq!(before, old, "the word at {at}");
        if compare == old {
            model[at..at + 8].copy_from_slice(&u64::to_le_bytes(new));
        }
    }
}

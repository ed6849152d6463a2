//! A client's presence: a thread that keeps its permissions alive, and continues the writes that have begun, also while
//! the program does something else.
//!
//! Over UDP a write is an exchange of packets, in which the client has to answer. A program that begins a call and then
//! does not use the connection still expects the call to be carried out.

use super::client::ClientMailbox;
use crate::ScopeRef;
use crate::channel::carrier::ClientCarrier;
use crate::channel::ends::CallError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long writes are left to the program's own thread, which mostly waits for an answer.
const HELPS_AFTER: Duration = Duration::from_micros(500);
/// The longest sleep of the thread.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The presence of a client. Dropping it ends the connection.
#[derive(Debug)]
pub(super) struct Presence {
    shared: Arc<Shared>,
    results_max: u64,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    mailbox: Mutex<ClientMailbox>,
    /// Whether the thread sleeps for long.
    is_asleep: AtomicBool,
    ends: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ClientMailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stay(&self) {
        while !self.ends.load(Ordering::Acquire) {
            std::thread::park_timeout(self.turn());
        }
    }

    /// Returns how long the thread may sleep.
    fn turn(&self) -> Duration {
        // The thread that holds the lock continues all writes that have begun.
        let Ok(mut mailbox) = self.mailbox.try_lock() else { return HELPS_AFTER };
        let renewed_every = mailbox.tend();
        let is_asleep = !mailbox.needs_help();
        self.is_asleep.store(is_asleep, Ordering::Release);
        if is_asleep { renewed_every.unwrap_or(SLEEP_MAX).min(SLEEP_MAX) } else { HELPS_AFTER }
    }
}

impl Presence {
    /// Starts the thread.
    pub fn start(mailbox: ClientMailbox, results_max: u64) -> std::io::Result<Self> {
        let (is_asleep, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { mailbox: Mutex::new(mailbox), is_asleep, ends });
        let there = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("portcullis-presence".to_owned()).spawn(move || there.stay())?;
        Ok(Self { shared, results_max, thread: Some(thread) })
    }

    /// Sends a message, and makes the thread continue the write if necessary.
    fn send_by(&self, send: impl FnOnce(&mut ClientMailbox)) {
        let mut mailbox = self.shared.lock();
        send(&mut mailbox);
        let needs_help = mailbox.needs_help();
        drop(mailbox);
        if needs_help && self.shared.is_asleep.swap(false, Ordering::AcqRel) {
            self.thread.iter().for_each(|thread| thread.thread().unpark());
        }
    }
}

impl ClientCarrier for Presence {
    fn send(&mut self, place: u64, scope: ScopeRef) {
        self.send_by(|mailbox| mailbox.send(place, scope));
    }

    fn send_cancelled(&mut self, place: u64, call: u64) {
        self.send_by(|mailbox| mailbox.send_cancelled(place, call));
    }

    fn bring(&mut self) -> bool {
        self.shared.lock().bring()
    }

    fn wait(&mut self, most: Duration) {
        self.shared.lock().wait(most);
    }

    fn check_result(&self, length: u64) -> Result<(), CallError> {
        let most = self.results_max;
        if length > most { Err(CallError::ResultTooLong { length, most }) } else { Ok(()) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

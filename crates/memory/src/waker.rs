//! Wake-up of a thread that sleeps on an epoll: a NIC's engine.

use crate::{Mapping, MappingError};
use portcullis_errors::{Coded, ErrorCode};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The engine's side of wake-ups: it shows whether the engine sleeps, and waits for doorbells.
///
/// The engine waits on an epoll of event descriptors, one for each port, and not on one futex that all clients see. A
/// hostile client could fill that futex's queue and make each honest wake-up pay for it.
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    epoll: OwnedFd,
    own: Doorbell,
}

impl Waker {
    /// The waker of one engine.
    ///
    /// # Errors
    /// The machine has no more memory or descriptors.
    pub fn new() -> Result<Self, WakerError> {
        let page = Mapping::shareable("portcullis-engine", 4096)?;
        page.seal_future_writes()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = Self { inner: Arc::new(Inner { epoll, own: Doorbell::new(page, new_event()?) }) };
        waker.watch(&waker.inner.own.event)?;
        Ok(waker)
    }

    /// The page that shows whether the engine sleeps. A copy of its file can only be mapped for reading.
    #[must_use]
    pub fn page(&self) -> &Mapping {
        &self.inner.own.engine
    }

    /// A new event that the engine waits for too.
    ///
    /// # Errors
    /// The machine has no more descriptors.
    pub fn new_event(&self) -> std::io::Result<OwnedFd> {
        let event = new_event()?;
        self.watch(&event)?;
        Ok(event)
    }

    /// Makes the engine wait for this descriptor too, until it is closed.
    ///
    /// # Errors
    /// The machine has no more room for the descriptor.
    pub fn watch(&self, event: impl AsFd) -> rustix::io::Result<()> {
        // Edge-triggered: a write wakes the engine once, and nothing has to be read back.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.inner.epoll, event, EventData::new_u64(0), flags)
    }

    /// Stops waiting for this event, even if other processes still hold it.
    pub fn forget_event(&self, event: impl AsFd) {
        let _ = epoll::delete(&self.inner.epoll, event);
    }

    /// Wakes the engine if it sleeps.
    pub fn wake(&self) {
        self.inner.own.ring();
    }

    /// Shows that the engine is about to sleep. It must look for work once more after that.
    pub fn announce(&self) {
        self.page().half_word(0).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Shows that the engine is awake.
    pub fn awake(&self) {
        self.page().half_word(0).store(0, Ordering::Relaxed);
    }

    /// Waits for an event. The engine has announced that it sleeps, and found no work after that.
    pub fn sleep(&self, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).ok();
        let mut events = Vec::with_capacity(8);
        // Woken, timed out or interrupted: the engine checks everywhere in any case.
        let _ = epoll::wait(&self.inner.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
    }
}

/// Wakes the engine if it sleeps.
#[derive(Debug)]
pub struct Doorbell {
    /// The engine's page: its first half word is not zero while the engine sleeps. Read-only at a client's end.
    engine: Mapping,
    /// The event that the engine waits for. Each port has its own, so that no client can swallow another's wake-up.
    event: OwnedFd,
}

impl Doorbell {
    /// A doorbell of the engine that shows on `engine` whether it sleeps, and that waits for `event`.
    #[must_use]
    pub fn new(engine: Mapping, event: OwnedFd) -> Self {
        Self { engine, event }
    }

    /// Wakes the engine if it sleeps. The engine sees everything that was posted before this call.
    #[inline]
    pub fn ring(&self) {
        // The engine shows that it sleeps, then checks once more. The poster posts, then reads whether the engine
        // sleeps. The fences let at least one see the other.
        fence(Ordering::SeqCst);
        if self.engine.half_word(0).load(Ordering::Relaxed) != 0 {
            // A full counter means that the engine has enough wake-ups.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// An event that an engine waits for until this is dropped, even if other processes still hold the event then.
#[derive(Debug)]
pub struct WatchedEvent {
    waker: Waker,
    event: OwnedFd,
}

impl WatchedEvent {
    /// A new event that the engine waits for.
    ///
    /// # Errors
    /// The machine has no more descriptors.
    pub fn new(waker: &Waker) -> std::io::Result<Self> {
        Ok(Self { event: waker.new_event()?, waker: waker.clone() })
    }

    /// Returns a copy of the event, with which another process or thread wakes the engine.
    ///
    /// # Errors
    /// The machine has no more descriptors.
    pub fn event(&self) -> std::io::Result<OwnedFd> {
        self.event.try_clone()
    }

    /// The page that shows whether the engine sleeps.
    #[must_use]
    pub fn page(&self) -> &Mapping {
        self.waker.page()
    }
}

impl AsFd for WatchedEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for WatchedEvent {
    fn drop(&mut self) {
        self.waker.forget_event(&self.event);
    }
}

fn new_event() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Error: the machine refuses what an engine needs to sleep and to be woken.
#[derive(Debug, thiserror::Error)]
pub enum WakerError {
    /// The machine has no memory for the page.
    #[error(transparent)]
    Page(#[from] MappingError),
    /// The machine has no descriptor.
    #[error("no event descriptors: {0}")]
    Descriptor(#[from] rustix::io::Errno),
}

impl Coded for WakerError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Page(error) => error.code(),
            Self::Descriptor(_) => ErrorCode::Machine,
        }
    }
}

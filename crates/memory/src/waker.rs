//! Waking an engine that sleeps.

use crate::{Mapping, MappingError};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Tells posters whether the engine sleeps, and waits for them.
///
/// The engine waits on an epoll of event descriptors, one a port, rather than on one futex that all clients see:
/// a hostile client could fill that futex's queue and make each honest wake-up pay for it.
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    page: Mapping,
    epoll: OwnedFd,
    own: OwnedFd,
}

impl Waker {
    /// For one thread that sleeps.
    ///
    /// # Errors
    /// The machine has no more memory or descriptors.
    pub fn new() -> Result<Self, WakerError> {
        let page = Mapping::shareable("portcullis-engine", 4096)?;
        page.seal_future_writes()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = Self { inner: Arc::new(Inner { page, epoll, own: new_event()? }) };
        waker.watch(&waker.inner.own)?;
        Ok(waker)
    }

    /// The page that says whether the engine sleeps. A copy of its file can only be mapped for reading.
    #[must_use]
    pub fn page(&self) -> &Mapping {
        &self.inner.page
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

    fn watch(&self, event: &OwnedFd) -> rustix::io::Result<()> {
        // Edge-triggered: a write wakes once and nothing has to be read back.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.inner.epoll, event, EventData::new_u64(0), flags)
    }

    /// Does not wait for this event any more, whoever else still holds it.
    pub fn forget_event(&self, event: impl AsFd) {
        let _ = epoll::delete(&self.inner.epoll, event);
    }

    /// Wakes the engine if it sleeps.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.inner.page.half_word(0).load(Ordering::Relaxed) != 0 {
            let _ = rustix::io::write(&self.inner.own, &1u64.to_ne_bytes());
        }
    }

    /// Says that the engine is about to sleep. It has to look for work once more after this.
    pub fn announce(&self) {
        self.inner.page.half_word(0).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the engine does not sleep any more.
    pub fn awake(&self) {
        self.inner.page.half_word(0).store(0, Ordering::Relaxed);
    }

    /// Waits for an event.
    pub fn sleep(&self, at_most: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let mut events = Vec::with_capacity(8);
        // Woken, timed out or interrupted: the engine looks everywhere in any case.
        let _ = epoll::wait(&self.inner.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
    }
}

fn new_event() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// The machine refuses what an engine needs to sleep and be woken.
#[derive(Debug, thiserror::Error)]
pub enum WakerError {
    /// No page.
    #[error(transparent)]
    Page(#[from] MappingError),
    /// No descriptor.
    #[error("no event descriptors: {0}")]
    Descriptor(#[from] rustix::io::Errno),
}

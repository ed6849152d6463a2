//! An RDMA device on the engine's thread. The device works by itself; the thread polls it for events that concern the
//! node.

use crate::engine::{Bell, Driver};
use portcullis_ibverbs::IbNic;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A device, and the descriptors that wake the thread that polls it.
#[derive(Debug)]
pub(crate) struct DeviceDriver {
    nic: IbNic,
    bell: EventBell,
    /// The bell, and the other descriptors that wake the thread.
    wakes: OwnedFd,
}

/// An event that the thread waits for beside the device's own.
#[derive(Clone, Debug)]
pub(crate) struct EventBell(Arc<OwnedFd>);

impl DeviceDriver {
    pub fn new(nic: IbNic) -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wakes = epoll::create(CreateFlags::CLOEXEC)?;
        let driver = Self { nic, bell: EventBell(Arc::new(event)), wakes };
        driver.watch(&driver.bell.0)?;
        Ok(driver)
    }

    /// Makes the thread wake for this descriptor too, until it is closed.
    pub fn watch(&self, descriptor: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.wakes, descriptor, EventData::new_u64(0), EventFlags::IN)
    }
}

impl Driver for DeviceDriver {
    type Nic = IbNic;
    type Bell = EventBell;

    /// One: the resident's turn polls the device.
    const TURNS_PER_RESIDENT: u32 = 1;
    const TURNS_PER_CLOCK: u32 = 1;

    fn nic(&mut self) -> &mut IbNic {
        &mut self.nic
    }

    fn bell(&self) -> EventBell {
        self.bell.clone()
    }

    fn turn(&mut self) -> bool {
        false
    }

    fn has_news(&mut self) -> bool {
        true
    }

    fn announce(&mut self) {}

    fn turn_all(&mut self) -> bool {
        false
    }

    fn waits_for_time(&self) -> bool {
        false
    }

    fn sleep(&mut self, at_most: Duration) {
        self.nic.sleep(at_most, Some(self.wakes.as_fd()));
        // The bell is read after every sleep, since a bell that stays rung would end every sleep at once.
        let _ = rustix::io::read(&*self.bell.0, &mut [0; 8]);
    }

    fn awake(&mut self) {}
}

impl Bell for EventBell {
    fn ring(&self) {
        // If the counter is full, the bell has been rung already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

//! The software NIC on the node's thread, which does all of the NIC's work but that of copy units and data engines.

use super::NicThreads;
use crate::engine::{Bell, Driver};
use portcullis_memory::Waker;
use portcullis_softnic::SoftNic;
use std::time::Duration;

/// Time for which the thread sleeps between two turns while data engines serve clients and there is nothing else to do.
const BRIEF_SLEEP: Duration = Duration::from_micros(20);

/// The software NIC, and the waker of its thread.
#[derive(Debug)]
pub(crate) struct SoftwareDriver {
    pub nic: SoftNic,
    pub waker: Waker,
    /// The threads that work for the NIC. They end after it.
    #[expect(dead_code, reason = "it is kept for as long as the NIC")]
    pub(super) threads: NicThreads,
}

impl Driver for SoftwareDriver {
    type Nic = SoftNic;
    type Bell = Waker;

    const TURNS_PER_RESIDENT: u32 = 4;
    const TURNS_PER_CLOCK: u32 = 8;

    fn nic(&mut self) -> &mut SoftNic {
        &mut self.nic
    }

    fn bell(&self) -> Waker {
        self.waker.clone()
    }

    #[inline]
    fn turn(&mut self) -> bool {
        self.nic.turn()
    }

    #[inline]
    fn has_news(&mut self) -> bool {
        self.nic.take_news()
    }

    fn sleep_briefly(&mut self) -> Option<bool> {
        if !self.nic.has_lent_clients() {
            return None;
        }
        self.waker.sleep(BRIEF_SLEEP);
        // No client rings, also none whose queue pairs a turn visits only now and then.
        Some(self.nic.turn_all())
    }

    fn announce(&mut self) {
        self.waker.announce();
    }

    fn turn_all(&mut self) -> bool {
        self.nic.turn_all()
    }

    fn waits_for_time(&self) -> bool {
        self.nic.waits_for_time()
    }

    fn sleep(&mut self, at_most: Duration) {
        self.waker.sleep(at_most);
    }

    fn awake(&mut self) {
        self.waker.awake();
    }
}

impl Bell for Waker {
    fn ring(&self) {
        self.wake();
    }
}

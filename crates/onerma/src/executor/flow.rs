//! A destination and direction: what waits for it, its congestion window, its round trip and its pace.

use super::TransferId;
use crate::congestion::{Congestion, CongestionParameters};
use crate::initiator::{Completion, ServiceClass};
use crate::status::Status;
use std::collections::VecDeque;
use std::time::Duration;

/// Operations that may begin at once although the pace says one after another: a caller that looks at the time now and then
/// would otherwise fall behind.
const BURST: u32 = 4;

/// A destination and direction.
#[derive(Debug)]
pub(super) struct Flow {
    /// The window for congestion beyond this host.
    remote: Congestion,
    rtt: Duration,
    under_way: u32,
    /// Transfers with more to begin: those of `Latency`, those of `Bulk`, each in turns.
    waiting: [VecDeque<TransferId>; 2],
    /// When the pace lets the next operation begin.
    next: Duration,
}

impl Flow {
    pub fn new(target: Duration, rtt: Duration) -> Self {
        let remote = Congestion::new(CongestionParameters::new(target));
        Self { remote, rtt, under_way: 0, waiting: Default::default(), next: Duration::ZERO }
    }

    /// Operations that may be under way.
    pub fn window(&self) -> f64 {
        self.remote.window()
    }

    pub fn push(&mut self, id: TransferId, class: ServiceClass) {
        self.waiting[class as usize].push_back(id);
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    /// Takes the transfer whose turn it is out of those that wait. With more to begin it goes behind the others of its class.
    pub fn take_next(&mut self) -> (TransferId, ServiceClass) {
        let [latency, bulk] = &mut self.waiting;
        let first = latency.pop_front().map(|id| (id, ServiceClass::Latency));
        first.or_else(|| bulk.pop_front().map(|id| (id, ServiceClass::Bulk))).expect("one waits")
    }

    pub fn remove(&mut self, id: TransferId) {
        self.waiting.iter_mut().for_each(|queue| queue.retain(|&it| it != id));
    }

    /// Whether the window lets another operation be under way.
    pub fn has_room(&self) -> bool {
        self.remote.has_room(self.under_way)
    }

    /// When the pace lets the next operation begin.
    pub fn next_begin(&self) -> Duration {
        self.next
    }

    pub fn may_begin(&self, now: Duration) -> bool {
        self.has_room() && self.next <= now
    }

    /// An operation begins: one each `RTT / CWND` (1RMA §6).
    pub fn begun(&mut self, local: f64, now: Duration) {
        self.under_way += 1;
        let apart = self.rtt.div_f64(self.remote.window().min(local));
        let behind = now.saturating_sub(apart.saturating_mul(BURST - 1));
        self.next = self.next.max(behind) + apart;
    }

    /// An operation has ended: tells this flow's window and this host's how it went (1RMA §6, Algorithm 1).
    pub fn ended(&mut self, completion: &Completion, local: &mut Congestion, now: Duration) {
        self.under_way -= 1;
        match completion.status {
            Status::Ok => {
                let beyond = completion.total_delay.saturating_sub(completion.issue_delay);
                self.rtt = (self.rtt * 7 + beyond) / 8;
                local.succeed(completion.issue_delay, self.rtt, now);
                self.remote.succeed(beyond, self.rtt, now);
            }
            Status::DispatchTimeout => local.shed(self.rtt, now),
            Status::Nack | Status::Timeout => self.remote.shed(self.rtt, now),
            Status::RemoteAuthenticationFailure => {}
        }
    }
}

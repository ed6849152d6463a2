//! A destination and direction: what waits for it, its congestion window, its round trip and its pace.

use super::{ExecutorLimits, Pace, Signal, TransferId};
use crate::congestion::Congestion;
use crate::initiator::{Completion, ServiceClass};
use crate::status::Status;
use std::collections::VecDeque;
use std::time::Duration;

/// A destination and direction.
#[derive(Debug)]
pub(super) struct Flow {
    /// The window for congestion beyond this host, or for all of it.
    remote: Congestion,
    signal: Signal,
    burst: u32,
    rtt: Duration,
    under_way: u32,
    /// Transfers with more to begin: those of `Latency`, those of `Bulk`, each in turns.
    waiting: [VecDeque<TransferId>; 2],
    /// When the pace lets the next operation begin.
    next: Duration,
}

impl Flow {
    pub fn new(limits: &ExecutorLimits, pace: &Pace) -> Self {
        let target = match pace.signal {
            Signal::Apart => limits.remote_target,
            Signal::Together => limits.local_target + limits.remote_target,
        };
        Self {
            remote: pace.window(target),
            signal: pace.signal,
            burst: pace.burst,
            rtt: limits.rtt,
            under_way: 0,
            waiting: Default::default(),
            next: Duration::ZERO,
        }
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
        let behind = now.saturating_sub(apart.saturating_mul(self.burst.saturating_sub(1)));
        self.next = self.next.max(behind) + apart;
    }

    /// An operation has ended: tells this flow's window and this host's how it went (1RMA §6, Algorithm 1).
    pub fn ended(&mut self, completion: &Completion, local: &mut Congestion, now: Duration) {
        self.under_way -= 1;
        let Completion { status, issue_delay, total_delay, .. } = *completion;
        match (status, self.signal) {
            (Status::Ok, signal) => {
                let beyond = total_delay.saturating_sub(issue_delay);
                self.rtt = (self.rtt * 7 + beyond) / 8;
                match signal {
                    Signal::Apart => {
                        local.succeed(issue_delay, self.rtt, now);
                        self.remote.succeed(beyond, self.rtt, now);
                    }
                    Signal::Together => self.remote.succeed(total_delay, self.rtt, now),
                }
            }
            (Status::DispatchTimeout, Signal::Apart) => local.shed(self.rtt, now),
            (Status::Nack | Status::Timeout, _) | (Status::DispatchTimeout, Signal::Together) => {
                self.remote.shed(self.rtt, now);
            }
            (Status::RemoteAuthenticationFailure, _) => {}
        }
    }
}

//! A flow, which is a destination and direction: its waiting transfers, congestion window, round trip and pace.

use super::{ExecutorLimits, Pace, Signal, TransferId};
use crate::congestion::Congestion;
use crate::initiator::{Completion, ServiceClass};
use crate::status::Status;
use std::collections::VecDeque;
use std::time::Duration;

/// Number of round trips after which an answer must have waited for something other than the path.
const PAUSE_ROUND_TRIPS: u32 = 8;
/// The shortest round trip: clocks cannot measure shorter ones.
const RTT_LEAST: Duration = Duration::from_micros(1);

/// A destination and direction.
#[derive(Debug)]
pub(super) struct Flow {
    /// The window for congestion beyond this host, or for all of it.
    remote: Congestion,
    signal: Signal,
    burst: u32,
    rtt: Duration,
    under_way: u32,
    /// Transfers with more operations to begin: those of `Latency`, those of `Bulk`, each in turns.
    waiting: [VecDeque<TransferId>; 2],
    /// Time at which the pace lets the next operation begin.
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

    /// Number of operations that may be in progress.
    pub fn window(&self) -> f64 {
        self.remote.window()
    }

    pub fn push(&mut self, id: TransferId, class: ServiceClass) {
        self.waiting[class as usize].push_back(id);
    }

    pub fn is_waiting(&self) -> bool {
        self.waits() > 0
    }

    /// Number of transfers with more operations to begin.
    pub fn waits(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Removes the transfer whose turn it is from the waiting ones. If it has more operations to begin, the caller
    /// adds it behind the others of its class.
    pub fn take_next(&mut self) -> (TransferId, ServiceClass) {
        let [latency, bulk] = &mut self.waiting;
        let first = latency.pop_front().map(|id| (id, ServiceClass::Latency));
        first.or_else(|| bulk.pop_front().map(|id| (id, ServiceClass::Bulk))).expect("one waits")
    }

    pub fn remove(&mut self, id: TransferId) {
        self.waiting.iter_mut().for_each(|queue| queue.retain(|&it| it != id));
    }

    /// Whether the window lets another operation be in progress.
    pub fn has_room(&self) -> bool {
        self.remote.has_room(self.under_way)
    }

    /// Time at which the pace lets the next operation begin.
    pub fn next_begin(&self) -> Duration {
        self.next
    }

    pub fn may_begin(&self, now: Duration) -> bool {
        self.has_room() && self.next <= now
    }

    /// Notes that an operation begins: one begins in each `RTT / CWND` (1RMA §6).
    pub fn begun(&mut self, local: f64, now: Duration) {
        self.under_way += 1;
        let apart = self.apart(local);
        let behind = now.saturating_sub(apart.saturating_mul(self.burst.saturating_sub(1)));
        self.next = self.next.max(behind) + apart;
    }

    /// Returns the time between the beginnings of operations.
    fn apart(&self, local: f64) -> Duration {
        self.rtt.div_f64(self.remote.window().min(local))
    }

    /// Notes that an operation has ended: updates this flow's window and this host's with its outcome (1RMA §6,
    /// Algorithm 1).
    pub fn ended(&mut self, completion: &Completion, local: &mut Congestion, now: Duration) {
        self.under_way -= 1;
        let Completion { status, issue_delay, total_delay, .. } = *completion;
        let beyond = total_delay.saturating_sub(issue_delay);
        // This answer took far less time than the assumed round trip. So the earlier measurement included a wait,
        // perhaps for a paused process, and is not a round trip. A pace that kept it would let operations begin so late
        // that their permissions have ended.
        let is_answer = matches!(status, Status::Ok | Status::RemoteAuthenticationFailure);
        let forgets_a_pause = is_answer && beyond * PAUSE_ROUND_TRIPS < self.rtt;
        if forgets_a_pause {
            self.rtt = beyond.max(RTT_LEAST);
        } else if status == Status::Ok {
            // The delay of a refusal also depends on the time at which the permission has ended.
            self.rtt = (self.rtt * 7 + beyond) / 8;
        }
        match (status, self.signal) {
            (Status::Ok, signal) => match signal {
                Signal::Apart => {
                    local.succeed(issue_delay, self.rtt, now);
                    self.remote.succeed(beyond, self.rtt, now);
                }
                Signal::Together => self.remote.succeed(total_delay, self.rtt, now),
            },
            (Status::DispatchTimeout, Signal::Apart) => local.shed(self.rtt, now),
            (Status::Nack | Status::Timeout, _) | (Status::DispatchTimeout, Signal::Together) => {
                self.remote.shed(self.rtt, now);
            }
            // A refusal is an answer too. If it did not count, a window that has shrunk so far that operations begin
            // too late for their permissions would never recover.
            (Status::RemoteAuthenticationFailure, Signal::Apart) => {
                local.refused(issue_delay);
                self.remote.refused(beyond);
            }
            (Status::RemoteAuthenticationFailure, Signal::Together) => self.remote.refused(total_delay),
        }
        if forgets_a_pause {
            // The next operation was delayed because of the round trip that is discarded now.
            self.next = self.next.min(now + self.apart(local.window()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::CongestionParameters;
    use crate::initiator::SlotId;

    const RTT: Duration = Duration::from_micros(5);
    const LIMITS: ExecutorLimits = ExecutorLimits {
        transfers: 1,
        patience: Duration::from_secs(1),
        local_target: Duration::from_micros(1),
        remote_target: Duration::from_micros(6),
        rtt: RTT,
    };

    /// Returns the local window and the flow's after an operation that ended like this, when both were 10.
    fn after(signal: Signal, status: Status, [issue_delay, total_delay]: [u64; 2]) -> [f64; 2] {
        let pace = Pace { initial: 10.0, signal, ..Pace::default() };
        let parameters =
            CongestionParameters { initial: 10.0, ..CongestionParameters::new(LIMITS.local_target) };
        let (mut flow, mut local) = (Flow::new(&LIMITS, &pace), Congestion::new(parameters));
        let [issue_delay, total_delay] = [issue_delay, total_delay].map(Duration::from_micros);
        let (slot, before, is_uncertain) = (SlotId(0), None, false);
        flow.begun(local.window(), Duration::ZERO);
        let end = Completion { slot, status, issue_delay, total_delay, is_uncertain, before };
        flow.ended(&end, &mut local, RTT);
        [local.window(), flow.window()]
    }

    fn falls(windows: [f64; 2]) -> [bool; 2] {
        windows.map(|it| it < 10.0)
    }

    #[test]
    fn each_window_reacts_to_its_own_delay() {
        let delays = |delays| falls(after(Signal::Apart, Status::Ok, delays));
        assert_eq!(delays([0, 5]), [false, false]);
        assert_eq!(delays([9, 14]), [true, false], "only this host is congested");
        assert_eq!(delays([0, 9]), [false, true], "only what is beyond it is");
    }

    #[test]
    fn each_window_reacts_to_its_own_failures() {
        let failed = |status| falls(after(Signal::Apart, status, [0, 5]));
        assert_eq!(failed(Status::DispatchTimeout), [true, false]);
        assert_eq!([Status::Nack, Status::Timeout].map(failed), [[false, true]; 2]);
        assert_eq!(failed(Status::RemoteAuthenticationFailure), [false, false]);
    }

    #[test]
    fn a_refusal_that_comes_soon_lets_a_window_come_back_and_a_late_one_changes_nothing() {
        let refused = |signal, delays| {
            after(signal, Status::RemoteAuthenticationFailure, delays).map(|window| window > 10.0)
        };
        assert_eq!(refused(Signal::Apart, [0, 5]), [true, true]);
        assert_eq!(refused(Signal::Apart, [9, 14]), [false, true]);
        assert_eq!(refused(Signal::Apart, [0, 60]), [true, false]);
        assert_eq!(refused(Signal::Together, [0, 5]), [false, true]);
        assert_eq!(
            falls(after(Signal::Apart, Status::RemoteAuthenticationFailure, [60, 600])),
            [false, false]
        );
    }

    #[test]
    fn after_a_pause_the_first_answer_brings_the_pace_back() {
        for status in [Status::Ok, Status::RemoteAuthenticationFailure] {
            let mut flow = Flow::new(&LIMITS, &Pace { initial: 1.0, burst: 1, ..Pace::default() });
            let mut local = Congestion::new(CongestionParameters::new(LIMITS.local_target));
            let now = Duration::from_secs(1);
            let mut end = |flow: &mut Flow, status, total_delay: Duration| {
                let (slot, issue_delay, before, is_uncertain) = (SlotId(0), Duration::ZERO, None, false);
                let end = Completion { slot, status, issue_delay, total_delay, is_uncertain, before };
                flow.ended(&end, &mut local, now);
            };
            for _ in 0..20 {
                flow.begun(1.0, now);
                end(&mut flow, Status::Ok, Duration::from_millis(200));
            }
            flow.begun(1.0, now);
            assert!(flow.rtt > Duration::from_millis(100), "{:?}", flow.rtt);
            // A late refusal is no evidence about the path.
            let before = flow.rtt;
            end(&mut flow, Status::RemoteAuthenticationFailure, Duration::from_secs(1));
            assert_eq!(flow.rtt, before);
            flow.begun(1.0, now);
            end(&mut flow, status, RTT);
            assert_eq!(flow.rtt, RTT);
            assert!(flow.next_begin() < now + Duration::from_millis(1), "{:?}", flow.next_begin());
        }
    }

    #[test]
    fn with_one_signal_the_flow_reacts_to_all_and_the_local_window_to_nothing() {
        let after = |status, delays| falls(after(Signal::Together, status, delays));
        assert_eq!(after(Status::Ok, [1, 6]), [false, false], "in all it is below the sum of both targets");
        assert_eq!(after(Status::Ok, [9, 14]), [false, true]);
        for status in [Status::DispatchTimeout, Status::Nack, Status::Timeout] {
            assert_eq!(after(status, [0, 5]), [false, true], "{status}");
        }
    }

    #[test]
    fn the_pace_lets_as_many_begin_at_once_as_the_burst_says() {
        for burst in [1, 4] {
            let mut flow = Flow::new(&LIMITS, &Pace { initial: 10.0, burst, ..Pace::default() });
            let now = Duration::from_secs(1);
            let mut begun = 0;
            while flow.may_begin(now) {
                flow.begun(10.0, now);
                begun += 1;
            }
            assert_eq!(begun, burst);
        }
    }
}

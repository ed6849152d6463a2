//! The wait of a session: it spins, then yields, then sleeps, and notices when the node is gone.

use crate::Clock;
use portcullis_client::Client;
use portcullis_nic::VerbsEndpoint;
use portcullis_planted::planted;
use portcullis_protocol::{Lifetime, Moment};
use std::time::Duration;

/// Time for which a wait yields before it sleeps. The limit is a time and not a count, because one yield can take
/// milliseconds on a busy machine.
const YIELD_FOR: Lifetime = Lifetime::micros(500);
/// The longest sleep. It bounds the time until the session notices that the node has ended.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Time without a result after which a session that polls checks whether its node is still alive.
const LIFE_CHECKED_EVERY: Lifetime = Lifetime::millis(5);

/// The state of a session's present wait. A wait consists of rounds: each polls the client once.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Rounds of the present wait.
    rounds: u32,
    /// The moment at which the present wait began to yield.
    yielding_since: Moment,
    /// The moment at which the session last knew that the node was alive.
    alive_at: Moment,
    quiet: Quiet,
}

/// The time for which no operation or call has ended in the present wait.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    /// Number of operations and calls that had ended by `since`.
    ended: u64,
    since: Moment,
    /// Whether nothing has ended for longer than the session's limit.
    for_too_long: bool,
}

impl Waiter {
    pub fn new(now: Moment) -> Self {
        let quiet = Quiet { ended: 0, since: now, for_too_long: false };
        Self { rounds: 0, yielding_since: now, alive_at: now, quiet }
    }

    /// Begins a wait.
    #[inline]
    pub fn begin(&mut self) {
        self.rounds = 0;
        self.quiet.for_too_long = false;
    }

    /// Returns whether no operation or call has ended for longer than the session's limit, in the present wait.
    pub fn is_quiet_for_too_long(&self) -> bool {
        self.quiet.for_too_long
    }

    /// Does one round: passes a little time, except in the first round, and handles new completions. Passes time until
    /// `by` at the longest.
    #[inline]
    pub fn round<E: VerbsEndpoint, C: Clock>(&mut self, client: &mut Client<E>, clock: &C, by: Moment) {
        if self.rounds > 0 {
            self.pause(client, clock, by);
        }
        self.rounds += 1;
        // The clock is read only after a completion that depends on the time has arrived.
        if client.take_in() {
            if !planted!(WaitJudgesByOldTime) || self.rounds.is_multiple_of(64) {
                self.alive_at = clock.now();
            }
            client.judge(self.alive_at);
        }
    }

    fn pause<E: VerbsEndpoint, C: Clock>(&mut self, client: &mut Client<E>, clock: &C, by: Moment) {
        if self.rounds < C::SPINS {
            clock.spin();
            return;
        }
        let now = clock.now();
        if self.rounds == C::SPINS {
            self.yielding_since = now;
        }
        self.note_quiet::<E, C>(client, now);
        client.tick(now);
        if now.since(self.yielding_since) < YIELD_FOR {
            clock.yield_now();
        } else {
            let timer = client.next_wake().map_or(SLEEP_MAX, |wake| wake.since(now).into());
            let left = if by > now { by.since(now).into() } else { SLEEP_MAX };
            client.endpoint().wait(timer.min(left).min(SLEEP_MAX));
            look_for_node(client);
        }
    }

    /// Notes since when no operation or call has ended. A wait for room or for a condition may last a little longer
    /// than an operation or a call, so that these end first.
    fn note_quiet<E: VerbsEndpoint, C: Clock>(&mut self, client: &Client<E>, now: Moment) {
        let ended = client.ended();
        if self.rounds == C::SPINS || ended != self.quiet.ended {
            self.quiet = Quiet { ended, since: now, for_too_long: false };
        } else if let Some(within) = client.limit() {
            self.quiet.for_too_long = now.since(self.quiet.since).0 > within.0.saturating_add(within.0 / 4);
        }
    }

    /// Handles new completions, without waiting. Returns how many operations and calls have ended.
    pub fn poll<E: VerbsEndpoint, C: Clock>(&mut self, client: &mut Client<E>, clock: &C) -> usize {
        client.take_in();
        let now = clock.now();
        let ended = client.judge(now);
        if ended > 0 {
            self.alive_at = now;
        } else if now.since(self.alive_at) > LIFE_CHECKED_EVERY {
            // A call to the kernel costs as much as several operations, so the session does not check at each poll.
            self.alive_at = now;
            look_for_node(client);
        }
        ended
    }
}

/// Ends the session if the node is gone.
pub(super) fn look_for_node<E: VerbsEndpoint>(client: &mut Client<E>) {
    if !client.endpoint().node_alive() {
        client.node_gone();
    }
}

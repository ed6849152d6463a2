//! The keeper: a thread that extends permissions while they are held.

use crate::{Clock, ProcessClock, Session, SessionEndpoint};
use portcullis_client::{ControlRequest, Error, Lease};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{Lifetime, Moment};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Divisor of the extension time: the keeper extends a permission when less than this fraction of the extension time is
/// left.
const EXTEND_AT_PART: u64 = 2;
/// The longest sleep of a keeper.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// A permission that the keeper extends. The keeper stops extending it when this value is dropped.
#[derive(Debug)]
pub struct Kept {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    lease: Arc<Lease>,
    by: Lifetime,
    over: AtomicBool,
}

impl Kept {
    fn new(lease: Arc<Lease>, by: Lifetime) -> Self {
        Self { state: Arc::new(State { lease, by, over: AtomicBool::new(false) }) }
    }

    /// Returns whether the keeper still extends the permission. The keeper stops when the node has refused, or when the
    /// permission has ended.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.state.over.load(Ordering::Acquire)
    }
}

/// The thread that extends permissions.
#[derive(Debug)]
pub(crate) struct Keeper {
    leases: Option<Sender<Weak<State>>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(session: Session) -> Self {
        let (leases, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("portcullis-keeper".to_owned())
            .spawn(move || keep_all(session, &receiver))
            .inspect_err(|error| tracing::warn!(%error, "no thread to keep permissions with"))
            .ok();
        Self { leases: Some(leases), thread }
    }

    pub fn keep(&self, lease: Arc<Lease>, by: Lifetime) -> Kept {
        let kept = Kept::new(lease, by);
        // Without a thread the channel has no receiver.
        let sent =
            self.leases.as_ref().is_some_and(|leases| leases.send(Arc::downgrade(&kept.state)).is_ok());
        if !sent {
            kept.state.over.store(true, Ordering::Release);
        }
        kept
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The thread ends when its channel has no sender.
        self.leases = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep_all(session: Session, leases: &Receiver<Weak<State>>) {
    let mut tending = Tending::new(session);
    let mut sleep = SLEEP_MAX;
    loop {
        match leases.recv_timeout(sleep) {
            Ok(lease) => tending.kept.push(lease),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        sleep = tending.tend();
    }
}

/// The work of a keeper in one turn: it extends the leases that are due. It uses a session of its own, which has the
/// same clock as the leases.
#[derive(Debug)]
pub struct Tending<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    session: Session<E, C>,
    kept: Vec<Weak<State>>,
}

impl<E: VerbsEndpoint, C: Clock> Tending<E, C> {
    /// Makes a keeper without leases.
    pub fn new(session: Session<E, C>) -> Self {
        Self { session, kept: Vec::new() }
    }

    /// Keeps another lease extended, `by` at a time, until the returned value is dropped.
    pub fn keep(&mut self, lease: Arc<Lease>, by: Lifetime) -> Kept {
        let kept = Kept::new(lease, by);
        self.kept.push(Arc::downgrade(&kept.state));
        kept
    }

    /// Extends the leases that are due, and drops those that no longer have to be kept. Returns how long the next turn
    /// can wait.
    pub fn tend(&mut self) -> Duration {
        let Self { session, kept } = self;
        // A node that does not answer for one lease answers for none, so the other leases wait for the next turn.
        let mut is_silent = false;
        kept.retain(|weak| {
            is_silent || weak.upgrade().is_some_and(|state| tend(session, &state, &mut is_silent))
        });
        next_extension(kept, session.now())
    }
}

/// Time for which the keeper's thread may sleep.
fn next_extension(kept: &[Weak<State>], now: Moment) -> Duration {
    let due = kept.iter().filter_map(Weak::upgrade).map(|state| due_at(&state));
    due.map(|due| Duration::from(due.since(now))).min().unwrap_or(SLEEP_MAX).min(SLEEP_MAX)
}

fn due_at(state: &State) -> Moment {
    let margin = Lifetime(state.by.0 / EXTEND_AT_PART);
    Moment(state.lease.deadline().0.saturating_sub(margin.0))
}

/// Extends a lease if it is due. Returns whether the keeper has to keep it further. Sets `is_silent` if the node has
/// not answered in time.
fn tend<E: VerbsEndpoint, C: Clock>(
    session: &mut Session<E, C>,
    state: &State,
    is_silent: &mut bool,
) -> bool {
    let now = session.now();
    if now < due_at(state) {
        return true;
    }
    let last = state.lease.started_after().after(state.lease.longest());
    let asked = now.after(state.by).min(last);
    if asked <= state.lease.deadline() {
        state.over.store(true, Ordering::Release);
        return false;
    }
    let begun = session.client().call(now, ControlRequest::extend_to(&state.lease, asked));
    let result = begun.map_err(Error::from).and_then(|call| session.wait_call(call));
    // The node refuses at its longest lifetime, or after its final notice. Then the permission keeps its deadline.
    *is_silent = matches!(result, Err(Error::TimedOut { .. }));
    let goes_on = result.is_ok() || *is_silent;
    if !goes_on {
        state.over.store(true, Ordering::Release);
    }
    goes_on
}

//! A thread that keeps an entry registered for as long as the process serves it. Between its turns a [`Sentry`] watches
//! the name.

use crate::clock;
use crate::directory::Directory;
use crate::error::DirectoryError;
use crate::lease::Lease;
use crate::name::Name;
use crate::registrar::{Change, Holding, Registrar};
use crate::sentry::{Order, Sentry};
use portcullis_errors::{Coded, ErrorCode};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Reason for which nothing was registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The directory refuses, or is away.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The machine refuses a thread.
    #[error("this machine refuses a thread: {0}")]
    Machine(#[from] io::Error),
}

impl Coded for StartError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Directory(error) => error.code(),
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// Keeps a [`Holding`] in a directory until it is dropped: see [`Registrar`]. Then the lease is ended, if the directory
/// can be reached; otherwise it ends by itself.
pub struct Registration {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the keeper must stop, or take a turn at once.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    /// Whether the sentry has seen a change, so that a turn is due.
    is_noticed: bool,
    lease: Option<Lease>,
    /// The heaps to hold with each lease, by address.
    heaps: BTreeSet<u64>,
    /// Heaps of that set that are held, as far as is known.
    held: BTreeSet<u64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notice(&self) {
        self.lock().is_noticed = true;
        self.wake.notify_all();
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("lease", &self.lease()).finish_non_exhaustive()
    }
}

impl Registration {
    /// Starts the thread. `open` opens the directory, and is called again after the directory was away; `tell` receives
    /// the changes.
    ///
    /// # Errors
    /// The machine refuses a thread.
    pub fn start(
        holding: Holding,
        open: impl FnMut() -> Result<Arc<dyn Directory>, DirectoryError> + Send + 'static,
        tell: impl FnMut(Change) + Send + 'static,
    ) -> io::Result<Self> {
        let (registrar, beginning) = (Registrar::new(holding.clone()), clock::now());
        let shared = Arc::default();
        let guard = Guard::of(holding, &shared)?;
        Self::keep(Keeper { shared, registrar, beginning, directory: None, guard, open, tell })
    }

    /// Registers the entry before it returns, and keeps it registered from then on: for callers that must not begin
    /// without it.
    ///
    /// # Errors
    /// The directory refuses, or is away; or the machine refuses a thread.
    pub fn start_now(holding: Holding, directory: Arc<dyn Directory>) -> Result<Self, StartError> {
        let beginning = clock::now();
        let mut registrar = Registrar::new(holding.clone());
        let shared = Arc::default();
        let guard = Guard::of(holding, &shared)?;
        registrar.begin(&*directory, Duration::ZERO)?;
        let (there, open) = (Some(Arc::clone(&directory)), move || Ok(Arc::clone(&directory)));
        let keeper = Keeper { shared, registrar, beginning, directory: there, guard, open, tell: drop };
        Ok(Self::keep(keeper)?)
    }

    fn keep<O, T>(keeper: Keeper<O, T>) -> io::Result<Self>
    where
        O: FnMut() -> Result<Arc<dyn Directory>, DirectoryError> + Send + 'static,
        T: FnMut(Change) + Send + 'static,
    {
        let shared = Arc::clone(&keeper.shared);
        shared.lock().lease = keeper.registrar.lease().cloned();
        let thread = std::thread::Builder::new().name("portcullis-name".to_owned());
        let thread = Some(thread.spawn(move || keeper.run())?);
        Ok(Self { shared, thread })
    }

    /// Returns the lease, if one exists and has not ended, as far as is known.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        self.shared.lock().lease.clone()
    }

    /// Holds the heap at this address with the present lease, and with each that follows it.
    ///
    /// # Errors
    /// The errors of [`Directory::hold_heap`], or there is no lease now.
    pub fn hold_heap(&self, directory: &dyn Directory, address: u64) -> Result<(), DirectoryError> {
        let lease = self.lease().ok_or(DirectoryError::NoSuchHeap(address))?;
        directory.hold_heap(&lease, address)?;
        self.keep_heap(address);
        Ok(())
    }

    /// Continues to hold a heap that the present lease holds already, with each lease that follows.
    pub fn keep_heap(&self, address: u64) {
        let mut state = self.shared.lock();
        state.heaps.insert(address);
        state.held.insert(address);
    }

    /// Releases a heap. If the directory does not receive the request, the hold ends with the lease.
    pub fn release_heap(&self, directory: &dyn Directory, address: u64) {
        let lease = {
            let mut state = self.shared.lock();
            state.heaps.remove(&address);
            state.held.remove(&address);
            state.lease.clone()
        };
        if let Some(lease) = lease {
            let _ = directory.release_heap(&lease, address);
        }
    }

    /// Whether the heap at this address is held, as far as is known. If the directory was away until no process held
    /// the heap any more, another heap may have its addresses.
    #[must_use]
    pub fn holds_heap(&self, address: u64) -> bool {
        self.shared.lock().held.contains(&address)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The name that is registered, and the sentry that watches it.
struct Guard {
    name: Name,
    sentry: Sentry,
}

impl Guard {
    /// Returns `None` if the lease is for heaps alone.
    fn of(holding: Holding, shared: &Arc<Shared>) -> io::Result<Option<Self>> {
        let Some((name, _)) = holding.entry else { return Ok(None) };
        let shared = Arc::downgrade(shared);
        let sentry = Sentry::start(move || {
            if let Some(shared) = shared.upgrade() {
                shared.notice();
            }
        })?;
        Ok(Some(Self { name, sentry }))
    }
}

/// Minimum time between a turn and the next one that a change causes: an entry that is deleted again and again is not
/// registered as fast as the directory answers.
const NOTICED_AGAIN: Duration = Duration::from_secs(1);

struct Keeper<O, T> {
    shared: Arc<Shared>,
    registrar: Registrar,
    /// Start of the registrar's time.
    beginning: Instant,
    /// The directory, if it could be opened.
    directory: Option<Arc<dyn Directory>>,
    guard: Option<Guard>,
    open: O,
    tell: T,
}

impl<O, T> Keeper<O, T>
where
    O: FnMut() -> Result<Arc<dyn Directory>, DirectoryError>,
    T: FnMut(Change),
{
    fn run(mut self) {
        loop {
            let now = clock::now().saturating_duration_since(self.beginning);
            let opened = match self.directory.take() {
                Some(there) => Ok(there),
                None => (self.open)(),
            };
            let wanted = self.shared.lock().heaps.clone();
            self.registrar.want_heaps(wanted.clone());
            let (change, pause) = match opened {
                Ok(there) => self.registrar.turn(&**self.directory.insert(there), now),
                Err(error) => self.registrar.turn_without(error, now),
            };
            // A caller that learns of a change finds its result.
            self.publish(&wanted);
            change.into_iter().for_each(&mut self.tell);
            self.order_watch(pause);
            if self.is_stopped_within(pause) {
                break;
            }
        }
        // A call to a directory that is away would only wait.
        if let Some(there) = self.directory.filter(|_| self.registrar.is_well()) {
            self.registrar.end(&*there);
        }
    }

    /// Starts a watch of the name until the next turn.
    fn order_watch(&self, at_most: Duration) {
        if let (Some(guard), Some(directory), Some(lease)) =
            (&self.guard, &self.directory, self.registrar.lease())
            && self.registrar.is_well()
        {
            let (directory, lease) = (Arc::clone(directory), lease.clone());
            guard.sentry.order(Order { directory, lease, name: guard.name.clone(), at_most });
        }
    }

    /// Publishes the result of a turn in which these heaps were wanted.
    fn publish(&self, wanted: &BTreeSet<u64>) {
        let mut state = self.shared.lock();
        state.lease = self.registrar.lease().cloned();
        let held = self.registrar.heaps_held();
        // The turn did not cover heaps that were added since.
        let is_held = |address: &u64| if wanted.contains(address) { held.contains(address) } else { true };
        state.held.retain(is_held);
        let again = held.intersection(&state.heaps).copied().collect::<Vec<_>>();
        state.held.extend(again);
    }

    /// Waits for the next turn. Returns whether the thread must stop.
    fn is_stopped_within(&self, pause: Duration) -> bool {
        let state = self.shared.lock();
        let wait = |state, pause, until: fn(&State) -> bool| {
            let waited = self.shared.wake.wait_timeout_while(state, pause, |state| !until(state));
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let began = clock::now();
        let mut state = wait(state, pause, |state| state.is_stopped || state.is_noticed);
        if state.is_noticed {
            let waited = clock::now().saturating_duration_since(began);
            state = wait(state, NOTICED_AGAIN.saturating_sub(waited), |state| state.is_stopped);
            state.is_noticed = false;
        }
        state.is_stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Address, Embedded, Entry, Space, Target};
    use portcullis_protocol::TenantName;

    fn bank_and_node() -> (TenantName, Name) {
        (TenantName::new("bank").expect("one"), Name::new("bank/n1").expect("one"))
    }

    fn holding(tenant: TenantName, name: Name) -> Holding {
        let addresses = vec![Address::new("udp:a:1").expect("one")];
        let entry = Entry { target: Target::Node { addresses, memory_bytes: 1 }, access: Access::public() };
        Holding { tenant, time_to_live: Duration::from_secs(60), entry: Some((name, entry)) }
    }

    #[test]
    fn what_is_begun_now_is_there_or_an_error() {
        let (bank, name) = bank_and_node();
        let directory = Embedded::new(Space::usual());
        let holding = holding(bank, name.clone());
        let first = Registration::start_now(holding.clone(), Arc::new(directory.clone())).expect("free");
        let lease = first.lease().expect("there is one");
        assert_eq!(directory.look_up(&bank, &name).expect("it is there").lease, lease.id());
        let second = Registration::start_now(holding, Arc::new(directory.clone())).expect_err("taken");
        assert_eq!(second.code(), ErrorCode::NameTaken);
        assert_eq!(directory.usage(&lease).expect("it lives").leases, 1, "nothing of the second stays");
        drop(first);
        assert!(directory.look_up(&bank, &name).is_err());
    }

    #[test]
    fn what_is_dropped_is_found_no_more_and_was_told_of() {
        let (bank, name) = bank_and_node();
        let directory = Embedded::new(Space::usual());
        let holding = holding(bank, name.clone());
        let (sender, told) = std::sync::mpsc::channel();
        let opened: Arc<dyn Directory> = Arc::new(directory.clone());
        let registration = Registration::start(
            holding,
            move || Ok(Arc::clone(&opened)),
            move |change| sender.send(change).expect("it is heard"),
        );
        let registration = registration.expect("a thread");
        assert_eq!(told.recv(), Ok(Change::Registered));
        assert!(directory.look_up(&bank, &name).is_ok());
        drop(registration);
        assert!(directory.look_up(&bank, &name).is_err());
        assert!(told.recv().is_err(), "nothing more is told");
    }

    #[test]
    fn a_name_that_is_removed_while_its_lease_lives_is_back_long_before_the_next_turn_is_due() {
        let (bank, name) = bank_and_node();
        let directory = Embedded::new(Space::usual());
        let holding = Holding { time_to_live: crate::LEASE_MAX, ..holding(bank, name.clone()) };
        let (sender, told) = std::sync::mpsc::channel();
        let opened: Arc<dyn Directory> = Arc::new(directory.clone());
        let registration = Registration::start(
            holding,
            move || Ok(Arc::clone(&opened)),
            move |change| sender.send(change).expect("it is heard"),
        );
        let registration = registration.expect("a thread");
        // Without the sentry the next turn is due in eight hours.
        let soon = Duration::from_mins(1);
        assert_eq!(told.recv_timeout(soon), Ok(Change::Registered));
        for _ in 0..2 {
            let lease = registration.lease().expect("the change is reported after its lease");
            directory.withdraw(&lease, &name).expect("it is there");
            assert_eq!(told.recv_timeout(soon), Ok(Change::Back));
            assert!(directory.look_up(&bank, &name).is_ok());
        }
    }
}

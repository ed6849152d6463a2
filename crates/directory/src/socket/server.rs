//! The server of a directory: the tenants that each client may act for, and the notification of changes.

use super::conversation::Conversation;
use crate::clock;
use crate::directory::Directory;
use crate::embedded::Embedded;
use crate::lease::{Lease, LeaseId};
use portcullis_attach::unix::{Listener, Peer, SocketAccess, User};
use portcullis_attach::{Acceptor, Limits};
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The users whose processes may act for all tenants, set quotas and reclaim heaps, as a daemon does for its clients
/// (RPCool §4.1). The kernel reports the user of a process. Processes of any other user with number N are tenant
/// `uid:N`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trust {
    /// The users.
    pub users: BTreeSet<u32>,
}

impl Trust {
    /// Trusts this process's own user and root, which can control this process anyway.
    #[must_use]
    pub fn in_own_user() -> Self {
        Self { users: BTreeSet::from([0, rustix::process::geteuid().as_raw()]) }
    }
}

/// The tenants that a client may act for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Speaker {
    Anybody,
    Only(TenantName, u32),
}

/// A directory that is served at a Unix socket. Dropping it ends all connections, and all leases opened over them.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    directory: Embedded,
    is_stopped: Arc<AtomicBool>,
    notifier: Option<JoinHandle<()>>,
    /// Dropped after the thread that uses it.
    _acceptor: Arc<Acceptor>,
}

/// State that all connections share.
#[derive(Debug)]
pub(super) struct ServerState {
    pub directory: Embedded,
    trust: Trust,
    next: AtomicU64,
    leases: Mutex<BTreeMap<u64, Held>>,
    pub parked: Parked,
}

/// The holdings of one connection.
#[derive(Debug)]
struct Held {
    user: User,
    leases: BTreeMap<LeaseId, Lease>,
}

/// The connections that wait for a change.
#[derive(Clone, Default, Debug)]
pub(super) struct Parked(Arc<Mutex<BTreeSet<u64>>>);

/// Changes within this time are notified together.
const CHANGES_TOGETHER: Duration = Duration::from_millis(2);
/// Maximum number of leases of one connection. A process has one of its own, and a daemon those of its clients.
pub(super) const LEASES_MAX: usize = 1_024;
/// Interval at which the addresses of heaps without holders are freed.
const RECLAIMED_EVERY: Duration = Duration::from_secs(60);

impl Server {
    /// Serves a directory at a path. `access` defines the users that may connect, and `trust` those of them that may
    /// act for all tenants.
    ///
    /// # Errors
    /// A socket cannot be made at the path, or the machine refuses a thread or descriptors.
    pub fn start(directory: Embedded, path: &Path, access: SocketAccess, trust: Trust) -> io::Result<Self> {
        Self::start_with(directory, path, access, trust, Limits::UNIX)
    }

    /// Serves a directory as [`start`](Self::start) does, with other limits.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_with(
        directory: Embedded,
        path: &Path,
        access: SocketAccess,
        trust: Trust,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = Listener::bind(path, access)?;
        let server = ServerState::new(directory.clone(), trust);
        let (parked, is_stopped) = (server.parked.clone(), Arc::new(AtomicBool::new(false)));
        let acceptor = Acceptor::start::<Conversation>(vec![listener], server, limits.within_descriptors(2))?;
        let acceptor = Arc::new(acceptor);
        let notify = {
            let (directory, acceptor, is_stopped) =
                (directory.clone(), Arc::clone(&acceptor), Arc::clone(&is_stopped));
            move || notify(&directory, &acceptor, &parked, &is_stopped)
        };
        let notifier = std::thread::Builder::new().name("portcullis-names".to_owned()).spawn(notify)?;
        let notifier = Some(notifier);
        Ok(Self { path: path.to_owned(), directory, is_stopped, notifier, _acceptor: acceptor })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.directory.ring();
        if let Some(notifier) = self.notifier.take() {
            let _ = notifier.join();
        }
    }
}

/// Notifies waiting connections of changes. They check themselves for what has changed.
fn notify(directory: &Embedded, acceptor: &Acceptor, parked: &Parked, is_stopped: &AtomicBool) {
    let (mut seen, mut reclaimed) = (0, clock::now());
    while !is_stopped.load(Ordering::Relaxed) {
        // This also returns when a lease has ended by itself.
        seen = directory.wait_for_change(seen, RECLAIMED_EVERY);
        if clock::now().saturating_duration_since(reclaimed) >= RECLAIMED_EVERY {
            reclaimed = clock::now();
            let _ = directory.reclaim();
        }
        let waiting: Vec<u64> = parked.lock().iter().copied().collect();
        acceptor.say(waiting.into_iter().map(|client| (client, Vec::new())));
        std::thread::park_timeout(CHANGES_TOGETHER);
    }
}

impl Parked {
    pub fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerState {
    fn new(directory: Embedded, trust: Trust) -> Self {
        let (next, leases) = (AtomicU64::new(1), Mutex::default());
        Self { directory, trust, next, leases, parked: Parked::default() }
    }

    /// Admits a process. `None`: its user has no number here, so it cannot be identified.
    pub fn let_in(&self, peer: &Peer) -> Option<(u64, Speaker)> {
        let user = peer.user?;
        let speaker = if self.trust.users.contains(&user) {
            Speaker::Anybody
        } else {
            Speaker::Only(TenantName::new(&format!("uid:{user}")).ok()?, user)
        };
        let client = self.next.fetch_add(1, Ordering::Relaxed);
        let user = User { listener: peer.listener, user: peer.user };
        self.lock().insert(client, Held { user, leases: BTreeMap::new() });
        Some((client, speaker))
    }

    /// Returns a lease of the connection.
    pub fn lease(&self, client: u64, id: LeaseId) -> Option<Lease> {
        self.lock().get(&client)?.leases.get(&id).cloned()
    }

    /// Returns a lease of any connection of this user.
    pub fn lease_of(&self, user: User, id: LeaseId) -> Option<Lease> {
        let held = self.lock();
        held.values().filter(|held| held.user == user).find_map(|held| held.leases.get(&id).cloned())
    }

    /// Whether the connection may have one more lease. Leases that have ended by themselves are removed first.
    pub fn has_room(&self, client: u64) -> bool {
        let mut all = self.lock();
        let Some(held) = all.get_mut(&client) else { return false };
        if held.leases.len() >= LEASES_MAX {
            held.leases.retain(|_, lease| self.directory.usage(lease).is_ok());
        }
        held.leases.len() < LEASES_MAX
    }

    /// Adds a lease to the connection.
    pub fn gives(&self, client: u64, lease: Lease) {
        if let Some(held) = self.lock().get_mut(&client) {
            held.leases.insert(lease.id(), lease);
        }
    }

    /// Removes a lease from the connection.
    pub fn takes(&self, client: u64, id: LeaseId) {
        if let Some(held) = self.lock().get_mut(&client) {
            held.leases.remove(&id);
        }
    }

    /// Handles the end of a connection: ends its leases.
    pub fn depart(&self, client: u64) {
        self.parked.lock().remove(&client);
        let held = self.lock().remove(&client);
        for lease in held.into_iter().flat_map(|held| held.leases.into_values()) {
            let _ = self.directory.end_lease(&lease);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Held>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

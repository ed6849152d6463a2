//! The nodes of a store: a link to each, as the caller or the directory names them.

use super::link::{Link, LinkState, Reason};
use super::options::{ARENA_BYTES_MIN, NodeSource, SpreadOptions};
use super::status::NodeStatus;
use super::worker;
use crate::spread::Nodes;
use portcullis::FindError;
use portcullis::names::{Name, NodesBelow};
use portcullis_errors::{Coded, ErrorCode, Fault};
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest wait for a change of the directory: after this the thread checks whether the handle is closed.
const WATCHED_FOR: Duration = Duration::from_millis(200);

/// Interval between two attempts to reach a directory that is away.
const DIRECTORY_TRIED_EVERY: Duration = Duration::from_secs(1);

/// Stores that were made within this time of the oldest one count as made together, if the handle was opened later.
const MADE_TOGETHER: Duration = Duration::from_secs(60);

/// The weight of a node that has not said how much memory it lends: that of a node with 1 GiB.
const UNKNOWN_WEIGHT: u32 = 1_024;

/// The reason why a store on several nodes was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpreadError {
    /// The caller's mistake: no node is named.
    #[error("no node is named: give the addresses of the nodes, or a name below which they are registered")]
    NoNodes,
    /// The caller's mistake: a node would have two parts of the blocks.
    #[error("{0} is named twice")]
    Twice(String),
    /// No node is registered below the name.
    #[error(
        "no node is registered below name:{0}. A node registers itself with `portcullis serve --directory ADDRESS \
         --name {0}/NODE`"
    )]
    NoneBelow(Name),
    /// The directory cannot be used.
    #[error(transparent)]
    Find(#[from] FindError),
    /// None of the nodes can be reached.
    #[error("none of the nodes can be reached{}", listed(.nodes))]
    Unreachable {
        /// The name of each node, and the reason why it cannot be reached.
        nodes: Vec<(String, String)>,
        /// The code of one of the reasons: the first one that is not a mistake of the caller, if there is one.
        code: ErrorCode,
    },
    /// The caller's mistake: the sessions have too little memory for transfers.
    #[error(
        "a session has at least {ARENA_BYTES_MIN} bytes of memory for transfers, not {bytes}: see arena_bytes"
    )]
    SmallArena {
        /// Bytes that the caller has named.
        bytes: u64,
    },
    /// The machine refuses a thread.
    #[error("the machine refuses a thread: {0}")]
    Machine(#[from] io::Error),
}

impl Coded for SpreadError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoNodes | Self::Twice(_) | Self::SmallArena { .. } => ErrorCode::BadArgument,
            Self::NoneBelow(_) => ErrorCode::NoSuchName,
            Self::Find(error) => error.code(),
            Self::Unreachable { code, .. } => *code,
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

fn listed(nodes: &[(String, String)]) -> String {
    nodes.iter().map(|(name, reason)| format!("\n  {name}: {reason}")).collect()
}

struct Member {
    link: Arc<Link>,
    weight: u32,
    /// `None`: it was there from the beginning.
    joined: Option<Instant>,
    worker: JoinHandle<()>,
}

/// The way to the nodes, for one operation. The links stay open while it exists.
pub(super) struct Way {
    pub links: Vec<Arc<Link>>,
    shared: Arc<Shared>,
}

impl Clone for Way {
    fn clone(&self) -> Self {
        self.shared.state().under_way += 1;
        Self { links: self.links.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.under_way -= 1;
        if state.under_way == 0 {
            self.shared.changed.notify_all();
        }
    }
}

#[derive(Default)]
struct State {
    /// By name. The order is that of the nodes' numbers.
    members: BTreeMap<String, Member>,
    is_closed: bool,
    /// Number of operations under way.
    under_way: usize,
    /// Workers of nodes that have left.
    left: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when the handle is closed, and when no operation is under way.
    changed: Condvar,
    options: SpreadOptions,
    /// When each node had been tried once.
    opened: Mutex<Instant>,
}

/// The nodes of a store.
pub(super) struct Members {
    shared: Arc<Shared>,
    watcher: Mutex<Option<JoinHandle<()>>>,
}

impl Members {
    /// Begins to reach the nodes, and waits until each was tried once.
    pub fn open(nodes: NodeSource, options: SpreadOptions) -> Result<Self, SpreadError> {
        if options.session.arena_bytes < ARENA_BYTES_MIN {
            return Err(SpreadError::SmallArena { bytes: options.session.arena_bytes });
        }
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            options,
            opened: Mutex::new(Instant::now()),
        });
        // If this fails, the workers that have begun end with it.
        let members = Self { shared: Arc::clone(&shared), watcher: Mutex::default() };
        let (first, tried) = channel();
        let watch = match nodes {
            NodeSource::Addresses(addresses) => {
                for address in addresses {
                    shared.join(&address, &address, 1, None, &first)?;
                }
                None
            }
            NodeSource::Below(above) => {
                let watch = shared.options.session.names.watch_nodes(&above)?;
                if watch.seen().is_empty() {
                    return Err(SpreadError::NoneBelow(above));
                }
                shared.follow(&watch.seen(), None, &first)?;
                Some(watch)
            }
        };
        let count = shared.state().members.len();
        if count == 0 {
            return Err(SpreadError::NoNodes);
        }
        drop(first);
        // Each worker sends once, or ends.
        tried.iter().take(count).for_each(drop);
        *shared.opened.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let lost: Vec<_> = shared.state().members.values().filter_map(|member| lost(&member.link)).collect();
        if lost.len() == count {
            let code = code_of(lost.iter().map(|(_, reason)| reason.code));
            let nodes = lost.into_iter().map(|(name, reason)| (name, reason.text)).collect();
            return Err(SpreadError::Unreachable { nodes, code });
        }
        if let Some(watch) = watch {
            let watched = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("blocks-nodes".into());
            let watcher = thread.spawn(move || watched.watch(watch))?;
            *members.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
        }
        Ok(members)
    }

    /// Returns the nodes as they are now, with the way to them. There is none if the handle is closed.
    pub fn now(&self) -> (Nodes, Way) {
        let mut state = self.shared.state();
        state.under_way += 1;
        let way = |links| Way { links, shared: Arc::clone(&self.shared) };
        if state.is_closed {
            return (Nodes::default(), way(Vec::new()));
        }
        let mut nodes = Nodes::new(state.members.iter().map(|(name, member)| (&**name, member.weight)));
        let mut links = Vec::with_capacity(state.members.len());
        let ages = self.shared.ages(&state);
        for (number, member) in state.members.values().enumerate() {
            nodes.set_lost(number, !member.link.is_open());
            nodes.set_near(number, member.link.is_near());
            nodes.set_young(number, ages.is_young(member));
            links.push(Arc::clone(&member.link));
        }
        (nodes, way(links))
    }

    pub fn status(&self) -> Vec<NodeStatus> {
        let state = self.shared.state();
        state.members.values().map(|member| NodeStatus::of(&member.link, member.weight)).collect()
    }

    /// Closes the links when no operation is under way, and waits until the workers have ended.
    pub fn close_and_wait(&self) {
        self.shared.wait_until_idle();
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        let workers = self.shared.close();
        for thread in workers.into_iter().chain(watcher) {
            // A worker that has panicked has reported that, and its requests were answered.
            let _ = thread.join();
        }
    }
}

/// The ages of nodes, to compare.
struct Ages {
    now: Instant,
    lately: Duration,
    /// Stores that were made after this were made after the others.
    after: Option<Instant>,
}

impl Ages {
    fn is_young(&self, member: &Member) -> bool {
        let is_late = |at: &Instant| self.now.duration_since(*at) < self.lately;
        let is_later = |at: &Instant| self.after.is_some_and(|after| *at > after);
        member.joined.as_ref().is_some_and(is_late)
            || member.link.made().as_ref().is_some_and(|at| is_late(at) && is_later(at))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Returns the code of an error that stands for several: the first one for which the caller is not at fault, since another
/// attempt may help then.
fn code_of(codes: impl Iterator<Item = ErrorCode> + Clone) -> ErrorCode {
    let first = codes.clone().next().expect("each node has a reason");
    let mut codes = codes;
    codes.find(|code| code.fault() != Fault::Caller).unwrap_or(first)
}

/// Returns the name of a node that is lost, and the reason.
fn lost(link: &Link) -> Option<(String, Reason)> {
    match link.state() {
        LinkState::Lost(reason) => Some((link.name.clone(), reason)),
        LinkState::Open | LinkState::Closed => None,
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ages(&self, state: &State) -> Ages {
        let oldest = state.members.values().filter_map(|member| member.link.made()).min();
        let opened = *self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let after = oldest.map(|oldest| (oldest + MADE_TOGETHER).min(opened.max(oldest)));
        Ages { now: Instant::now(), lately: self.options.young_for, after }
    }

    /// Adds a node, and starts its worker.
    fn join(
        self: &Arc<Self>,
        name: &str,
        address: &str,
        weight: u32,
        joined: Option<Instant>,
        first: &Sender<()>,
    ) -> Result<(), SpreadError> {
        let mut state = self.state();
        if state.is_closed {
            return Ok(());
        }
        if state.members.contains_key(name) {
            return Err(SpreadError::Twice(name.to_owned()));
        }
        let link = Arc::new(Link::new(name.to_owned(), address.to_owned()));
        let (shared, link_of_worker, first) = (Arc::clone(self), Arc::clone(&link), first.clone());
        let thread = std::thread::Builder::new().name("blocks-node".into());
        let worker = thread.spawn(move || worker::run(&link_of_worker, &shared.options, first))?;
        state.members.insert(name.to_owned(), Member { link, weight, joined, worker });
        Ok(())
    }

    /// Makes the members those that the directory names.
    fn follow(
        self: &Arc<Self>,
        named: &BTreeMap<Name, u64>,
        joined: Option<Instant>,
        first: &Sender<()>,
    ) -> Result<(), SpreadError> {
        {
            let mut state = self.state();
            let is_named = |name: &str| Name::new(name).is_ok_and(|name| named.contains_key(&name));
            let gone: Vec<_> = state.members.extract_if(.., |name, _| !is_named(name)).collect();
            for (_, member) in gone {
                member.link.close();
                state.left.push(member.worker);
            }
            state.left.retain(|worker| !worker.is_finished());
        }
        for (name, memory_bytes) in named {
            let weight = weight_of(*memory_bytes);
            let is_new = match self.state().members.get_mut(name.as_str()) {
                Some(member) => {
                    member.weight = weight;
                    false
                }
                None => true,
            };
            if is_new {
                self.join(name.as_str(), &format!("name:{name}"), weight, joined, first)?;
            }
        }
        Ok(())
    }

    /// Follows the directory until the handle is closed.
    fn watch(self: &Arc<Self>, mut watch: NodesBelow) {
        let (first, _) = channel();
        // The nodes that could not all be followed yet.
        let mut behind = None;
        while !self.state().is_closed {
            match watch.next(WATCHED_FOR) {
                Ok(None) => {}
                Ok(Some(named)) => behind = Some(named),
                // The nodes stay those that were seen last.
                Err(_) => self.rest(),
            }
            // A thread that the machine refuses now may be there at the next attempt.
            behind = behind.filter(|named| self.follow(named, Some(Instant::now()), &first).is_err());
        }
    }

    /// Waits before the next attempt to reach the directory, or until the handle is closed.
    fn rest(&self) {
        let waited = self.changed.wait_timeout_while(self.state(), DIRECTORY_TRIED_EVERY, |it| !it.is_closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets no further operation begin, and waits for those under way.
    fn wait_until_idle(&self) {
        let mut state = self.state();
        state.is_closed = true;
        self.changed.notify_all();
        let waited = self.changed.wait_while(state, |state| state.under_way > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Closes the links. Returns the workers.
    fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.state();
        state.is_closed = true;
        self.changed.notify_all();
        let members = std::mem::take(&mut state.members);
        let mut workers = std::mem::take(&mut state.left);
        for member in members.into_values() {
            member.link.close();
            workers.push(member.worker);
        }
        workers
    }
}

/// Returns the weight of a node that lends this much memory.
fn weight_of(memory_bytes: u64) -> u32 {
    match memory_bytes {
        0 => UNKNOWN_WEIGHT,
        bytes => u32::try_from(bytes >> 20).unwrap_or(u32::MAX).max(1),
    }
}

//! Admission of clients: a connection is made over a Unix socket, which passes the connection's memory, and later the
//! files of its one-shot scopes.
//!
//! ```text
//! Hello ──► Offered ──► Connected
//!              ▲ │ the client has something else at the heap's addresses
//!              └─┘
//! ```
//!
//! A directory assigns the addresses of a named channel's heaps. Before an offer such a connection is in the state
//! `Placing`: a thread that may wait requests the addresses from the directory.

use super::carrier::ServerCarrier;
use super::lending::{Lending, Lent};
use super::make_ring;
use super::messages::{ASKED_BYTES, Asked, Told};
use super::named::{Given, HeapSource, Slot};
use super::one_shot::{OneShotLimits, OneShotTable, OpenFile, Reserve};
use super::shards::{Seat, ServerShards};
use super::shared_heap::{Member, SharedHeap};
use crate::heap::{HEAP_ADDRESSES, HEAP_BYTES_MIN, Heap, HeapPlace, Owner, PAGE_BYTES};
use portcullis_attach::unix::{Listener, Peer, User};
use portcullis_attach::{Accepted, Dismissal, Errand, Handshake, HasRoom, Limits, Outgoing, Reason};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Mapping, MappingError, PrivateView, SealedFile, WatchedEvent};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Number of descriptors at the server for each connection: four for the connection itself, two for the files that it
/// is lent, and two for the files that an ended one was lent.
pub(super) const DESCRIPTORS_EACH: u64 = 8;
/// The server's owner number in each heap.
pub(super) const SERVER: Owner = Owner(1);
/// The client's owner number in the heap of its connection.
pub(super) const CLIENT: Owner = Owner(2);
/// Number of places that a client is offered before it is refused.
pub(super) const PLACES_MAX: u32 = 16;
/// Distance between two places that are tried: heaps up to that size never overlap each other there.
const PLACE_STEP: u64 = 1 << 30;

/// The server's part of a connection whose client shares its memory.
#[derive(Debug)]
pub(super) struct Shared {
    pub heap: Heap,
    pub view: PrivateView,
    pub ring: Mapping,
    pub event: WatchedEvent,
    /// `None`: no method of the server reads one-shot scopes.
    pub one_shot_table: Option<Arc<OneShotTable>>,
    /// The connection's place on the thread that serves it.
    pub seat: Seat,
    /// The client's membership in the heap of all clients, if the channel has one.
    pub member: Option<Member>,
    /// The heap's addresses, if a directory has assigned them.
    pub given: Option<Given>,
}

/// The server's part of a connection whose client is on another machine.
#[derive(Debug)]
pub(super) struct Carried {
    pub arguments: Heap,
    pub view: PrivateView,
    /// A ring of the server's own end.
    pub ring: Mapping,
    pub carrier: Box<dyn ServerCarrier>,
    pub seat: Seat,
}

/// News from the acceptor's thread for one of the server's threads.
#[derive(Debug)]
pub(super) enum News {
    Came(u64, Box<Shared>),
    /// A client that shares no memory with the server.
    #[cfg_attr(not(feature = "across"), expect(dead_code, reason = "all clients share memory"))]
    CameFromAfar(u64, Box<Carried>),
    Left(u64),
}

/// Admits clients.
#[derive(Debug)]
pub(super) struct SocketAdmission {
    pub shards: ServerShards,
    /// Bytes of a connection's heap: the default, and the most that a client may request.
    pub heap_bytes: (u64, u64),
    /// `None`: no method reads one-shot scopes.
    pub one_shots: Option<OneShotLimits>,
    /// The next number of a one-shot scope: no two connections' scopes have the same.
    pub next: AtomicU64,
    /// The heap of all clients.
    pub shared: Option<Arc<SharedHeap>>,
    pub lending: Lending,
    /// Whether methods run in sandboxes: then the memory that connections share is withheld from their trapped code.
    pub withholds: bool,
    /// Source of the heaps' addresses. `None`: they are drawn at random.
    pub source: Option<Arc<HeapSource>>,
}

impl SocketAdmission {
    /// Bytes of the heap for a client that has requested `heap_bytes`. Zero: the default.
    fn length(&self, heap_bytes: u64) -> Result<u64, Reason> {
        let (usual, most) = self.heap_bytes;
        let wanted = if heap_bytes == 0 { usual } else { heap_bytes };
        if wanted > most {
            return Err(format!("a heap of {wanted} bytes, but {most} are allowed (ServerOptions)").into());
        }
        Ok(wanted.max(HEAP_BYTES_MIN).next_multiple_of(PAGE_BYTES))
    }

    /// Creates a connection's heap and ring at places that were found for them.
    pub fn share(
        &self,
        (place, view, one_shot_table): ServerMappings,
        given: Option<Given>,
    ) -> Result<Shared, Reason> {
        let (heap, ring) = (Heap::create(place, SERVER)?, make_ring()?);
        if self.withholds {
            heap.memory().withhold()?;
            ring.withhold()?;
        }
        let seat = self.shards.deal();
        let joined = self.shared.as_ref().map(|shared| shared.join().ok_or("too many use the shared heap"));
        let (event, member) = (WatchedEvent::new(seat.waker())?, joined.transpose()?);
        Ok(Shared { heap, view, ring, event, one_shot_table, seat, member, given })
    }
}

/// The server's mappings at a connection's addresses: copies of the heap's pages, and behind them one-shot scopes.
pub(super) type ServerMappings = (HeapPlace, PrivateView, Option<Arc<OneShotTable>>);

/// Finds addresses that nothing in this process uses. They are drawn at random, so that the addresses of independent
/// servers are probably free in their clients too.
pub(super) fn find_place(length: u64, one_shots: Option<OneShotLimits>) -> Result<ServerMappings, Reason> {
    let all = length + one_shots.map_or(0, OneShotLimits::addresses);
    let places = (HEAP_ADDRESSES.end - HEAP_ADDRESSES.start).saturating_sub(all) / PLACE_STEP;
    let mut last = None;
    for _ in 0..PLACES_MAX {
        let draw =
            getrandom::u64()?.checked_rem(places).ok_or("no range of addresses is as large as that")?;
        let place = HeapPlace::new(HEAP_ADDRESSES.start + draw * PLACE_STEP, length)?;
        match mappings_at(place, one_shots) {
            Ok(mappings) => return Ok(mappings),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| "no addresses are free".into(), Into::into))
}

/// Maps the places at the given addresses, if nothing else in this process uses these addresses.
pub(super) fn mappings_at(
    place: HeapPlace,
    one_shots: Option<OneShotLimits>,
) -> Result<ServerMappings, MappingError> {
    let view = PrivateView::at(place.address, place.length)?;
    let reserve = one_shots.map(|limits| Reserve::behind(place, limits.addresses())).transpose()?;
    let one_shot_table = reserve.zip(one_shots).map(|(reserve, limits)| OneShotTable::new(reserve, limits));
    Ok((place, view, one_shot_table.map(Arc::new)))
}

/// Reason for which the server closes the connection to a peer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Breach {
    /// The server has refused the peer and has sent it the reason.
    #[error("refused: {0}")]
    Refused(String),
    /// The peer sent a message although no more messages are allowed.
    #[error("sent something after its connection was made")]
    AfterTheEnd,
    /// The peer sent a request before it has read the last answer.
    #[error("sent a request before it had received its last answer")]
    Impatient,
}

impl Coded for Breach {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(_) => ErrorCode::ShownOut,
            Self::AfterTheEnd => ErrorCode::SentAfterTheEnd,
            Self::Impatient => ErrorCode::TooMuchSent,
        }
    }
}

#[derive(Debug)]
enum EntryState {
    Hello {
        until: Instant,
    },
    /// The addresses have been requested from the directory. Those of the last offer are kept meanwhile, so that they are
    /// not assigned again.
    Placing {
        heap_bytes: u64,
        left: u32,
        slot: Slot,
        _before: Option<Box<Shared>>,
    },
    Offered {
        until: Instant,
        heap_bytes: u64,
        left: u32,
        shared: Box<Shared>,
    },
    Connected {
        client: u64,
        one_shot_table: Option<Arc<OneShotTable>>,
    },
}

/// The server's state of one client's socket.
pub(super) struct Entry {
    peer: Peer,
    within: Duration,
    state: EntryState,
    outgoing: Option<Vec<u8>>,
    has_descriptors: bool,
    /// The heap of all clients, whose file is sent with the outgoing message.
    heap: Option<Heap>,
    /// The file of a one-shot scope that is sent with the outgoing message.
    file: Option<Arc<SealedFile>>,
    /// The files of the ring and of the heap, which are sent with an offer.
    lent_files: Option<[OwnedFd; 2]>,
    errand: Option<Errand>,
    /// For each errand that is under way, in order: whether the client waits for it.
    errands: VecDeque<bool>,
    /// The heap and the ring that the client was offered last. Dropped after the fields that use them.
    lent: Option<Lent>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("peer", &self.peer).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Entry {
    fn say(&mut self, told: &Told) {
        self.has_descriptors = matches!(told, Told::Offer { .. });
        self.outgoing = Some(told.encode().to_vec());
    }

    /// Finds a place for a heap, and offers the heap.
    fn place(
        &mut self,
        admission: &SocketAdmission,
        heap_bytes: u64,
        left: u32,
        now: Instant,
    ) -> Result<(), Reason> {
        let length = admission.length(heap_bytes)?;
        // Without a directory, the places of the last offer are given back first.
        let before = std::mem::replace(&mut self.state, EntryState::Hello { until: now + self.within });
        let Some(source) = &admission.source else {
            drop(before);
            return self.offer(
                admission,
                (find_place(length, admission.one_shots)?, None),
                (heap_bytes, left),
                now,
            );
        };
        if !source.may_connect(&self.peer) {
            return Err("this user is not on the access list of the channel".into());
        }
        let _before = if let EntryState::Offered { shared, .. } = before { Some(shared) } else { None };
        let slot = Slot::default();
        self.send_on(true, source.errand(length, admission.one_shots, &slot));
        self.state = EntryState::Placing { heap_bytes, left, slot, _before };
        Ok(())
    }

    /// Continues after the directory was requested for a place.
    fn placed(&mut self, outcome: Result<(), Reason>, admission: &SocketAdmission) -> Result<(), Reason> {
        let now = Instant::now();
        let before = std::mem::replace(&mut self.state, EntryState::Hello { until: now + self.within });
        let EntryState::Placing { heap_bytes, left, slot, _before } = before else { return Ok(()) };
        outcome?;
        let placed = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (mappings, given) = placed.ok_or("the directory was not asked")?;
        self.offer(admission, (mappings, Some(given)), (heap_bytes, left), now)
    }

    fn offer(
        &mut self,
        admission: &SocketAdmission,
        (mappings, given): (ServerMappings, Option<Given>),
        (heap_bytes, left): (u64, u32),
        now: Instant,
    ) -> Result<(), Reason> {
        let shared = Box::new(admission.share(mappings, given)?);
        let (lent, files) = admission.lending.lend(self.holder(), &shared.heap, &shared.ring)?;
        (self.lent, self.lent_files) = (Some(lent), Some(files));
        let HeapPlace { address, length } = shared.heap.place();
        let one_shot_bytes = admission.one_shots.map_or(0, OneShotLimits::addresses);
        self.say(&Told::Offer { address: address.get() as u64, length, owner: CLIENT.0, one_shot_bytes });
        self.state = EntryState::Offered { until: now + self.within, heap_bytes, left, shared };
        Ok(())
    }

    fn refuse(&mut self, reason: &Reason) -> Breach {
        let reason = reason.to_string();
        self.say(&Told::Refused(reason.clone()));
        Breach::Refused(reason)
    }

    fn connect(&mut self, admission: &SocketAdmission, client: u64) -> Result<(), Reason> {
        let state = EntryState::Connected { client, one_shot_table: None };
        let EntryState::Offered { shared, .. } = std::mem::replace(&mut self.state, state) else {
            unreachable!("a client says that it has mapped what it was offered")
        };
        self.state = EntryState::Connected { client, one_shot_table: shared.one_shot_table.clone() };
        let welcome = shared.member.as_ref().map_or(Told::Welcome, |member| {
            let HeapPlace { address, length } = member.heap().place();
            self.heap = Some(member.heap().clone());
            Told::WelcomeToAll { address: address.get() as u64, length, owner: member.owner().0 }
        });
        admission.shards.of(client).tell(News::Came(client, shared));
        self.say(&welcome);
        Ok(())
    }

    /// Handles a message about one-shot scopes from a client with a connection. A client whose request is refused gets
    /// the reason, and its calls go on.
    fn hear_of_scopes(&mut self, asked: Option<Asked>, admission: &SocketAdmission) -> Result<(), Breach> {
        let EntryState::Connected { one_shot_table: Some(one_shot_table), .. } = &self.state else {
            return Err(Breach::AfterTheEnd);
        };
        let one_shot_table = Arc::clone(one_shot_table);
        let wants_answer = !matches!(asked, Some(Asked::Release { .. }));
        if wants_answer && (self.outgoing.is_some() || self.errands.contains(&true)) {
            return Err(Breach::Impatient);
        }
        match asked {
            Some(Asked::File { bytes }) => {
                let number = admission.next.fetch_add(1, Ordering::Relaxed);
                match one_shot_table.open(number, bytes) {
                    Ok(OpenFile { file, address }) => {
                        self.say(&Told::File { number, address, length: file.length() });
                        self.file = Some(file);
                    }
                    Err(reason) => self.say(&Told::Refused(reason.to_string())),
                }
            }
            Some(Asked::Sealed { number }) => {
                self.send_on(true, Box::new(move || one_shot_table.take_in(number)));
            }
            Some(Asked::Release { number }) => {
                // From here on the scope does not belong to the connection. Unmapping takes time in proportion to its
                // length.
                if let Some(released) = one_shot_table.release(number) {
                    let unmap = move || {
                        drop(released);
                        Ok(())
                    };
                    self.send_on(false, Box::new(unmap));
                }
            }
            _ => return Err(Breach::AfterTheEnd),
        }
        Ok(())
    }

    fn send_on(&mut self, is_waited_for: bool, errand: Errand) {
        self.errand = Some(errand);
        self.errands.push_back(is_waited_for);
    }
}

impl Handshake for Entry {
    type Listener = Listener;
    type Policy = SocketAdmission;
    type Holder = User;
    type Breach = Breach;

    const IS_CERTAIN_AT_ONCE: bool = true;
    const IS_SLOW: bool = true;
    const HEARD_BYTES: usize = ASKED_BYTES + 1;

    fn begin(_: &Listener, accepted: Accepted<'_>, limits: &Limits) -> Option<Self> {
        let peer = Peer::of(accepted.socket, accepted.listener).ok()?;
        let within = limits.attach_within;
        let state = EntryState::Hello { until: accepted.now + within };
        let (outgoing, heap, file) = (None, None, None);
        let (errand, errands) = (None, VecDeque::new());
        let (has_descriptors, lent_files, lent) = (false, None, None);
        Some(Self {
            peer,
            within,
            state,
            outgoing,
            has_descriptors,
            heap,
            file,
            lent_files,
            errand,
            errands,
            lent,
        })
    }

    fn excuse(_: &Listener, socket: &OwnedFd, reason: &str) {
        let refused = Told::Refused(reason.to_owned()).encode();
        let _ = rustix::net::send(socket, &refused, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn is_slow_to_refuse(listener: &Listener) -> bool {
        listener.takes_descriptors()
    }

    fn retire(listener: Listener) -> Option<OwnedFd> {
        listener.retire()
    }

    fn holder(&self) -> User {
        User { listener: self.peer.listener, user: self.peer.user }
    }

    fn hear(
        &mut self,
        bytes: &[u8],
        admission: &SocketAdmission,
        _: HasRoom<'_, Self>,
        now: Instant,
    ) -> Result<(), Breach> {
        let heard = match (&self.state, Asked::parse(bytes)) {
            (EntryState::Hello { .. }, Some(Asked::Hello { heap_bytes })) => {
                self.place(admission, heap_bytes, PLACES_MAX, now)
            }
            (EntryState::Offered { shared, .. }, Some(Asked::Mapped)) => {
                let client = shared.seat.client();
                self.connect(admission, client)
            }
            (&EntryState::Offered { heap_bytes, left, .. }, Some(Asked::Taken)) if left > 0 => {
                self.place(admission, heap_bytes, left - 1, now)
            }
            (EntryState::Offered { .. }, Some(Asked::Taken)) => {
                Err("all places that were tried are taken in the client's address space".into())
            }
            (EntryState::Hello { .. } | EntryState::Placing { .. } | EntryState::Offered { .. }, _) => {
                Err("the connection request is not of this version: use a client of the server's version"
                    .into())
            }
            (EntryState::Connected { .. }, asked) => return self.hear_of_scopes(asked, admission),
        };
        heard.map_err(|reason| self.refuse(&reason))
    }

    fn take_errand(&mut self) -> Option<Errand> {
        self.errand.take()
    }

    fn errand_done(
        &mut self,
        outcome: Result<(), Reason>,
        admission: &SocketAdmission,
    ) -> Result<(), Breach> {
        // The holder's thread runs errands one after another, so the first of them has ended.
        if self.errands.pop_front() == Some(false) {
            return Ok(());
        }
        if matches!(self.state, EntryState::Placing { .. }) {
            return self.placed(outcome, admission).map_err(|reason| self.refuse(&reason));
        }
        self.say(&outcome.map_or_else(|reason| Told::Refused(reason.to_string()), |()| Told::Held));
        Ok(())
    }

    fn outgoing(&self) -> Outgoing<'_> {
        let Some(bytes) = &self.outgoing else { return Outgoing::default() };
        let descriptors = match (&self.state, &self.lent_files) {
            (EntryState::Offered { shared, .. }, Some([ring, heap])) if self.has_descriptors => {
                let page = shared.event.page().file().expect("it is a file's memory");
                vec![ring.as_fd(), heap.as_fd(), page, shared.event.as_fd()]
            }
            _ => self.file.iter().map(|it| it.descriptor()).chain(self.heap.iter().map(Heap::file)).collect(),
        };
        Outgoing { bytes, descriptors }
    }

    /// Drops the message, which is sent as a whole, with its descriptors.
    fn sent(&mut self, _: usize) {
        self.outgoing = None;
        self.has_descriptors = false;
        (self.file, self.heap, self.lent_files) = (None, None, None);
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state {
            EntryState::Hello { until } | EntryState::Offered { until, .. } => Some(until),
            // The server waits for the directory, and not for the client.
            EntryState::Placing { .. } | EntryState::Connected { .. } => None,
        }
    }

    fn client(&self) -> Option<u64> {
        if let EntryState::Connected { client, .. } = self.state { Some(client) } else { None }
    }

    fn is_attached(&self) -> bool {
        matches!(self.state, EntryState::Connected { .. })
    }

    fn dismiss(&mut self, why: Dismissal) {
        // An offer that was not sent is dropped, with its descriptors.
        self.sent(0);
        self.say(&Told::Refused(why.to_string()));
    }

    fn depart(admission: &SocketAdmission, client: u64) {
        admission.shards.of(client).tell(News::Left(client));
    }
}

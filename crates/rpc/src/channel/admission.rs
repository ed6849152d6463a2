//! How a client comes to have a connection: over a Unix socket that passes the connection's memory.
//!
//! ```text
//! Hello ──► Offered ──► Connected
//!              ▲ │ the client has something else at the heap's addresses
//!              └─┘
//! ```

use super::messages::{ASKED_BYTES, Asked, Told};
use super::{RING_BYTES, make_ring};
use crate::heap::{HEAP_ADDRESSES, HEAP_BYTES_MIN, Heap, HeapPlace, Owner, PAGE_BYTES};
use portcullis_attach::unix::{Listener, Peer, User};
use portcullis_attach::{Accepted, Handshake, HasRoom, Limits, Outgoing, Reason};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Mapping, PrivateView, Waker, WatchedEvent};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Descriptors that a connection takes at the server.
pub(super) const DESCRIPTORS_EACH: u64 = 4;
/// Who the server is in each heap.
pub(super) const SERVER: Owner = Owner(1);
/// Who the client is in the heap of its connection.
const CLIENT: Owner = Owner(2);
/// Places that a client is offered before it is told that there is none.
const PLACES_MAX: u32 = 16;
/// Addresses between two places that are tried: heaps up to that size never overlap each other there.
const PLACE_STEP: u64 = 1 << 30;

/// What a connection shares.
#[derive(Debug)]
pub(super) struct Shared {
    pub heap: Heap,
    pub view: PrivateView,
    pub ring: Mapping,
    pub event: WatchedEvent,
}

/// What the acceptor's thread tells the server's.
#[derive(Debug)]
pub(super) enum News {
    Came(u64, Box<Shared>),
    Left(u64),
}

/// Lets clients in.
#[derive(Debug)]
pub(super) struct Door {
    pub waker: Waker,
    /// Bytes of a connection's heap, and the most that a client may ask for.
    pub heap_bytes: (u64, u64),
    pub news: Arc<Mutex<Vec<News>>>,
    pub next: AtomicU64,
}

impl Door {
    fn tell(&self, news: News) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        self.waker.wake();
    }

    fn share(&self, heap_bytes: u64) -> Result<Shared, Reason> {
        let (usual, most) = self.heap_bytes;
        let wanted = if heap_bytes == 0 { usual } else { heap_bytes };
        if wanted > most {
            return Err(format!("a heap of {wanted} bytes, where {most} are allowed (ServerOptions)").into());
        }
        let wanted = wanted.max(HEAP_BYTES_MIN).next_multiple_of(PAGE_BYTES);
        let (place, view) = find_place(wanted)?;
        let (heap, ring) = (Heap::create(place, SERVER)?, make_ring()?);
        Ok(Shared { heap, view, ring, event: WatchedEvent::new(&self.waker)? })
    }
}

/// Addresses that nothing in this process has. They are drawn at random, so that those of servers which know nothing of each other
/// are probably free in their clients too.
fn find_place(length: u64) -> Result<(HeapPlace, PrivateView), Reason> {
    let places = (HEAP_ADDRESSES.end - HEAP_ADDRESSES.start - length) / PLACE_STEP;
    let mut last = None;
    for _ in 0..PLACES_MAX {
        let draw = getrandom::u64()? % places;
        let place = HeapPlace::new(HEAP_ADDRESSES.start + draw * PLACE_STEP, length)?;
        match PrivateView::at(place.address, length) {
            Ok(view) => return Ok((place, view)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| "no addresses are free".into(), Into::into))
}

/// Why a peer is hung up on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Breach {
    /// It was told why.
    #[error("refused: {0}")]
    Refused(String),
    /// It says something although nothing is to be said any more.
    #[error("sent something after its connection was made")]
    AfterTheEnd,
}

impl Coded for Breach {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(_) => ErrorCode::ShownOut,
            Self::AfterTheEnd => ErrorCode::SentAfterTheEnd,
        }
    }
}

#[derive(Debug)]
enum Step {
    Hello { until: Instant },
    Offered { until: Instant, heap_bytes: u64, left: u32, shared: Box<Shared> },
    Connected(u64),
}

/// One client, until it has its connection.
#[derive(Debug)]
pub(super) struct Entry {
    peer: Peer,
    within: Duration,
    step: Step,
    outgoing: Option<Vec<u8>>,
    has_descriptors: bool,
}

impl Entry {
    fn say(&mut self, told: &Told) {
        self.has_descriptors = matches!(told, Told::Offer { .. });
        self.outgoing = Some(told.encode().to_vec());
    }

    fn offer(&mut self, door: &Door, heap_bytes: u64, left: u32, now: Instant) -> Result<(), Reason> {
        // What was offered before is given back first.
        self.step = Step::Hello { until: now + self.within };
        let shared = Box::new(door.share(heap_bytes)?);
        let HeapPlace { address, length } = shared.heap.place();
        self.say(&Told::Offer { address: address.get() as u64, length, owner: CLIENT.0 });
        self.step = Step::Offered { until: now + self.within, heap_bytes, left, shared };
        Ok(())
    }

    fn refuse(&mut self, reason: &Reason) -> Breach {
        let reason = reason.to_string();
        self.say(&Told::Refused(reason.clone()));
        Breach::Refused(reason)
    }

    fn connect(&mut self, door: &Door) -> Result<(), Reason> {
        let client = door.next.fetch_add(1, Ordering::Relaxed);
        let Step::Offered { shared, .. } = std::mem::replace(&mut self.step, Step::Connected(client)) else {
            unreachable!("a client says that it has mapped what it was offered")
        };
        door.tell(News::Came(client, shared));
        self.say(&Told::Welcome);
        Ok(())
    }
}

impl Handshake for Entry {
    type Listener = Listener;
    type Policy = Door;
    type Holder = User;
    type Breach = Breach;

    const IS_CERTAIN_AT_ONCE: bool = true;
    const IS_SLOW: bool = true;
    const HEARD_BYTES: usize = ASKED_BYTES + 1;

    fn begin(_: &Listener, accepted: Accepted<'_>, limits: &Limits) -> Option<Self> {
        let peer = Peer::of(accepted.socket, accepted.listener).ok()?;
        let within = limits.attach_within;
        let step = Step::Hello { until: accepted.now + within };
        Some(Self { peer, within, step, outgoing: None, has_descriptors: false })
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

    fn hear(&mut self, bytes: &[u8], door: &Door, _: HasRoom<'_, Self>, now: Instant) -> Result<(), Breach> {
        let heard = match (&self.step, Asked::parse(bytes)) {
            (Step::Hello { .. }, Some(Asked::Hello { heap_bytes })) => {
                self.offer(door, heap_bytes, PLACES_MAX, now)
            }
            (Step::Offered { .. }, Some(Asked::Mapped)) => self.connect(door),
            (&Step::Offered { heap_bytes, left, .. }, Some(Asked::Taken)) if left > 0 => {
                self.offer(door, heap_bytes, left - 1, now)
            }
            (Step::Offered { .. }, Some(Asked::Taken)) => {
                Err("all places that were tried are taken in the client's address space".into())
            }
            (Step::Hello { .. } | Step::Offered { .. }, _) => {
                Err("that was no connection of this version: use a client of the server's version".into())
            }
            (Step::Connected(_), _) => return Err(Breach::AfterTheEnd),
        };
        heard.map_err(|reason| self.refuse(&reason))
    }

    fn outgoing(&self) -> Outgoing<'_> {
        let Some(bytes) = &self.outgoing else { return Outgoing::default() };
        let descriptors = match &self.step {
            Step::Offered { shared, .. } if self.has_descriptors => {
                let Shared { heap, ring, event, .. } = &**shared;
                let file = |memory| Mapping::file(memory).expect("it is a file's memory");
                vec![file(ring), heap.file(), file(event.page()), event.as_fd()]
            }
            _ => Vec::new(),
        };
        Outgoing { bytes, descriptors }
    }

    /// A message is sent as a whole.
    fn sent(&mut self, _: usize) {
        self.outgoing = None;
        self.has_descriptors = false;
    }

    fn deadline(&self) -> Option<Instant> {
        match self.step {
            Step::Hello { until } | Step::Offered { until, .. } => Some(until),
            Step::Connected(_) => None,
        }
    }

    fn client(&self) -> Option<u64> {
        if let Step::Connected(client) = self.step { Some(client) } else { None }
    }

    fn is_attached(&self) -> bool {
        matches!(self.step, Step::Connected(_))
    }

    fn depart(door: &Door, client: u64) {
        door.tell(News::Left(client));
    }
}

const _: () = assert!(RING_BYTES.is_multiple_of(4096));

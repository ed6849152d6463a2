//! A client's side of a mailbox: it sends requests from the ring of its end, and copies replies into that ring.

use super::incoming::Incoming;
use super::mailbox::{CANCELS_AT, CLOCK_AT, HeapHalves, REQUEST_BYTES};
use super::outgoing::Outgoing;
use super::permissions::Permissions;
use super::sealed::{RETURNED_MAX, SealedRequest, Turn};
use super::server_clock::ServerClock;
use crate::ScopeRef;
use crate::channel::ends::{DEPTH, LINE_BYTES, REPLIES, REQUESTS, RequestLine, Returned, Writer};
use crate::channel::now;
use crate::heap::Heap;
use portcullis::{Clock, Error, ObjectRef, Session};
use portcullis_memory::{Bytes, Mapping};
use std::time::{Duration, Instant};

/// The shortest pause that a thread sleeps for: a shorter sleep takes that long too.
const SLEEP_MIN: Duration = Duration::from_micros(60);

/// State of a connection on the client's own machine.
#[derive(Debug)]
pub(super) struct Local {
    pub arguments: Heap,
    pub results: Heap,
    /// The longest result that is fetched, in bytes.
    pub results_max: u64,
    /// The client's end writes requests here, and reads replies.
    pub ring: Mapping,
    /// Scopes of results that the client does not need any more.
    pub returned: Returned,
}

/// The mailbox that the server has given to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mailbox {
    pub object: ObjectRef,
    pub halves: HeapHalves,
    pub clock: ServerClock,
}

/// A client's side of a mailbox.
#[derive(Debug)]
pub(super) struct ClientMailbox {
    session: Session,
    halves: HeapHalves,
    permissions: Permissions,
    local: Local,
    replies: Writer,
    turn: Turn,
    outgoing: Outgoing,
    incoming: Incoming,
    is_gone: bool,
}

impl ClientMailbox {
    /// Acquires the permissions over a mailbox.
    ///
    /// # Errors
    /// The node refuses.
    pub fn open(
        mut session: Session,
        Mailbox { object, halves, mut clock }: Mailbox,
        local: Local,
    ) -> Result<Self, Error> {
        let permissions = Permissions::acquire(&mut session, object, halves)?;
        let mut said = [0; 8];
        session.read(&permissions.reading, CLOCK_AT, &mut said)?;
        clock.hear(now(), u64::from_ne_bytes(said));
        Ok(Self {
            session,
            halves,
            permissions,
            replies: Writer::new(local.ring.clone(), REPLIES, DEPTH),
            turn: Turn::FIRST,
            outgoing: Outgoing::default(),
            incoming: Incoming::new(halves, local.results_max, clock, Instant::now()),
            local,
            is_gone: false,
        })
    }

    /// Runs an action that may fail. A failure ends the connection: the state of its requests is unknown then.
    fn attempt<T: Default>(&mut self, action: impl FnOnce(&mut Self) -> Result<T, Error>) -> T {
        if self.is_gone {
            return T::default();
        }
        action(self).unwrap_or_else(|_| {
            self.is_gone = true;
            T::default()
        })
    }

    fn go_on_sending(&mut self) -> Result<(), Error> {
        let Self { session, permissions, local, outgoing, .. } = self;
        outgoing.go_on(session, permissions, &local.arguments)
    }

    /// Renews the permissions that are due, so that they stay alive for some time.
    fn renew(&mut self) -> Result<(), Error> {
        self.permissions.renew_reading(&mut self.session)?;
        if self.permissions.is_writing_due(self.session.now()) {
            while !self.outgoing.is_empty() {
                if self.session.poll() == 0 {
                    std::thread::yield_now();
                }
                self.session.client().over().map_or(Ok(()), Err)?;
                self.go_on_sending()?;
            }
            self.permissions.renew_writing(&mut self.session)?;
        }
        Ok(())
    }

    fn send_line(&mut self, place: u64, scope: ScopeRef) -> Result<(), Error> {
        self.renew()?;
        let [head, words @ ..]: [u64; 7] = self.local.ring.load_words(place);
        let line = RequestLine::read(u32::try_from(head >> 32).unwrap_or(0), words);
        // Zero stands for no deadline.
        let deadline =
            if line.deadline == 0 { 0 } else { self.incoming.clock().of(line.deadline, now()).max(1) };
        let line = RequestLine { deadline, ..line };
        // A scope that is not in the heap is not sent: the server does not find it there either.
        let offset = self.halves.arguments.offset(scope.address, scope.length).filter(|_| scope.length > 0);
        offset.into_iter().for_each(|offset| self.outgoing.add_arguments(offset, scope.length));
        let mut returned = [0; RETURNED_MAX];
        self.local.returned.take(&mut returned);
        let words = SealedRequest { line, returned }.seal(self.turn);
        self.outgoing.add_request(REQUEST_BYTES * self.turn.index(), words, offset.is_some());
        self.turn = self.turn.next();
        self.incoming.await_one(Instant::now());
        self.go_on_sending()
    }

    fn bring_replies(&mut self) -> Result<(), Error> {
        self.permissions.renew_reading(&mut self.session)?;
        self.session.poll();
        self.go_on_sending()?;
        loop {
            let Self { session, permissions, local, incoming, .. } = self;
            let Some(line) = incoming.go_on(session, permissions, &local.results, Instant::now())? else {
                break;
            };
            self.replies.write(line.status, line.words());
        }
        self.session.client().over().map_or(Ok(()), Err)
    }

    fn wait_for(&mut self, most: Duration) -> Result<(), Error> {
        let until = Instant::now() + most;
        match self.incoming.next() {
            Some(Ok(operation)) => {
                let (by, clock, mut ended) = (self.session.at(until), *self.session.clock(), None);
                self.session.wait_until_by(by, |client| {
                    ended = client.take(operation);
                    (ended.is_some() || clock.now() >= by).then_some(())
                })?;
                ended.into_iter().for_each(|outcome| self.incoming.has_ended(operation, outcome));
                Ok(())
            }
            next => {
                let until = next.and_then(Result::err).map_or(until, |next| next.min(until));
                let left = until.saturating_duration_since(Instant::now());
                if left > SLEEP_MIN {
                    std::thread::sleep(left);
                } else {
                    std::thread::yield_now();
                }
                Ok(())
            }
        }
    }
}

/// The operations of a carrier.
impl ClientMailbox {
    pub fn send(&mut self, place: u64, scope: ScopeRef) {
        self.attempt(|it| it.send_line(place, scope));
    }

    pub fn send_cancelled(&mut self, place: u64, call: u64) {
        let line = (place - REQUESTS) / LINE_BYTES;
        self.attempt(|it| {
            it.renew()?;
            it.outgoing.add_cancel(CANCELS_AT + 8 * line, call);
            it.go_on_sending()
        });
    }

    pub fn bring(&mut self) -> bool {
        self.attempt(Self::bring_replies);
        !self.is_gone
    }

    pub fn wait(&mut self, most: Duration) {
        self.attempt(|it| it.wait_for(most));
    }

    /// Whether a write has begun that does not arrive unless the client continues it.
    pub fn needs_help(&mut self) -> bool {
        !self.is_gone
            && (self.outgoing.has_waiting()
                || !(self.outgoing.is_empty() || self.session.client().keeps_order()))
    }

    /// Continues the writes that have begun, and keeps the permissions alive. Returns the time after which they must be
    /// renewed. `None`: the connection has ended.
    pub fn tend(&mut self) -> Option<Duration> {
        self.attempt(|it| {
            it.renew()?;
            it.session.poll();
            it.go_on_sending()
        });
        (!self.is_gone).then(|| self.permissions.renewed_every())
    }
}

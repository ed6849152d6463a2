//! The server's side of one client's connection: requests and answers.
//!
//! A peer breaks the rules if it sends bytes that are not a message, sends a request before it has read its last
//! answer, or begins with something other than a hello. It is sent the reason and hung up on.

use super::messages::{
    Asked, MESSAGE_BYTES_MAX, Question, Reply, SentError, SentFound, Told, VERSION, decode, encode, quota,
    sent_range, sent_space, sent_usage,
};
use super::parts::{Parts, names};
use super::server::{LEASES_MAX, Parked, ServerState, Speaker};
use super::watching::{Subject, Watched};
use crate::addresses::HeapRange;
use crate::directory::Directory;
use crate::embedded::Embedded;
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::name::Name;
use crate::quota::{Limited, QuotaError};
use portcullis_attach::unix::{Listener, Peer, User};
use portcullis_attach::{Accepted, Dismissal, Handshake, HasRoom, Limits, Outgoing};
use portcullis_protocol::TenantName;
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::time::{Duration, Instant};

/// Reason for which the server hangs up on a peer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Breach {
    #[error("it sent a malformed message")]
    NoMessage,
    #[error("its first message was not the hello of this version")]
    NoHello,
    #[error("its user has no number here")]
    Nobody,
    #[error("it sent a request before it had received its last answer")]
    Impatient,
    #[error("it sent a request on a watch, or waited without a watch")]
    OutOfTurn,
}

#[derive(Debug)]
enum ConversationState {
    Hello { until: Instant },
    Client { client: u64, speaker: Speaker },
}

/// A watch. A connection with a watch does nothing else.
#[derive(Debug)]
struct Watch {
    watched: Watched,
    directory: Embedded,
    parked: Parked,
    /// The number of the pending request.
    waiting: Option<u32>,
}

/// One client.
#[derive(Debug)]
pub(super) struct Conversation {
    peer: Peer,
    state: ConversationState,
    outgoing: Option<Vec<u8>>,
    /// The remaining part of a list, for further requests.
    rest: Option<Parts>,
    watch: Option<Watch>,
}

impl Conversation {
    fn user(&self) -> User {
        User { listener: self.peer.listener, user: self.peer.user }
    }

    fn say(&mut self, number: u32, told: Told) {
        self.outgoing = Some(encode(&Reply { number, told }));
    }

    fn shown_out(&mut self, number: u32, breach: Breach) -> Result<(), Breach> {
        // The peer's last answer has precedence.
        if self.outgoing.is_none() {
            self.say(number, Told::No(SentError::Refused(breach.to_string())));
        }
        Err(breach)
    }

    fn greet(&mut self, question: &Question, server: &ServerState) -> Result<(), Breach> {
        if question.asked != (Asked::Hello { version: VERSION }) {
            return self.shown_out(question.number, Breach::NoHello);
        }
        let Some((client, speaker)) = server.let_in(&self.peer) else {
            return self.shown_out(question.number, Breach::Nobody);
        };
        self.state = ConversationState::Client { client, speaker };
        let space = sent_space(&server.directory.space());
        self.say(question.number, Told::Welcome { version: VERSION, space });
        Ok(())
    }

    fn watch(&mut self, number: u32, subject: Subject, server: &ServerState) {
        let mut watched = Watched::new(subject);
        let (told, rest) = watched.look(&server.directory).expect("nothing was seen before");
        self.rest = rest;
        let (directory, parked) = (server.directory.clone(), server.parked.clone());
        self.watch = Some(Watch { watched, directory, parked, waiting: None });
        self.say(number, told);
    }

    fn wait(&mut self, number: u32, client: u64) -> Result<(), Breach> {
        match &mut self.watch {
            Some(watch) if watch.waiting.is_none() => {
                watch.waiting = Some(number);
                // The client is entered before the look, so that a change in between is reported.
                watch.parked.lock().insert(client);
                self.look();
                Ok(())
            }
            _ => self.shown_out(number, Breach::OutOfTurn),
        }
    }

    /// Sends the present value to a client that waits for one, if it has changed.
    fn look(&mut self) {
        let ConversationState::Client { client, .. } = self.state else { return };
        let Some(watch) = &mut self.watch else { return };
        let Some(number) = watch.waiting else { return };
        let Some((told, rest)) = watch.watched.look(&watch.directory) else { return };
        watch.waiting = None;
        watch.parked.lock().remove(&client);
        self.rest = rest;
        self.say(number, told);
    }

    /// Returns the next part of a list.
    fn more(&mut self) -> Option<Told> {
        self.rest.take().map(|parts| self.list(parts))
    }

    /// Returns the next part of a watched list. `None`: the connection watches none, or waits for a change.
    fn more_names(&self, after: Result<Name, DirectoryError>) -> Option<Result<Told, DirectoryError>> {
        let Watch { watched, directory, waiting, .. } = self.watch.as_ref()?;
        let after = match after {
            Ok(after) => after,
            Err(error) => return Some(Err(error)),
        };
        let told = watched.names_after(directory, Some(&after)).filter(|_| waiting.is_none());
        told.map(Ok)
    }

    fn list(&mut self, parts: Parts) -> Told {
        let (told, rest) = parts.first();
        self.rest = rest;
        told
    }

    fn answer(
        &mut self,
        question: Question,
        client: u64,
        speaker: Speaker,
        server: &ServerState,
    ) -> Result<(), Breach> {
        let Question { number, asked } = question;
        let is_watch = self.watch.is_some();
        let asker = Asker { client, speaker, server };
        if asked != Asked::More {
            self.rest = None;
        }
        let told = match asked {
            Asked::More => match self.more() {
                Some(told) => Ok(told),
                None => return self.shown_out(number, Breach::OutOfTurn),
            },
            Asked::Wait => return self.wait(number, client),
            Asked::MoreNames { after } => match self.more_names(asker.name(&after)) {
                Some(told) => told,
                None => return self.shown_out(number, Breach::OutOfTurn),
            },
            _ if is_watch => return self.shown_out(number, Breach::OutOfTurn),
            Asked::Hello { .. } => return self.shown_out(number, Breach::NoHello),
            Asked::Watch { tenant, name } => match asker.may_speak_for(&tenant).and(asker.name(&name)) {
                Ok(name) => {
                    self.watch(number, Subject::Name(tenant, name), server);
                    return Ok(());
                }
                Err(error) => Err(error),
            },
            Asked::WatchList { tenant, above } => {
                match asker.may_speak_for(&tenant).and(asker.name(&above)) {
                    Ok(above) => {
                        self.watch(number, Subject::Names(tenant, above), server);
                        return Ok(());
                    }
                    Err(error) => Err(error),
                }
            }
            Asked::WatchHeap { lease, address } => {
                match asker.may_watch(self.user(), LeaseId(lease), address) {
                    Ok(()) => {
                        self.watch(number, Subject::Heap(address), server);
                        return Ok(());
                    }
                    Err(error) => Err(error),
                }
            }
            Asked::Heaps(lease) => asker.heaps(LeaseId(lease)).map(|heaps| self.list(Parts::of_heaps(heaps))),
            Asked::Reclaim => asker.reclaim().map(|heaps| self.list(Parts::of_heaps(heaps))),
            Asked::List { tenant, above, after } => asker.names(&tenant, &above, after.as_deref()),
            asked => asker.ask(asked),
        };
        self.say(number, told.unwrap_or_else(|error| Told::No(SentError::of(&error))));
        Ok(())
    }
}

/// The client that sent a request.
#[derive(Clone, Copy)]
struct Asker<'a> {
    client: u64,
    speaker: Speaker,
    server: &'a ServerState,
}

impl Asker<'_> {
    fn may_speak_for(self, tenant: &TenantName) -> Result<(), DirectoryError> {
        match self.speaker {
            Speaker::Only(own, user) if own != *tenant => {
                Err(DirectoryError::NotThisTenant { tenant: *tenant, user })
            }
            _ => Ok(()),
        }
    }

    fn may_keep(self) -> Result<(), DirectoryError> {
        match self.speaker {
            Speaker::Anybody => Ok(()),
            Speaker::Only(..) => {
                Err(refused("only the directory's own process sets quotas and reclaims heaps"))
            }
        }
    }

    fn lease(self, id: u64) -> Result<Lease, DirectoryError> {
        let id = LeaseId(id);
        // A connection may not use the lease of another one.
        self.server.lease(self.client, id).ok_or(DirectoryError::LeaseEnded(id))
    }

    fn name(self, text: &str) -> Result<Name, DirectoryError> {
        Name::new(text).map_err(|error| refused(&error.to_string()))
    }

    fn names(self, tenant: &TenantName, above: &str, after: Option<&str>) -> Result<Told, DirectoryError> {
        self.may_speak_for(tenant)?;
        let after = after.map(|after| self.name(after)).transpose()?;
        Ok(names(&self.server.directory, tenant, &self.name(above)?, after.as_ref()))
    }

    fn may_watch(self, user: User, lease: LeaseId, address: u64) -> Result<(), DirectoryError> {
        let lease = self.server.lease_of(user, lease).ok_or(DirectoryError::LeaseEnded(lease))?;
        let heaps = self.server.directory.heaps(&lease)?;
        let holds = heaps.iter().any(|range| range.address == address);
        if holds { Ok(()) } else { Err(DirectoryError::NoSuchHeap(address)) }
    }

    fn heaps(self, lease: LeaseId) -> Result<Vec<HeapRange>, DirectoryError> {
        self.server.directory.heaps(&self.lease(lease.0)?)
    }

    fn reclaim(self) -> Result<Vec<HeapRange>, DirectoryError> {
        self.may_keep()?;
        self.server.directory.reclaim()
    }

    fn open_lease(self, tenant: &TenantName, time_to_live: Duration) -> Result<Told, DirectoryError> {
        self.may_speak_for(tenant)?;
        if !self.server.has_room(self.client) {
            let most = LEASES_MAX as u64;
            let (tenant, limited) = (*tenant, Limited::Leases);
            return Err(QuotaError { tenant, limited, most, used: most, asked: 1 }.into());
        }
        let lease = self.server.directory.open_lease(tenant, time_to_live)?;
        let milliseconds =
            u64::try_from(lease.time_to_live().as_millis()).expect("leases are of a day at most");
        let id = lease.id().0;
        self.server.gives(self.client, lease);
        Ok(Told::Lease { id, milliseconds })
    }

    fn ask(self, asked: Asked) -> Result<Told, DirectoryError> {
        let directory = &self.server.directory;
        match asked {
            Asked::OpenLease { tenant, milliseconds } => {
                return self.open_lease(&tenant, Duration::from_millis(milliseconds));
            }
            Asked::KeepAlive(lease) => directory.keep_alive(&self.lease(lease)?)?,
            Asked::EndLease(lease) => {
                if let Ok(lease) = self.lease(lease) {
                    directory.end_lease(&lease)?;
                    self.server.takes(self.client, lease.id());
                }
            }
            Asked::Register { lease, name, entry } => {
                let entry = entry.read().map_err(|why| refused(&why))?;
                directory.register(&self.lease(lease)?, &self.name(&name)?, &entry)?;
            }
            Asked::Withdraw { lease, name } => {
                directory.withdraw(&self.lease(lease)?, &self.name(&name)?)?;
            }
            Asked::LookUp { tenant, name } => {
                self.may_speak_for(&tenant)?;
                let found = directory.look_up(&tenant, &self.name(&name)?)?;
                return Ok(Told::Found(SentFound::of(&found)));
            }
            Asked::CreateHeap { lease, bytes, others } => {
                let others = others.read().map_err(|why| refused(&why))?;
                let range = directory.create_heap(&self.lease(lease)?, bytes, &others)?;
                return Ok(Told::Heap(sent_range(range)));
            }
            Asked::HoldHeap { lease, address } => {
                return Ok(Told::Heap(sent_range(directory.hold_heap(&self.lease(lease)?, address)?)));
            }
            Asked::ReleaseHeap { lease, address } => directory.release_heap(&self.lease(lease)?, address)?,
            Asked::SetQuota { tenant, quota: numbers } => {
                self.may_keep()?;
                directory.set_quota(tenant.as_ref(), quota(numbers))?;
            }
            Asked::Usage(lease) => return Ok(Told::Usage(sent_usage(directory.usage(&self.lease(lease)?)?))),
            _ => return Err(refused("the request is not allowed at this time")),
        }
        Ok(Told::Done)
    }
}

fn refused(why: &str) -> DirectoryError {
    // The client knows the address to which it sent the request.
    DirectoryError::Refused { at: String::new(), why: why.to_owned() }
}

impl Handshake for Conversation {
    type Listener = Listener;
    type Policy = ServerState;
    type Holder = User;
    type Breach = Breach;

    const IS_CERTAIN_AT_ONCE: bool = true;
    const IS_SLOW: bool = true;
    /// Longer messages mean nothing, and are cut off.
    const HEARD_BYTES: usize = MESSAGE_BYTES_MAX + 1;

    fn begin(_: &Listener, accepted: Accepted<'_>, limits: &Limits) -> Option<Self> {
        let peer = Peer::of(accepted.socket, accepted.listener).ok()?;
        let state = ConversationState::Hello { until: accepted.now + limits.attach_within };
        Some(Self { peer, state, outgoing: None, rest: None, watch: None })
    }

    fn excuse(_: &Listener, socket: &OwnedFd, reason: &str) {
        let told = Told::No(SentError::Refused(reason.to_owned()));
        let _ = rustix::net::send(
            socket,
            &encode(&Reply { number: 0, told }),
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        );
    }

    fn is_slow_to_refuse(listener: &Listener) -> bool {
        listener.takes_descriptors()
    }

    fn retire(listener: Listener) -> Option<OwnedFd> {
        listener.retire()
    }

    fn holder(&self) -> User {
        self.user()
    }

    fn hear(
        &mut self,
        bytes: &[u8],
        server: &ServerState,
        _: HasRoom<'_, Self>,
        _: Instant,
    ) -> Result<(), Breach> {
        if self.outgoing.is_some() {
            return Err(Breach::Impatient);
        }
        let fits = bytes.len() <= MESSAGE_BYTES_MAX;
        let Some(question) = fits.then(|| decode::<Question>(bytes)).flatten() else {
            return self.shown_out(0, Breach::NoMessage);
        };
        match self.state {
            ConversationState::Hello { .. } => self.greet(&question, server),
            ConversationState::Client { client, speaker } => self.answer(question, client, speaker, server),
        }
    }

    /// Notes that the directory has changed.
    fn say(&mut self, _: &[u8]) -> Result<(), Breach> {
        if self.outgoing.is_none() {
            self.look();
        }
        Ok(())
    }

    fn outgoing(&self) -> Outgoing<'_> {
        let bytes = self.outgoing.as_deref().unwrap_or_default();
        Outgoing { bytes, descriptors: Vec::new() }
    }

    /// Notes that the message has been sent. A message is sent as a whole.
    fn sent(&mut self, _: usize) {
        self.outgoing = None;
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state {
            ConversationState::Hello { until } => Some(until),
            ConversationState::Client { .. } => None,
        }
    }

    fn client(&self) -> Option<u64> {
        match self.state {
            ConversationState::Client { client, .. } => Some(client),
            ConversationState::Hello { .. } => None,
        }
    }

    fn is_attached(&self) -> bool {
        matches!(self.state, ConversationState::Client { .. })
    }

    fn dismiss(&mut self, why: Dismissal) {
        // No request has this number. It is also the number of a refusal for lack of room.
        let told = Told::No(SentError::Refused(why.to_string()));
        self.outgoing = Some(encode(&Reply { number: 0, told }));
    }

    fn depart(server: &ServerState, client: u64) {
        server.depart(client);
    }
}

//! A client of the directory of another process of this machine.

use super::messages::{
    Asked, MESSAGE_BYTES_MAX, Question, Reply, SentEntry, SentRange, Told, VERSION, decode, encode, range,
    said_of_space, sent_quota, sent_space, sent_who, usage,
};
use crate::addresses::{HeapRange, Space};
use crate::clock;
use crate::directory::{Directory, Watch};
use crate::entry::{Entry, Found, Who};
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::name::Name;
use crate::quota::{Quota, Usage};
use portcullis_attach::unix::{MessageError, MessageSocket};
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A directory that another process of this machine serves: see [`Server`](crate::Server). Clones share the same
/// directory and the same connection.
///
/// If the connection breaks, the next call makes another one; the leases of the broken connection have ended.
#[derive(Clone, Debug)]
pub struct Remote(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: ServerAddress,
    line: Mutex<Option<Line>>,
}

/// The server's address, and the parameters for it.
#[derive(Clone, Debug)]
struct ServerAddress {
    path: PathBuf,
    patience: Duration,
    space: Space,
}

/// One connection.
#[derive(Debug)]
struct Line {
    socket: MessageSocket,
    /// The number of the last request.
    number: u32,
}

/// Reason for which there is no answer.
#[derive(Debug)]
enum RequestError {
    /// The connection may still be good: an answer may come late.
    Silent,
    /// The connection has ended, or received data is not valid.
    Broken(DirectoryError),
}

impl ServerAddress {
    fn away(&self, why: impl fmt::Display, may_have_happened: bool) -> DirectoryError {
        DirectoryError::Away { at: self.at(), why: why.to_string(), may_have_happened }
    }

    fn at(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    fn nonsense(&self) -> DirectoryError {
        DirectoryError::Nonsense(format!(
            "the peer at {} is not a directory of this version",
            self.path.display()
        ))
    }

    /// Makes a new connection.
    fn dial(&self, until: Instant) -> Result<Line, DirectoryError> {
        let socket = MessageSocket::connect(&self.path, until).map_err(|error| self.away(error, false))?;
        let mut line = Line { socket, number: 0 };
        let hello = Asked::Hello { version: VERSION };
        let told = line.ask(self, hello, until).map_err(|error| match error {
            RequestError::Silent => self.away("it did not answer in time", false),
            RequestError::Broken(error) => error,
        })?;
        match told {
            Told::Welcome { version: VERSION, space } if space == sent_space(&self.space) => Ok(line),
            Told::Welcome { version: VERSION, space } => Err(DirectoryError::OtherSpace {
                stored: said_of_space(space),
                given: said_of_space(sent_space(&self.space)),
            }),
            Told::No(error) => Err(error.read(&self.at())),
            _ => Err(self.nonsense()),
        }
    }
}

impl Line {
    fn say(&mut self, server: &ServerAddress, asked: Asked) -> Result<u32, RequestError> {
        self.number = self.number.wrapping_add(1);
        let question = Question { number: self.number, asked };
        let said = self.socket.say(&encode(&question));
        said.map_err(|error| match error {
            MessageError::Silent => RequestError::Silent,
            error => RequestError::Broken(server.away(error, true)),
        })?;
        Ok(self.number)
    }

    /// Receives the answer to a request. Late answers to earlier requests are ignored.
    fn hear(&self, server: &ServerAddress, number: u32, until: Instant) -> Result<Told, RequestError> {
        loop {
            let heard = self.socket.hear_until(MESSAGE_BYTES_MAX, until);
            let (bytes, _) = heard.map_err(|error| match error {
                MessageError::Silent => RequestError::Silent,
                error => RequestError::Broken(server.away(error, true)),
            })?;
            if bytes.is_empty() {
                return Err(RequestError::Broken(server.away("it has closed the connection", true)));
            }
            match decode::<Reply>(&bytes) {
                Some(Reply { number: of, told }) if of == number => return Ok(told),
                // The server has no room for more connections.
                Some(Reply { number: 0, told: Told::No(error) }) => {
                    return Err(RequestError::Broken(error.read(&server.at())));
                }
                Some(Reply { number: of, .. }) if number.wrapping_sub(of) < u32::MAX / 2 => {}
                _ => return Err(RequestError::Broken(server.nonsense())),
            }
        }
    }

    fn ask(&mut self, server: &ServerAddress, asked: Asked, until: Instant) -> Result<Told, RequestError> {
        let number = self.say(server, asked)?;
        self.hear(server, number, until)
    }
}

impl Remote {
    /// Connects to the directory that is served at this path. It allocates the addresses of `space`; all its users must
    /// give the same. Each call takes at most `patience`.
    ///
    /// # Errors
    /// No process serves a directory there, it does not admit this process, or it allocates other addresses.
    pub fn connect(path: &Path, patience: Duration, space: Space) -> Result<Self, DirectoryError> {
        let server = ServerAddress { path: path.to_owned(), patience, space };
        let line = server.dial(clock::now() + patience)?;
        Ok(Self(Arc::new(Shared { server, line: Mutex::new(Some(line)) })))
    }

    fn ask(&self, asked: Asked) -> Result<Told, DirectoryError> {
        let mut told = self.ask_all(asked)?;
        told.pop().ok_or_else(|| self.0.server.nonsense())
    }

    /// Sends a request, and then requests the parts that did not fit into the answer.
    fn ask_all(&self, asked: Asked) -> Result<Vec<Told>, DirectoryError> {
        let Shared { server, line } = &*self.0;
        let until = clock::now() + server.patience;
        let changes = !matches!(
            asked,
            Asked::LookUp { .. }
                | Asked::List { .. }
                | Asked::Heaps(_)
                | Asked::Usage(_)
                | Asked::KeepAlive(_)
        );
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        let there = match &mut *line {
            Some(there) => there,
            none => none.insert(server.dial(until)?),
        };
        let told = ask_all_of(there, server, asked, until);
        match told {
            Ok(told) => Ok(told),
            Err(RequestError::Silent) => Err(server.away("it did not answer in time", changes)),
            Err(RequestError::Broken(error)) => {
                *line = None;
                Err(match error {
                    DirectoryError::Away { at, why, .. } => {
                        DirectoryError::Away { at, why, may_have_happened: changes }
                    }
                    other => other,
                })
            }
        }
    }

    fn done(&self, asked: Asked) -> Result<(), DirectoryError> {
        match self.ask(asked)? {
            Told::Done => Ok(()),
            other => Err(self.no(other)),
        }
    }

    fn heap(&self, asked: Asked) -> Result<HeapRange, DirectoryError> {
        match self.ask(asked)? {
            Told::Heap(heap) => Ok(range(heap)),
            other => Err(self.no(other)),
        }
    }

    fn list(&self, asked: Asked) -> Result<Vec<HeapRange>, DirectoryError> {
        let mut all = Vec::new();
        for told in self.ask_all(asked)? {
            match told {
                Told::Heaps { heaps, .. } => all.extend(heaps.into_iter().map(|heap: SentRange| range(heap))),
                other => return Err(self.no(other)),
            }
        }
        Ok(all)
    }

    /// Returns the error for an answer other than the expected one.
    fn no(&self, told: Told) -> DirectoryError {
        no(&self.0.server, told)
    }

    fn watch_by<T>(&self, begin: Asked, see: See<T>) -> Result<Watching<T>, DirectoryError> {
        let mut watching = Watching { server: self.0.server.clone(), begin, see, line: None, seen: None };
        let until = clock::now() + self.0.server.patience;
        watching.seen = Some(watching.begin(until)?);
        Ok(watching)
    }
}

fn no(server: &ServerAddress, told: Told) -> DirectoryError {
    match told {
        Told::No(error) => error.read(&server.at()),
        _ => server.nonsense(),
    }
}

/// Limit beyond the number of parts of every list.
const PARTS_MAX: usize = 100_000;

fn ask_all_of(
    line: &mut Line,
    server: &ServerAddress,
    asked: Asked,
    until: Instant,
) -> Result<Vec<Told>, RequestError> {
    let mut all = vec![line.ask(server, asked.clone(), until)?];
    more(line, server, &asked, &mut all, until)?;
    Ok(all)
}

/// Requests the parts of an answer that follow the first one. `asked` is the request, or that with which the watch began.
fn more(
    line: &mut Line,
    server: &ServerAddress,
    asked: &Asked,
    all: &mut Vec<Told>,
    until: Instant,
) -> Result<(), RequestError> {
    while let Some(next) = request_for_more(asked, all.last()) {
        if all.len() >= PARTS_MAX {
            return Err(RequestError::Broken(server.nonsense()));
        }
        all.push(line.ask(server, next, until)?);
    }
    Ok(())
}

/// Returns the request for the part that follows this one. `None`: it is the last.
fn request_for_more(asked: &Asked, part: Option<&Told>) -> Option<Asked> {
    match part? {
        Told::Heaps { is_more: true, .. } | Told::Holders { is_more: true, .. } => Some(Asked::More),
        Told::Names { names, is_more: true } => {
            let after = names.last()?.0.clone();
            Some(match asked {
                Asked::List { tenant, above, .. } => {
                    Asked::List { tenant: *tenant, above: above.clone(), after: Some(after) }
                }
                _ => Asked::MoreNames { after },
            })
        }
        _ => None,
    }
}

impl Directory for Remote {
    fn open_lease(&self, tenant: &TenantName, time_to_live: Duration) -> Result<Lease, DirectoryError> {
        let milliseconds = u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX);
        match self.ask(Asked::OpenLease { tenant: *tenant, milliseconds })? {
            Told::Lease { id, milliseconds } => {
                Ok(Lease::new(LeaseId(id), *tenant, Duration::from_millis(milliseconds)))
            }
            other => Err(self.no(other)),
        }
    }

    fn keep_alive(&self, lease: &Lease) -> Result<(), DirectoryError> {
        self.done(Asked::KeepAlive(lease.id().0))
    }

    fn end_lease(&self, lease: &Lease) -> Result<(), DirectoryError> {
        self.done(Asked::EndLease(lease.id().0))
    }

    fn register(&self, lease: &Lease, name: &Name, entry: &Entry) -> Result<(), DirectoryError> {
        entry.check()?;
        let (lease, name, entry) = (lease.id().0, name.to_string(), SentEntry::of(entry));
        self.done(Asked::Register { lease, name, entry })
    }

    fn withdraw(&self, lease: &Lease, name: &Name) -> Result<(), DirectoryError> {
        self.done(Asked::Withdraw { lease: lease.id().0, name: name.to_string() })
    }

    fn look_up(&self, tenant: &TenantName, name: &Name) -> Result<Found, DirectoryError> {
        match self.ask(Asked::LookUp { tenant: *tenant, name: name.to_string() })? {
            Told::Found(found) => found.read().map_err(DirectoryError::Nonsense),
            other => Err(self.no(other)),
        }
    }

    fn watch(
        &self,
        tenant: &TenantName,
        name: &Name,
    ) -> Result<Box<dyn Watch<Option<Found>>>, DirectoryError> {
        let begin = Asked::Watch { tenant: *tenant, name: name.to_string() };
        Ok(Box::new(self.watch_by(begin, see_name)?))
    }

    fn list(&self, tenant: &TenantName, above: &Name) -> Result<BTreeMap<Name, Found>, DirectoryError> {
        let told = self.ask_all(Asked::List { tenant: *tenant, above: above.to_string(), after: None })?;
        see_names(&self.0.server, told)
    }

    fn watch_list(
        &self,
        tenant: &TenantName,
        above: &Name,
    ) -> Result<Box<dyn Watch<BTreeMap<Name, Found>>>, DirectoryError> {
        let begin = Asked::WatchList { tenant: *tenant, above: above.to_string() };
        Ok(Box::new(self.watch_by(begin, see_names)?))
    }

    fn create_heap(&self, lease: &Lease, bytes: u64, others: &Who) -> Result<HeapRange, DirectoryError> {
        others.check()?;
        self.heap(Asked::CreateHeap { lease: lease.id().0, bytes, others: sent_who(others) })
    }

    fn hold_heap(&self, lease: &Lease, address: u64) -> Result<HeapRange, DirectoryError> {
        self.heap(Asked::HoldHeap { lease: lease.id().0, address })
    }

    fn release_heap(&self, lease: &Lease, address: u64) -> Result<(), DirectoryError> {
        self.done(Asked::ReleaseHeap { lease: lease.id().0, address })
    }

    fn heaps(&self, lease: &Lease) -> Result<Vec<HeapRange>, DirectoryError> {
        self.list(Asked::Heaps(lease.id().0))
    }

    fn watch_heap(
        &self,
        lease: &Lease,
        address: u64,
    ) -> Result<Box<dyn Watch<BTreeSet<LeaseId>>>, DirectoryError> {
        Ok(Box::new(self.watch_by(Asked::WatchHeap { lease: lease.id().0, address }, see_heap)?))
    }

    fn reclaim(&self) -> Result<Vec<HeapRange>, DirectoryError> {
        self.list(Asked::Reclaim)
    }

    fn set_quota(&self, tenant: Option<&TenantName>, quota: Quota) -> Result<(), DirectoryError> {
        self.done(Asked::SetQuota { tenant: tenant.copied(), quota: sent_quota(quota) })
    }

    fn usage(&self, lease: &Lease) -> Result<Usage, DirectoryError> {
        match self.ask(Asked::Usage(lease.id().0))? {
            Told::Usage(numbers) => Ok(usage(numbers)),
            other => Err(self.no(other)),
        }
    }
}

/// Function that turns the parts of an answer into the value that a watch shows.
type See<T> = fn(&ServerAddress, Vec<Told>) -> Result<T, DirectoryError>;

fn see_name(server: &ServerAddress, mut told: Vec<Told>) -> Result<Option<Found>, DirectoryError> {
    match told.pop() {
        Some(Told::Seen(found)) => {
            found.map(|found| found.read().map_err(DirectoryError::Nonsense)).transpose()
        }
        Some(other) => Err(no(server, other)),
        None => Err(server.nonsense()),
    }
}

fn see_names(server: &ServerAddress, told: Vec<Told>) -> Result<BTreeMap<Name, Found>, DirectoryError> {
    let mut all = BTreeMap::new();
    for part in told {
        let Told::Names { names, .. } = part else { return Err(no(server, part)) };
        for (name, found) in names {
            let name = Name::new(&name).map_err(|wrong| DirectoryError::Nonsense(wrong.to_string()))?;
            all.insert(name, found.read().map_err(DirectoryError::Nonsense)?);
        }
    }
    Ok(all)
}

fn see_heap(server: &ServerAddress, told: Vec<Told>) -> Result<BTreeSet<LeaseId>, DirectoryError> {
    let mut holders = BTreeSet::new();
    for part in told {
        match part {
            Told::Holders { leases, .. } => holders.extend(leases.into_iter().map(LeaseId)),
            other => return Err(no(server, other)),
        }
    }
    Ok(holders)
}

/// A watch, over a connection of its own.
struct Watching<T> {
    server: ServerAddress,
    begin: Asked,
    see: See<T>,
    /// The connection, with the number of the pending request, if any.
    line: Option<(Line, Option<u32>)>,
    /// The value that was seen last. `None` only until the watch has begun.
    seen: Option<T>,
}

impl<T: fmt::Debug> fmt::Debug for Watching<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl<T> Watching<T> {
    /// Begins the watch, or begins it anew after the connection has broken. Returns the present value.
    fn begin(&mut self, until: Instant) -> Result<T, DirectoryError> {
        let mut line = self.server.dial(until)?;
        let told = ask_all_of(&mut line, &self.server, self.begin.clone(), until);
        let told = told.map_err(|error| self.error(error))?;
        let sight = (self.see)(&self.server, told)?;
        self.line = Some((line, None));
        Ok(sight)
    }

    fn error(&self, error: RequestError) -> DirectoryError {
        match error {
            RequestError::Silent => self.server.away("it did not answer in time", false),
            RequestError::Broken(DirectoryError::Away { why, .. }) => self.server.away(why, false),
            RequestError::Broken(error) => error,
        }
    }

    /// Waits for the next value. `None`: it has not changed by `until`.
    fn wait(&mut self, until: Instant) -> Result<Option<T>, DirectoryError> {
        let Some((line, waiting)) = &mut self.line else { return self.begin(self.patient()).map(Some) };
        let heard = match *waiting {
            Some(number) => Ok(number),
            None => line.say(&self.server, Asked::Wait),
        };
        let heard = heard.and_then(|number| {
            *waiting = Some(number);
            line.hear(&self.server, number, until)
        });
        let told = match heard {
            Ok(told) => told,
            Err(RequestError::Silent) => return Ok(None),
            Err(error) => {
                self.line = None;
                return Err(self.error(error));
            }
        };
        *waiting = None;
        let mut all = vec![told];
        if let Err(error) =
            more(line, &self.server, &self.begin, &mut all, clock::now() + self.server.patience)
        {
            self.line = None;
            return Err(self.error(error));
        }
        (self.see)(&self.server, all).map(Some)
    }

    fn patient(&self) -> Instant {
        clock::now() + self.server.patience
    }
}

impl<T: PartialEq + Clone + Send + fmt::Debug> Watch<T> for Watching<T> {
    fn seen(&self) -> &T {
        self.seen.as_ref().expect("a watch begins with a look")
    }

    fn next(&mut self, at_most: Duration) -> Result<Option<T>, DirectoryError> {
        let until = clock::now().checked_add(at_most).unwrap_or_else(|| self.patient());
        loop {
            match self.wait(until)? {
                // A watch that was begun anew may return the value that was seen before.
                Some(there) if self.seen.as_ref() == Some(&there) => {}
                Some(there) => {
                    self.seen = Some(there.clone());
                    return Ok(Some(there));
                }
                None => return Ok(None),
            }
        }
    }
}

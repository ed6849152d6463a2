//! A client in a race: its script, what it holds, and the answers that it got.

use super::moves::QUEUE_PAIRS;
use super::scenarios::Act;
use crate::clock::Nanos;
use crate::endpoint::SharedNic;
use crate::memory::SimMemory;
use crate::oracle::{Kind, Oracle, SessionId};
use crate::scene::{Sighting, SimClient};
use crate::worker::sighting;
use portcullis_client::{
    Access, Acquire, Answer, Call, ControlRequest, Error, Lease, Operation, Outcome, Permission, Unchecked,
};
use portcullis_node::{ChunkEnds, ClientEnds};
use portcullis_protocol::{ClientId, Lifetime, Moment, ObjectRef};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// An answer that a client got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// A permission was granted. `start` is on the node's clock.
    Granted { start: Moment },
    /// The permission, or the one that the client keeps alive, lives this long from its start.
    Extended(Lifetime),
    /// A call was done.
    Done,
    /// A call ended with an error.
    CallFailed(Error),
    /// An operation ended.
    Ended(Kind, Result<(), Error>),
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { .. } => write!(f, "granted"),
            Self::Extended(lifetime) => write!(f, "extended to {} µs", lifetime.0),
            Self::Done => write!(f, "done"),
            Self::CallFailed(error) => write!(f, "call: {error:?}"),
            Self::Ended(kind, Ok(())) => write!(f, "{kind:?} done"),
            Self::Ended(kind, Err(error)) => write!(f, "{kind:?}: {error:?}"),
        }
    }
}

/// State that all clients may know: the object that the race is about, and its first lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    pub object: Option<ObjectRef>,
    pub lease: Option<Arc<Lease>>,
}

#[derive(Debug)]
pub(super) struct Actor {
    pub nic: SharedNic,
    /// The library, until the process ends.
    pub library: Option<SimClient>,
    pub session: SessionId,
    /// The node's id for the client, until the node detaches it.
    pub id: Option<ClientId>,
    pub ends: ClientEnds,
    /// The numbers of the client's queue pairs on its NIC.
    pub queue_pairs: [u32; QUEUE_PAIRS],
    pub script: VecDeque<Act>,
    pub told: Vec<Told>,
    /// The client's permission, until the client revokes it.
    pub held: Option<Permission>,
    /// The last permission of the client. Its keys are remembered after its end.
    pub known: Option<Sighting>,
    /// The lease of that permission.
    pub lease: Option<Arc<Lease>>,
    /// Whether the client has requested the end of its permission, or left.
    pub let_go: bool,
    calls: Vec<Call>,
    under_way: Vec<(Operation, Kind)>,
    ended: Vec<(Operation, Outcome<SimMemory>)>,
}

impl Actor {
    pub fn new(nic: SharedNic, library: SimClient, session: SessionId) -> Self {
        Self {
            nic,
            library: Some(library),
            session,
            id: None,
            ends: ClientEnds {
                control: portcullis_nic::QpId(0),
                data: Vec::new(),
                peers: Vec::new(),
                chunks: ChunkEnds::default(),
                control_depth: 0,
                message_bytes: 0,
            },
            queue_pairs: [0; QUEUE_PAIRS],
            script: VecDeque::new(),
            told: Vec::new(),
            held: None,
            known: None,
            lease: None,
            let_go: false,
            calls: Vec::new(),
            under_way: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Returns the number of calls and operations that have begun and not ended.
    pub fn pending(&self) -> usize {
        self.calls.len() + self.under_way.len()
    }

    /// Returns the next possible action of the client's script.
    pub fn next_act(&self) -> Option<Act> {
        let waits = self.script.front() == Some(&Act::Settle) && self.pending() > 0;
        let next = self.script.iter().find(|&&act| act != Act::Settle).copied();
        next.filter(|_| self.library.is_some() && !waits)
    }

    /// Whether only one more packet can concern the client.
    pub fn is_nearly_done(&self) -> bool {
        self.script.is_empty() && self.pending() == 1
    }

    /// Takes the next action of the script.
    pub fn act(&mut self, oracle: &mut Oracle, (at, now): (Nanos, Moment), common: &Common) {
        while self.script.front() == Some(&Act::Settle) {
            self.script.pop_front();
        }
        let Some(act) = self.script.pop_front().filter(|&act| act != Act::Hesitate) else { return };
        if act == Act::Depart {
            self.library = None;
            self.let_go = true;
            self.calls.clear();
            self.under_way.clear();
            self.script.clear();
            return oracle.client_ended(self.session);
        }
        if !self.begin_call(act, now, common)
            && let Some((begun, kind)) = self.begin_operation(act, now)
        {
            match begun {
                Ok(operation) => {
                    oracle.begun(at, (self.session, operation.number()), kind, None);
                    self.under_way.push((operation, kind));
                }
                Err(error) => self.told.push(Told::Ended(kind, Err(error))),
            }
        }
    }

    /// Begins a call. Returns whether the action was a call.
    fn begin_call(&mut self, act: Act, now: Moment, common: &Common) -> bool {
        let Some(library) = &mut self.library else { return true };
        let Some(lease) = (match act {
            Act::ExtendOther(_) => common.lease.clone(),
            _ => self.lease.clone(),
        }) else {
            return self.ask(act, now, common);
        };
        let begun = match act {
            Act::Extend(lifetime) | Act::ExtendOther(lifetime) => {
                let deadline = lease.started_after().after(lifetime);
                library.call(now, ControlRequest::extend_to(&lease, deadline)).map_err(Error::from)
            }
            Act::ExtendByMessage(lifetime) => {
                library.extend_by_rpc(now, &lease, lease.started_after().after(lifetime))
            }
            _ => return self.ask(act, now, common),
        };
        self.note_call(begun);
        true
    }

    fn ask(&mut self, act: Act, now: Moment, common: &Common) -> bool {
        let Some(library) = &mut self.library else { return true };
        let begun = match act {
            Act::Allocate(ask) => library.call(now, ask),
            Act::Acquire(ask) => {
                let Some(object) = common.object else { return true };
                library.call(now, Acquire { object: object.into(), ..ask })
            }
            Act::Revoke => {
                let Some(permission) = self.held.take() else { return true };
                self.let_go = true;
                library.call(now, ControlRequest::revoke(permission))
            }
            Act::Write | Act::Read | Act::LateWrite => return false,
            _ => return true,
        };
        self.note_call(begun.map_err(Error::from));
        true
    }

    fn note_call(&mut self, begun: Result<Call, Error>) {
        match begun {
            Ok(call) => self.calls.push(call),
            Err(error) => self.told.push(Told::CallFailed(error)),
        }
    }

    fn begin_operation(&mut self, act: Act, now: Moment) -> Option<(Result<Operation, Error>, Kind)> {
        let library = self.library.as_mut()?;
        let mut buffer = library.buffer(8).ok()?;
        buffer.write(0, &(0xa500 + self.session as u64).to_le_bytes());
        match act {
            Act::LateWrite => {
                let known = self.known?;
                let write = Access::write(Unchecked::new(known.address, known.key), 0, buffer);
                Some((library.dangerous_access(write).map_err(Error::from), Kind::Write))
            }
            Act::Read => {
                let read = Access::read(self.held.as_ref()?, 0, buffer);
                Some((library.access(now, read).map_err(Error::from), Kind::Read))
            }
            _ => {
                let write = Access::write(self.held.as_ref()?, 0, buffer);
                Some((library.access(now, write).map_err(Error::from), Kind::Write))
            }
        }
    }

    /// Processes the reports of the client's NIC.
    pub fn poll(&mut self, oracle: &mut Oracle, (at, now): (Nanos, Moment)) {
        let Some(library) = &mut self.library else { return };
        library.poll(now);
        library.drain(&mut self.ended);
        for (operation, outcome) in self.ended.drain(..) {
            let Some(known) = self.under_way.iter().position(|&(it, _)| it == operation) else { continue };
            let (_, kind) = self.under_way.swap_remove(known);
            let mut bytes = Vec::new();
            if let (Some(buffer), Kind::Read) = (&outcome.buffer, kind) {
                bytes = vec![0; buffer.len() as usize];
                buffer.read(0, &mut bytes);
            }
            let result = outcome.result.as_ref().map(|_| &bytes[..]).map_err(|error| *error);
            oracle.ended(at, self.session, operation.number(), result);
            self.told.push(Told::Ended(kind, outcome.result.map(|_| ())));
        }
        let mut calls = std::mem::take(&mut self.calls);
        calls.retain(|&call| {
            let answer = self.library.as_mut().and_then(|library| library.take_call(call));
            let answered = answer.is_some();
            match answer {
                None => {}
                Some(Ok(Answer::Granted(permission))) => {
                    self.told.push(Told::Granted { start: permission.id().start });
                    self.known = Some(sighting(&permission));
                    self.lease = Some(Arc::clone(permission.lease()));
                    self.held = Some(permission);
                    self.let_go = false;
                }
                Some(Ok(Answer::Extended(lifetime))) => self.told.push(Told::Extended(lifetime)),
                Some(Ok(Answer::Done | Answer::Entry(_) | Answer::EndOfList | Answer::Chunks(_))) => {
                    self.told.push(Told::Done)
                }
                Some(Err(error)) => self.told.push(Told::CallFailed(error)),
            }
            !answered
        });
        self.calls = calls;
    }
}

impl Actor {
    /// Whether the client's permission is shared.
    pub fn shares(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.sharing() == portcullis_protocol::Sharing::Shared)
    }
}

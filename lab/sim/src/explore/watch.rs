//! The conditions that must hold in a race in addition to those that the simulator's checkers watch. They are judged
//! by the answers that the clients got and by the packets that crossed the network, in a world where all clocks are
//! the same.

use super::actor::{Actor, Told};
use super::moves::Move;
use crate::oracle::{Kind, Promise};
use portcullis_client::Error;
use portcullis_protocol::{Moment, Refusal, Reply, ReplyBody};
use portcullis_softnic::core::{Response, WireRequest};
use std::ops::Range;

/// A broken promise, and how it was broken.
pub(super) type Flaw = (Promise, String);

/// The grants and revocations that have crossed the network since the race began.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The bytes of grants that have left the node, each with the client that got them.
    given: Vec<(usize, Range<u64>)>,
    /// Clients whose revocation the node has confirmed.
    revoked: Vec<usize>,
    /// Whether the window of a revoked permission may stay bound: no other client has got its bytes.
    lingers: bool,
}

impl Watch {
    pub fn new(lingers: bool) -> Self {
        Self { lingers, ..Self::default() }
    }

    /// Records a reply that has left the node.
    pub fn left(&mut self, client: usize, reply: &Reply) {
        match reply.body {
            ReplyBody::Granted(granted) => {
                let bytes = granted.address().0..granted.address().0 + granted.length;
                self.given.push((client, bytes));
            }
            ReplyBody::Done => self.revoked.push(client),
            _ => {}
        }
    }

    /// Checks a client's access that has reached the node's NIC.
    pub fn accessed(
        &self,
        (client, actor): (usize, &Actor),
        request: &WireRequest,
        answer: Option<&Response>,
        now: Moment,
    ) -> Option<Flaw> {
        let (remote, length) = match request {
            WireRequest::Send { .. } => return None,
            WireRequest::Read { remote, length } => (remote, u64::from(*length)),
            WireRequest::Write { remote, bytes } => (remote, bytes.len() as u64),
            WireRequest::CompareAndSwap { remote, .. } | WireRequest::FetchAndAdd { remote, .. } => {
                (remote, 8)
            }
        };
        let span = remote.address.0..remote.address.0 + length;
        let (known, lease) = (actor.known.as_ref()?, actor.lease.as_ref()?);
        let its_own = remote.rkey == known.key && span.start >= known.address.0;
        match answer {
            Some(Response::Refused(_)) if its_own && !actor.let_go && now < lease.deadline() => Some((
                Promise::Service,
                format!("client {client} was refused {span:x?} before the end that was reported to it"),
            )),
            Some(Response::Refused(_)) | None => None,
            Some(_) => {
                let other = |(other, bytes): &&(usize, Range<u64>)| {
                    *other != client && bytes.start < span.end && span.start < bytes.end
                };
                if let Some((other, _)) = self.given.iter().find(other) {
                    let what = format!("client {client} got at {span:x?}, which client {other} was granted");
                    return Some((Promise::Reuse, what));
                }
                let over = its_own && actor.let_go && self.revoked.contains(&client) && !self.lingers;
                over.then(|| {
                    (Promise::Access, format!("client {client} got at {span:x?} after its revoke was done"))
                })
            }
        }
    }
}

/// Checks the answers that the clients got. `extensions`: the number of extensions that the node saw.
pub(super) fn flaws(actors: &[Actor], extensions: u64) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let gone = actors.iter().any(|actor| actor.let_go);
    let promised = |it: &Told| matches!(it, Told::Extended(_));
    if !gone && extensions == 0 && actors.iter().any(|actor| actor.told.iter().any(promised)) {
        flaws.push((
            Promise::Truth,
            "an extension was reported to a client, but the node never saw it".to_owned(),
        ));
    }
    for (number, actor) in actors.iter().enumerate() {
        for told in &actor.told {
            let lie = match told {
                // Only its holder ends a permission early, and all clocks are the same.
                Told::Ended(_, Err(Error::Revoked)) | Told::CallFailed(Error::Revoked) => !gone,
                Told::Ended(Kind::Write | Kind::Read, Err(Error::Violation)) => actor.lease.is_none(),
                Told::Ended(
                    _,
                    Err(Error::Interrupted | Error::Unanswered | Error::SessionLost | Error::NodeGone),
                ) => true,
                Told::CallFailed(
                    Error::SessionLost | Error::NodeGone | Error::Interrupted | Error::Unanswered,
                ) => true,
                _ => false,
            };
            if *told == Told::CallFailed(Error::Refused(Refusal::Conflict)) {
                let what = format!(
                    "client {number} was not granted the object, and no other client may hold \
                    it for so long"
                );
                flaws.push((Promise::Progress, what));
            }
            if lie {
                flaws.push((Promise::Truth, format!("client {number} received {told:?}")));
            }
            if let Told::Granted { start } = told {
                flaws.extend(too_early(actors, number, *start));
            }
        }
    }
    flaws
}

/// Checks that no exclusive holder was admitted before another one's end.
fn too_early(actors: &[Actor], number: usize, start: Moment) -> Option<Flaw> {
    let first = actors[0].known?.address;
    if number == 0 || actors[number].known?.address != first || actors[number].shares() {
        return None;
    }
    let mut others = actors.iter().enumerate().filter(|&(other, _)| other != number);
    others.find_map(|(other, actor)| {
        let lease = actor.lease.as_ref().filter(|_| !actor.let_go)?;
        (start < lease.deadline()).then(|| {
            let what = format!(
                "client {number} was granted the object at {start:?}, but client {other} holds it until {:?}",
                lease.deadline()
            );
            (Promise::Exclusion, what)
        })
    })
}

pub(super) fn describe(it: Move) -> String {
    match it {
        Move::ToNode { client, queue_pair } => format!("from client {client}, queue pair {queue_pair}"),
        Move::ToClient { client, queue_pair, .. } => format!("to client {client}, queue pair {queue_pair}"),
        Move::Act { client } => format!("client {client} acts"),
        Move::NodeTurn => "the node has a turn".to_owned(),
        Move::NodeNic => "the node's NIC has a turn".to_owned(),
        Move::LetGo { client } => format!("the node lets client {client} go"),
        Move::Clock => "time passes".to_owned(),
    }
}

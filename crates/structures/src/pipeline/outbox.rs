//! The requests that a pipeline has still to post.
//!
//! Accesses, requests about chunks, calls that are answered at once, and calls that may wait at the node for what others
//! hold stand in lines of their own: no request waits behind one of another kind. A call that waits never takes the
//! last room for calls, because this client itself may hold what the call waits for, and need a call to give it back.

use super::requests::Request;
use portcullis::{
    Ask, Client, ControlRequest, HandedOutBy, Lifetime, Memory, VerbsEndpoint, WAITING_CALLS_MAX,
};
use std::collections::VecDeque;

type Line<M> = VecDeque<(u64, Request<M>)>;

/// Requests that are still to be posted, each with its number.
pub(super) struct Outbox<M: Memory> {
    chunks: Line<M>,
    accesses: Line<M>,
    prompt: Line<M>,
    waiting: Line<M>,
}

impl<M: Memory> Default for Outbox<M> {
    fn default() -> Self {
        Self { chunks: Line::new(), accesses: Line::new(), prompt: Line::new(), waiting: Line::new() }
    }
}

/// The kinds of requests that have lines of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Chunk,
    Access,
    Prompt,
    Waiting,
}

impl Kind {
    /// All kinds, in the order in which they are posted: calls that give something back come before calls that acquire
    /// something.
    pub const ALL: [Self; 4] = [Self::Chunk, Self::Access, Self::Prompt, Self::Waiting];

    fn of<M: Memory>(request: &Request<M>) -> Self {
        match &request.ask {
            Ask::Access(_) => Self::Access,
            Ask::Control(ControlRequest::AllocateChunk | ControlRequest::FreeChunk(_)) => Self::Chunk,
            Ask::Control(request) if request.may_wait() => Self::Waiting,
            Ask::Control(_) => Self::Prompt,
        }
    }
}

/// Room of a client for calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    free: usize,
    /// The number of calls that wait which can begin.
    waiting: usize,
    /// The room that calls which wait at the node leave to others: that of a message.
    kept: usize,
    /// Whether the client has room for only one message at a time. Then hardly any call may wait.
    single: bool,
    /// Whether requests about chunks are calls, which take room: the node's processor hands chunks out.
    for_chunks: bool,
}

impl Room {
    /// The room of a client of whose calls `waiting` may wait at the node.
    pub fn of<E: VerbsEndpoint>(client: &Client<E>, waiting: usize) -> Self {
        // Once the session is over, each request has to return its error.
        let free = if client.over().is_some() { usize::MAX } else { client.room_for_calls() };
        let for_chunks = client.chunk_terms().is_some_and(|terms| terms.by == HandedOutBy::Cpu);
        let kept = client.calls_per_message();
        let waiting = match client.over() {
            Some(_) => usize::MAX,
            None => WAITING_CALLS_MAX.saturating_sub(waiting),
        };
        Self { free, waiting, kept, single: client.calls_max() < 2 * kept, for_chunks }
    }
}

impl<M: Memory> Outbox<M> {
    #[inline]
    pub fn is_empty(&self) -> bool {
        let calls_wait = !self.prompt.is_empty() || !self.waiting.is_empty();
        self.accesses.is_empty() && !calls_wait && self.chunks.is_empty()
    }

    #[inline]
    pub fn has_accesses(&self) -> bool {
        !self.accesses.is_empty()
    }

    fn line(&mut self, kind: Kind) -> &mut Line<M> {
        match kind {
            Kind::Chunk => &mut self.chunks,
            Kind::Access => &mut self.accesses,
            Kind::Prompt => &mut self.prompt,
            Kind::Waiting => &mut self.waiting,
        }
    }

    #[inline]
    pub fn push(&mut self, id: u64, request: Request<M>) {
        self.line(Kind::of(&request)).push_back((id, request));
    }

    /// Takes the next request of a kind, if a call of this kind may take some of this room.
    #[inline]
    pub fn pop(&mut self, kind: Kind, room: &mut Room) -> Option<(u64, Request<M>)> {
        let kept = match kind {
            Kind::Access => return self.accesses.pop_front(),
            Kind::Chunk if !room.for_chunks => return self.chunks.pop_front(),
            Kind::Chunk => 0,
            Kind::Prompt => 0,
            Kind::Waiting if room.waiting == 0 => return None,
            Kind::Waiting if room.single => 0,
            Kind::Waiting => room.kept,
        };
        if room.free <= kept {
            return None;
        }
        let (id, mut request) = self.line(kind).pop_front()?;
        room.free -= 1;
        room.waiting -= usize::from(kind == Kind::Waiting);
        if let Ask::Control(ControlRequest::Acquire(acquire)) = &mut request.ask
            && room.single
            && !request.waits_in_any_case
        {
            // The request does not wait at the node. It is repeated instead.
            *acquire = acquire.wait(Lifetime(0));
        }
        Some((id, request))
    }

    /// Takes out the requests for which `is_so` returns true. Returns their numbers.
    pub fn take(&mut self, is_so: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        let mut stays = |id: u64| {
            let goes = is_so(id);
            taken.extend(goes.then_some(id));
            !goes
        };
        for line in [&mut self.accesses, &mut self.prompt, &mut self.waiting, &mut self.chunks] {
            line.retain(|(id, _)| stays(*id));
        }
        taken
    }

    /// Puts a request back for which there was no room.
    pub fn put_back(&mut self, kind: Kind, id: u64, request: Request<M>) {
        self.line(kind).push_front((id, request));
    }
}

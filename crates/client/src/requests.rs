//! Requests on the control path: each becomes a message to the node, a compare and swap on a lifetime word, or a
//! message to a worker on the node's NIC.

use crate::calls::{Asked, Awaited, Calls};
use crate::carrier::{Link, Posting};
use crate::chunk_workers::{ChunkWorkers, Worker};
use crate::control::Purpose;
use crate::data_path::DataPath;
use crate::permission::Mark;
use crate::{Acquire, Allocate, Answer, Call, ControlRequest, Error, Permission};
use portcullis_nic::{Completion, VerbsEndpoint};
use portcullis_protocol::{
    ChunkTerms, GrantRequest, Lifetime, Moment, NamedRequest, QueuePairRequest, Refusal, RemoteAddress,
    ReplyBody, RequestBody, Rights, Sharing,
};
use std::collections::VecDeque;

/// The time of a request about chunks: a chunk has no deadline, so it does not matter.
const ANY_TIME: Moment = Moment(0);

/// The requests of a client: its calls, its workers on the node's NIC, and the batch that is being collected. Each staged
/// request belongs to a call that is under way.
pub(crate) struct Requests {
    pub(crate) calls: Calls,
    workers: ChunkWorkers,
    /// Calls of extensions that the node must confirm.
    pub(crate) confirmations: VecDeque<u64>,
    /// Calls of a batch that is being collected.
    staged: Vec<u64>,
    /// Requests to workers of a batch that is being collected, each with its call.
    staged_for_workers: Vec<(u64, WorkerRequest)>,
    /// Number of operations and calls in a batch that waits to be resumed.
    set_aside: Option<usize>,
    /// The client's identity, which its permissions carry.
    pub(crate) mark: Mark,
}

impl Requests {
    /// Makes a client without requests. `workers`: the client's ends of workers.
    pub(crate) fn new(workers: ChunkWorkers, mark: Mark) -> Self {
        Self {
            calls: Calls::new(),
            workers,
            confirmations: VecDeque::new(),
            staged: Vec::new(),
            staged_for_workers: Vec::new(),
            set_aside: None,
            mark,
        }
    }

    /// Begins a request.
    ///
    /// # Errors
    /// [`Error::QueueFull`], or an error of the request's kind. Nothing was begun.
    pub(crate) fn begin<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        posting: Posting,
        now: Moment,
        request: &ControlRequest,
    ) -> Result<Call, Error> {
        let (awaited, body) = match request {
            &ControlRequest::Allocate(parameters) => {
                let Allocate { rights, sharing, .. } = parameters;
                let awaited = Awaited::Grant { requested_at: now, rights, sharing, is_new: true };
                (awaited, GrantRequest::Allocate(parameters).into())
            }
            &ControlRequest::Acquire(parameters) => {
                let Acquire { rights, sharing, .. } = parameters;
                let awaited = Awaited::Grant { requested_at: now, rights, sharing, is_new: false };
                (awaited, GrantRequest::Acquire(parameters).into())
            }
            ControlRequest::Extend { lease, until } => {
                return self.extend(data, posting, now, lease, until.deadline(now));
            }
            ControlRequest::Revoke { permission, free } => {
                let (permission, free) = (permission.id(), *free);
                (Awaited::Done, GrantRequest::Revoke { permission, free }.into())
            }
            &ControlRequest::Free { object, holders } => {
                (Awaited::Done, GrantRequest::Free { object, holders }.into())
            }
            &ControlRequest::Include { member, head } => {
                (Awaited::Done, GrantRequest::Include { member, head }.into())
            }
            &ControlRequest::Keep { object, keep } => {
                (Awaited::Done, GrantRequest::Keep { object, keep }.into())
            }
            &ControlRequest::Named(request) => (awaited_of(&request), request.into()),
            ControlRequest::JoinChunks => {
                self.workers.check_join()?;
                let call = self.send(data, posting, Awaited::Chunks, QueuePairRequest::JoinChunks.into())?;
                self.workers.joining();
                return Ok(call);
            }
            ControlRequest::AllocateChunk if self.workers.are_by_cpu() => {
                (Awaited::Chunk, GrantRequest::AllocateChunk.into())
            }
            ControlRequest::AllocateChunk => {
                return self.ask_worker(&mut data.link, posting, WorkerRequest::Allocate);
            }
            ControlRequest::FreeChunk(permission) if self.workers.are_by_cpu() => {
                let permission = permission.id();
                (Awaited::Done, GrantRequest::Revoke { permission, free: true }.into())
            }
            ControlRequest::FreeChunk(permission) => {
                let request = WorkerRequest::Free(permission.address());
                return self.ask_worker(&mut data.link, posting, request);
            }
        };
        self.send(data, posting, awaited, body)
    }

    /// Sends a message to the node, or adds it to the batch that is being collected.
    pub(crate) fn send<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        posting: Posting,
        awaited: Awaited,
        body: RequestBody,
    ) -> Result<Call, Error> {
        if posting == Posting::AtOnce {
            // A batch that was leaked left its requests here.
            self.cancel_staged(data);
        }
        let Link { endpoint, control, limit, .. } = &mut data.link;
        let asked = Asked::of(&body);
        let id = self.calls.begin(awaited, asked, limit.last_step(asked.wait))?;
        if !control.ask(endpoint, body, &[], Purpose::Call(id)) {
            self.calls.cancel(id);
            return Err(control.full());
        }
        Ok(self.begun(posting, id))
    }

    /// Records a call that has begun, if it belongs to the batch that is being collected.
    pub(crate) fn begun(&mut self, posting: Posting, id: u64) -> Call {
        if posting == Posting::Staged {
            self.staged.push(id);
        }
        Call { id }
    }

    /// Sends a request to a worker on the node's NIC, or adds it to the batch that is being collected.
    fn ask_worker<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        posting: Posting,
        request: WorkerRequest,
    ) -> Result<Call, Error> {
        if posting == Posting::Staged {
            let worker = request.worker();
            let staged = self.staged_for_workers.iter().filter(|(_, staged)| staged.worker() == worker);
            self.workers.check_room(worker, staged.count())?;
        }
        let id = self.calls.begin(Awaited::Worker, Asked::OF_A_WORKER, link.limit.last_step(Lifetime(0)))?;
        match posting {
            Posting::Staged => self.staged_for_workers.push((id, request)),
            Posting::Linked(_) => unreachable!("only accesses are linked"),
            Posting::AtOnce => {
                self.send_to_worker(link, id, request).inspect_err(|_| self.calls.cancel(id))?;
            }
        }
        Ok(self.begun(posting, id))
    }

    fn send_to_worker<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        call: u64,
        request: WorkerRequest,
    ) -> Result<(), Error> {
        match request {
            WorkerRequest::Allocate => self.workers.allocate(&mut link.endpoint, call),
            WorkerRequest::Free(address) => self.workers.free(&mut link.endpoint, address, call),
        }
    }

    /// Requests that a worker free the chunk at an address, even if another client holds it.
    pub(crate) fn dangerous_free_chunk<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        address: RemoteAddress,
    ) -> Result<Call, Error> {
        if self.workers.are_by_cpu() {
            return Err(Error::ForeignChunk);
        }
        self.ask_worker(link, Posting::AtOnce, WorkerRequest::Free(address))
    }

    /// Handles the completion of a request to a worker.
    pub(crate) fn worker_completed<E: VerbsEndpoint>(
        &mut self,
        link: &Link<E>,
        worker: Worker,
        completion: &Completion,
    ) {
        self.workers.completed(&link.endpoint, &mut self.calls, worker, completion);
    }

    /// The terms that the node has sent for the client's workers. `None`: the client has no workers.
    pub(crate) fn chunk_terms(&self) -> Option<ChunkTerms> {
        self.workers.terms()
    }

    /// Ends a call with the node's answer.
    pub(crate) fn answered<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        now: Moment,
        id: u64,
        body: ReplyBody,
    ) {
        let Some(awaited) = self.calls.awaited(id) else { return };
        let result = match (awaited, body) {
            // The client cannot use the permission that the node granted.
            (_, ReplyBody::Granted(granted)) if !data.routes.can_carry(&granted.credential) => {
                Err(Error::SessionLost)
            }
            (Awaited::Grant { requested_at, rights, sharing, .. }, ReplyBody::Granted(granted)) => {
                Ok(Answer::Granted(Permission::new(granted, requested_at, (rights, sharing), &self.mark)))
            }
            (Awaited::Chunk, ReplyBody::Granted(granted)) => {
                let all = (Rights::READ | Rights::WRITE | Rights::ATOMIC, Sharing::Exclusive);
                Ok(Answer::Granted(Permission::new(granted, ANY_TIME, all, &self.mark)))
            }
            (Awaited::Chunk, ReplyBody::Refused(Refusal::OutOfMemory { .. } | Refusal::NodeFull { .. })) => {
                Err(Error::NoFreeChunk)
            }
            (Awaited::Chunks, ReplyBody::Chunks(terms)) => self.workers.joined(terms).map(|()| {
                self.workers.resume(&mut data.link.endpoint, &mut self.calls, terms.held);
                Answer::Chunks(terms)
            }),
            (Awaited::Done, ReplyBody::Done) => Ok(Answer::Done),
            (Awaited::Entry | Awaited::NextEntry, ReplyBody::Entry(entry)) => Ok(Answer::Entry(entry)),
            (Awaited::NextEntry, ReplyBody::EndOfList) => Ok(Answer::EndOfList),
            (Awaited::Extension(extending), ReplyBody::Extended(lifetime)) => {
                extending.lease.set_lifetime(lifetime);
                Ok(Answer::Extended(lifetime))
            }
            (Awaited::Extension(extending), ReplyBody::Refused(Refusal::NotLive)) => {
                let expired = now >= extending.lease.deadline();
                Err(if expired { Error::Expired } else { Error::Revoked })
            }
            (_, ReplyBody::Refused(refusal)) => Err(refusal.into()),
            // The answer does not fit the request, so what the node did is unknown.
            _ => Err(Error::SessionLost),
        };
        self.calls.finish(id, result);
    }

    /// Returns whether messages wait for room: confirmations, and requests that give permissions back.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.confirmations.is_empty() || self.calls.has_unwanted()
    }

    /// Sends requests to end the permissions that wait to be given back.
    pub(crate) fn give_back_unwanted<E: VerbsEndpoint>(&mut self, data: &mut DataPath<E>, now: Moment) {
        while data.link.control.has_room(false)
            && let Some(request) = self.calls.take_unwanted()
        {
            match self.begin(data, Posting::AtOnce, now, &request) {
                Ok(call) => self.calls.forget(call),
                Err(Error::QueueFull { .. }) => return self.calls.add_unwanted(request),
                // The permission has ended, or ends with the session.
                Err(_) => {}
            }
        }
    }

    /// Posts the staged operations and requests. A request to a worker that cannot be sent any more ends with the
    /// reason.
    pub(crate) fn send_staged<E: VerbsEndpoint>(&mut self, data: &mut DataPath<E>) {
        self.staged.clear();
        data.routes.send_staged(&mut data.link);
        for (call, request) in std::mem::take(&mut self.staged_for_workers) {
            if let Err(error) = self.send_to_worker(&mut data.link, call, request) {
                self.calls.finish(call, Err(error));
            }
        }
    }

    /// Drops the staged operations and requests, which never began.
    pub(crate) fn cancel_staged<E: VerbsEndpoint>(&mut self, data: &mut DataPath<E>) {
        self.set_aside = None;
        data.routes.cancel_staged(&mut data.link);
        self.staged_for_workers.clear();
        for call in self.staged.drain(..) {
            self.calls.cancel(call);
        }
        data.link.control.drop_held();
    }

    /// Keeps what is staged, a batch of `count` operations and calls, until it is resumed.
    #[inline]
    pub(crate) fn set_aside(&mut self, count: usize) {
        self.set_aside = Some(count);
    }

    /// Returns the number of operations and calls in the batch that was set aside, if there is one, and resumes it.
    #[inline]
    pub(crate) fn resume(&mut self) -> Option<usize> {
        self.set_aside.take()
    }

    /// Ends all calls: the session is over. A batch that waits to be resumed ends with them.
    pub(crate) fn end(&mut self, error: Error) {
        self.workers.clear();
        self.staged.clear();
        self.staged_for_workers.clear();
        self.set_aside = None;
        self.confirmations.clear();
        self.calls.finish_all(error);
    }
}

/// A request to a worker on the node's NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkerRequest {
    Allocate,
    Free(RemoteAddress),
}

impl WorkerRequest {
    fn worker(self) -> Worker {
        match self {
            Self::Allocate => Worker::Alloc,
            Self::Free(_) => Worker::Free,
        }
    }
}

/// The kind of answer that a request about names awaits.
fn awaited_of(request: &NamedRequest) -> Awaited {
    match request {
        NamedRequest::Lookup { .. } => Awaited::Entry,
        NamedRequest::List { .. } => Awaited::NextEntry,
        NamedRequest::Publish { .. }
        | NamedRequest::Unpublish { .. }
        | NamedRequest::Share { .. }
        | NamedRequest::Unshare { .. } => Awaited::Done,
    }
}

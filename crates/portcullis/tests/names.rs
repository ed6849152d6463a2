//! A program can name every type that the library's calls take and return with the library alone.

use portcullis::host::{ConfigError, Host, NodeCounters, StartError};
use portcullis::{
    Access, Answer, ArenaMemory, AuditRecord, AuditedAccess, AuditedPermission, BarePermission, Batch,
    Buffer, Client, ClientConfig, ClientCounters, ClientId, ConnectError, ControlRequest, Endpoint,
    EndpointSize, Error, Lease, Lend, LentBytes, LentBytesMut, Lifetime, MappingError, Memory, Moment,
    NoLifetime, NotBegun, Operation, Outcome, PortAttachError, QpState, Session, SessionEndpoint, Status,
    Unchecked, VerbsEndpoint, VerbsError,
};
use std::sync::Arc;

/// A program's own type that keeps values of the library's types.
struct Holder {
    lease: Arc<Lease>,
    counters: (ClientCounters, NodeCounters),
}

fn holder(host: &Host, session: &mut Session, permission: &BarePermission) -> Holder {
    let counters = (session.client().counters(), host.counters());
    Holder { lease: Arc::clone(permission.lease()), counters }
}

fn looked_at(buffer: &Buffer<ArenaMemory>) -> LentBytes<'_> {
    buffer.bytes()
}

fn filled_in(buffer: &mut Buffer<ArenaMemory>) -> LentBytesMut<'_> {
    buffer.bytes_mut()
}

fn client_of<E: VerbsEndpoint<Memory: Lend>>(endpoint: E) -> Result<Client<E>, Error> {
    Client::new(endpoint, ClientConfig::default())
}

fn arena_of(endpoint: &SessionEndpoint) -> (&ArenaMemory, EndpointSize) {
    (endpoint.arena(), endpoint.size())
}

fn batch_of(session: &mut Session) -> Batch<'_, SessionEndpoint> {
    session.client().batch()
}

fn revoked(
    client: &mut Client<SessionEndpoint>,
    now: Moment,
    held: BarePermission,
) -> Result<(), NotBegun<Box<ControlRequest>>> {
    client.call(now, ControlRequest::revoke(held)).map(|_| ())
}

fn finished(client: &mut Client<SessionEndpoint>, operation: Operation) -> Option<Outcome<ArenaMemory>> {
    client.take(operation)
}

fn refused<M: Memory>(refused: NotBegun<Box<Access<Unchecked, M>>>) -> (Option<Buffer<M>>, Error) {
    (refused.ask.into_buffer(), refused.error)
}

fn lease_of(answer: &Answer) -> Option<&Arc<Lease>> {
    match answer {
        Answer::Granted(permission) => Some(permission.lease()),
        _ => None,
    }
}

fn local_fault(error: &Error) -> Option<Status> {
    match error {
        Error::LocalFault(status) => Some(*status),
        _ => None,
    }
}

fn not_mapped(error: &ConnectError) -> Option<&MappingError> {
    match error {
        ConnectError::Attach(PortAttachError::Unusable(error)) => error.downcast_ref(),
        _ => None,
    }
}

fn state_of(error: &StartError) -> Result<Option<QpState>, &ConfigError> {
    match error {
        StartError::Config(error) => Err(error),
        StartError::Nic(VerbsError::State { from }) => Ok(Some(*from)),
        StartError::Nic(_) => Ok(None),
    }
}

fn audited(record: &AuditRecord) -> (Option<ClientId>, Option<&AuditedPermission>, Option<&AuditedAccess>) {
    (record.client, record.permission.as_ref(), record.access.as_ref())
}

/// Names of types that only programs with nodes on other machines need.
#[cfg(feature = "rdma")]
mod over_rdma {
    use portcullis::host::{HostError, ListenError, MemlockTooLow, NoLibrary, OpenError, Unenforced};
    use portcullis::{ConnectError, IbEndpoint, RdmaAttachError, SessionEndpoint};

    fn end(endpoint: &mut SessionEndpoint) -> Option<&mut IbEndpoint> {
        endpoint.rdma()
    }

    fn attach(error: ConnectError) -> Option<RdmaAttachError> {
        match error {
            ConnectError::Rdma(error) => Some(error),
            _ => None,
        }
    }

    type Causes = (Option<NoLibrary>, Option<MemlockTooLow>, Option<ListenError>, Option<Unenforced>);

    fn causes(error: HostError) -> Causes {
        match error {
            HostError::Device(OpenError::NoLibrary(error)) => (Some(error), None, None, None),
            HostError::Memlock(error) => (None, Some(error), None, None),
            HostError::Listen(error) => (None, None, Some(error), None),
            HostError::Unenforced(error) => (None, None, None, Some(error)),
            _ => (None, None, None, None),
        }
    }

    #[test]
    fn they_are_named() {
        let _ = (end, attach, causes);
    }
}

#[test]
fn what_calls_take_and_give_is_named_by_the_library() {
    let wrong: Result<Lifetime, NoLifetime> = "soon".parse();
    assert!(wrong.is_err());
    let _ = (holder, looked_at, filled_in, arena_of, batch_of, revoked, finished, lease_of);
    let _ = (refused::<ArenaMemory>, local_fault, not_mapped, state_of, audited);
    let _ = client_of::<SessionEndpoint>;
    let _ = |holder: &Holder| (holder.lease.deadline(), holder.counters.1.grants);
}

//! Protected remote memory.
//!
//! A memory node lends its memory. Clients read and write it one-sided, without the node's CPU on the path. Each client
//! can touch only the bytes that it holds a live permission on. When a permission ends, the NIC refuses accesses,
//! whatever the client does.
//!
//! ```no_run
//! use portcullis::{Acquire, Allocate, Lifetime, connect};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut session = connect("shm:/run/portcullis.sock")?;
//! let block = session.allocate(Allocate::bytes(4096).keep().lifetime(Lifetime::millis(50)))?;
//! session.write(&block, 0, b"hello, remote memory")?;
//! let object = block.object(); // names this object for ever: pass it on as text or bytes
//! session.revoke(block)?;
//!
//! let block = session.acquire(Acquire::object(object).read_only().shared())?;
//! let mut bytes = [0; 20];
//! session.read(&block, 0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello, remote memory");
//! # Ok(())
//! # }
//! ```
//!
//! [`connect`] and [`Session`] are the simple way: their calls wait for the answer.
//! [`Session::client`](WaitingClient::client) is for batches and for many requests in flight. [`host`] runs a node inside a program; the `portcullis` program runs a node by
//! itself.
#![forbid(unsafe_code)]

mod address;
mod chunk_allocator;
mod clock;
mod held;
pub mod host;
mod keeper;
pub mod names;
#[cfg(feature = "rdma")]
mod rdma;
mod retryable;
mod session;
pub mod size;
#[cfg(feature = "udp")]
mod udp;
mod waiting;

pub use address::{Address, UnknownAddress};
pub use chunk_allocator::{ChunkAllocator, ChunkOptions};
pub use clock::{Clock, ProcessClock};
pub use held::{AtDrop, Permission};
pub use keeper::{Kept, Tending};
pub use names::{FindError, Names};
#[cfg(any(feature = "rdma", feature = "udp"))]
pub use portcullis_attach::tls::{
    AttachError as TlsAttachError, ClientIdentity, ClientSecurity, IdentityError, NodeIdentity, NodeSecurity,
    Validity,
};
pub use portcullis_client::{
    Access, Acquire, Allocate, Answer, Ask, Batch, Begun, Buffer, Call, ClassOccupancy, Client, ClientConfig,
    ControlRequest, Counters as ClientCounters, Effect, Error, Lease, Located, NotBegun, NotFreed, Occupancy,
    Operation, Outcome, Permission as BarePermission, PermissionView, SmallObject, SmallObjectId,
    SmallObjects, Unchecked, Until, WAITING_CALLS_MAX, Withheld,
};
pub use portcullis_errors::{Coded, ErrorCode};
pub use portcullis_host::SessionEndpoint;
pub use portcullis_host::software::AttachError as PortAttachError;
pub use portcullis_memory::{ArenaMemory, Doorbell, LentBytes, LentBytesMut, Mapping, MappingError};
pub use portcullis_nic::{
    AskingQueuePairs, Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointSize, Guarantee,
    GuaranteeSet, Lend, Lkey, LocalSpan, Memory, OneShotOperations, Operation as NicOperation, Pollable,
    QpAddress, QpId, QpState, ReceiveRequest, RefusedAccess, RemoteSpan, Status, VerbsEndpoint, VerbsError,
    WindowBinding, WorkRequest,
};
pub use portcullis_node::{
    AuditEvent, AuditEvents, AuditRecord, AuditedAccess, AuditedChunk, AuditedMember, AuditedName,
    AuditedPermission, ChunkLimits, NodeConfig, Quota, Reductions, UnknownAuditEvent, ViolationLimits,
};
#[cfg(feature = "udp")]
pub use portcullis_onerma::UdpEndpoint;
pub use portcullis_protocol::{
    BadName, ChunkTerms, ClientId, Credential, DirectoryName, Entry, HandedOutBy, Holders, Incarnation, Keep,
    Lifetime, Mechanism, Moment, Named, NamedRequest, NoLifetime, ObjectName, ObjectRef, Part, PermissionId,
    Refusal, RemoteAddress, Rights, Rkey, Sharing, TenantName, UnknownIncarnation, UnknownMechanism,
    UnknownObjectRef, UnknownRights, UnknownSharing,
};
pub use portcullis_softnic::PortEndpoint;
#[cfg(feature = "rdma")]
pub use rdma::{DeviceChoice, IbEndpoint, NodeLife, RdmaAttachError, RdmaOptions};
pub use session::{
    Chunk, ConnectError, NotAllAllocated, NotAllFreed, Session, SessionOptions, connect, connect_with,
};
#[cfg(feature = "udp")]
pub use udp::{UdpError, UdpOptions, udp_segments};
pub use waiting::WaitingClient;

//! A NIC from its owner's point of view.

use crate::{
    Access, Capabilities, ChainNic, Completion, CqId, Memory, PdId, QpAddress, QpAttributes, QpChange, QpId,
    QpState, ReceiveRequest, RefusedAccess, Region, RegionId, RemoteAddress, VerbsError, Window, WindowId,
    WindowKind, WorkRequest,
};
use std::convert::Infallible;
use std::ops::Range;

/// An event on a queue pair that is not the completion of its owner's request (see `ibv_get_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer's access through this queue pair was refused: the queue pair is in ERR now (`IBV_EVENT_QP_ACCESS_ERR`). A
    /// software NIC adds its report about the access; no RDMA device does.
    AccessError(QpId, Option<RefusedAccess>),
    /// The queue pair went to ERR for another reason (`IBV_EVENT_QP_FATAL`).
    Fatal(QpId),
}

impl Event {
    /// The queue pair of the event.
    #[must_use]
    pub const fn queue_pair(&self) -> QpId {
        match *self {
            Self::AccessError(qp, _) | Self::Fatal(qp) => qp,
        }
    }
}

/// A NIC, as its node uses it. Objects are named by id. An object that is still in use cannot be destroyed
/// ([`VerbsError::Busy`]).
///
/// No call waits: requests are posted, completions are polled. A device that needs its owner's thread to make progress
/// makes it in [`Nic::poll`].
pub trait Nic {
    /// Memory that this NIC can register.
    type Memory: Memory;

    /// The features and limits of the device.
    fn capabilities(&self) -> Capabilities;

    /// Allocates zeroed memory that can be registered, on huge pages if the machine has some.
    ///
    /// # Errors
    /// The machine does not have enough memory.
    fn allocate_memory(&mut self, length: u64) -> Result<Self::Memory, VerbsError>;

    /// Creates a protection domain.
    ///
    /// # Errors
    /// The device has no more protection domains.
    fn allocate_pd(&mut self) -> Result<PdId, VerbsError>;

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// A region, window or queue pair is left in the domain.
    fn deallocate_pd(&mut self, pd: PdId) -> Result<(), VerbsError>;

    /// Registers `span` of `memory`. Peers and local spans name its first byte `base`.
    ///
    /// # Errors
    /// The span is empty or outside the memory, or remote write or atomic rights are requested without local write.
    fn register_region(
        &mut self,
        pd: PdId,
        memory: &Self::Memory,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError>;

    /// Deregisters a region. Its keys are refused from here on.
    ///
    /// # Errors
    /// A window is bound over the region.
    fn deregister_region(&mut self, region: RegionId) -> Result<(), VerbsError>;

    /// Allocates a window, which is bound to nothing.
    ///
    /// # Errors
    /// The device has no windows of this kind, or no more of them.
    fn allocate_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError>;

    /// Deallocates a window, bound or not. Its key is refused from here on.
    ///
    /// # Errors
    /// There is no such window.
    fn deallocate_window(&mut self, window: WindowId) -> Result<(), VerbsError>;

    /// Creates a completion queue that holds `depth` entries, a power of two.
    ///
    /// # Errors
    /// The device cannot create one so deep, or cannot create more.
    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError>;

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// A queue pair uses the completion queue.
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError>;

    /// Creates an RC queue pair, in RESET.
    ///
    /// # Errors
    /// A completion queue or the domain is unknown, or a depth is beyond the device's limit.
    fn create_qp(&mut self, pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError>;

    /// Destroys a queue pair, in any state.
    ///
    /// # Errors
    /// A type-2 window is bound to the queue pair.
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError>;

    /// The address at which a peer reaches this queue pair.
    ///
    /// # Errors
    /// There is no such queue pair.
    fn qp_address(&self, qp: QpId) -> Result<QpAddress, VerbsError>;

    /// The state of a queue pair.
    ///
    /// # Errors
    /// There is no such queue pair.
    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError>;

    /// Takes a queue pair to another state.
    ///
    /// # Errors
    /// The queue pair's state does not allow the step.
    fn modify_qp(&mut self, qp: QpId, change: QpChange) -> Result<(), VerbsError>;

    /// Posts requests with one doorbell, as many as the queue has room for, and returns their number. A full queue is
    /// not an error: the number is smaller then. A slot is free again when the completion of its request, or of a later
    /// one of the same queue, was polled.
    ///
    /// # Errors
    /// The queue pair does not accept requests in its state.
    fn post_send(&mut self, qp: QpId, requests: &[WorkRequest]) -> Result<usize, VerbsError>;

    /// Posts receives, as many as the queue has room for, and returns their number.
    ///
    /// # Errors
    /// The queue pair does not accept receives in its state.
    fn post_receive(&mut self, qp: QpId, requests: &[ReceiveRequest]) -> Result<usize, VerbsError>;

    /// Appends at most `most` completions to `into` and returns their number.
    ///
    /// # Errors
    /// There is no such completion queue.
    fn poll(&mut self, cq: CqId, most: usize, into: &mut Vec<Completion>) -> Result<usize, VerbsError>;

    /// Returns the next event, if one happened.
    fn poll_event(&mut self) -> Option<Event>;

    /// The part of this NIC for chains, if it has one.
    fn chains(&mut self) -> Option<impl ChainNic> {
        None::<Infallible>
    }

    /// The part of this NIC for chains.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`]: there is none.
    fn require_chains(&mut self) -> Result<impl ChainNic, VerbsError> {
        self.chains().ok_or(VerbsError::Unsupported("queue pairs for chains"))
    }
}

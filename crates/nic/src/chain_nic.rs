//! The part of a NIC for chains, from its owner's point of view.

use crate::{
    Access, ChainRole, CqId, PdId, QpAttributes, QpId, Region, RemoteAddress, VerbsError, WorkRequest,
};
use std::convert::Infallible;

/// The objects that chains need of a NIC: see [`Nic::chains`](crate::Nic::chains).
pub trait ChainNic {
    /// Creates an RC queue pair that is part of chains, in RESET. Requests and receives of a managed queue are posted
    /// as to any other queue, but only once: its ring then holds them for ever.
    ///
    /// # Errors
    /// The errors of [`Nic::create_qp`](crate::Nic::create_qp).
    fn create_chain_qp(
        &mut self,
        pd: PdId,
        attributes: QpAttributes,
        role: ChainRole,
    ) -> Result<QpId, VerbsError>;

    /// Creates a completion queue that holds no entries and only counts successful completions. It is never full. A
    /// failed request is reported as [`Event::Fatal`](crate::Event::Fatal).
    ///
    /// # Errors
    /// The device cannot create more.
    fn create_counting_cq(&mut self) -> Result<CqId, VerbsError>;

    /// Number of completions that a counting completion queue has counted, modulo 2^32.
    ///
    /// # Errors
    /// There is no such completion queue, or it is not a counting one.
    fn completions_counted(&self, cq: CqId) -> Result<u32, VerbsError>;

    /// Registers the memory of a managed send queue as a region of `pd`, so that requests of a chain can patch it: 64
    /// bytes for each request, as the NIC reads them. Peers and local spans name its first byte `base`.
    ///
    /// # Errors
    /// The queue is not managed, or the access flags make no sense.
    fn register_queue_memory(
        &mut self,
        pd: PdId,
        qp: QpId,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError>;

    /// Returns a request as it is stored in the memory of a managed queue ([`entry`](crate::entry)). A chain copies
    /// these bytes into a queue so that the request is executed there.
    ///
    /// # Errors
    /// The device does not have such a request.
    fn queue_entry(&self, request: &WorkRequest) -> Result<[u64; 8], VerbsError>;
}

impl<C: ChainNic> ChainNic for &mut C {
    fn create_chain_qp(
        &mut self,
        pd: PdId,
        attributes: QpAttributes,
        role: ChainRole,
    ) -> Result<QpId, VerbsError> {
        C::create_chain_qp(self, pd, attributes, role)
    }

    fn create_counting_cq(&mut self) -> Result<CqId, VerbsError> {
        C::create_counting_cq(self)
    }

    fn completions_counted(&self, cq: CqId) -> Result<u32, VerbsError> {
        C::completions_counted(self, cq)
    }

    fn register_queue_memory(
        &mut self,
        pd: PdId,
        qp: QpId,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        C::register_queue_memory(self, pd, qp, base, access)
    }

    fn queue_entry(&self, request: &WorkRequest) -> Result<[u64; 8], VerbsError> {
        C::queue_entry(self, request)
    }
}

/// The part of a NIC that has no chains: there is no value of it.
impl ChainNic for Infallible {
    fn create_chain_qp(&mut self, _: PdId, _: QpAttributes, _: ChainRole) -> Result<QpId, VerbsError> {
        match *self {}
    }

    fn create_counting_cq(&mut self) -> Result<CqId, VerbsError> {
        match *self {}
    }

    fn completions_counted(&self, _: CqId) -> Result<u32, VerbsError> {
        match *self {}
    }

    fn register_queue_memory(
        &mut self,
        _: PdId,
        _: QpId,
        _: RemoteAddress,
        _: Access,
    ) -> Result<Region, VerbsError> {
        match *self {}
    }

    fn queue_entry(&self, _: &WorkRequest) -> Result<[u64; 8], VerbsError> {
        match *self {}
    }
}

//! A queue pair: making it, changing its state, and querying its state.

use super::bindings::*;
use super::convention;
use super::objects::{Cq, Pd, Raw, Resource, flags};
use portcullis_nic::{Access, QpAddress, QpState};
use std::ffi::c_int;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) struct QpPlan<'a> {
    pub pd: &'a Pd,
    pub send_cq: &'a Cq,
    pub receive_cq: &'a Cq,
    pub send_depth: u32,
    pub receive_depth: u32,
    /// The number of bytes that a request may carry inline.
    pub inline_bytes: u32,
    /// The tag that the queue pair's events carry.
    pub tag: u32,
    /// Whether to request `ibv_wr_*`.
    pub extended: bool,
}

/// The route between this end and a peer, as seen from this end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// The port of this device, from one.
    pub port: u8,
    /// The index of the port's GID.
    pub gid_index: u8,
    pub mtu: ibv_mtu,
    /// READs and atomics that may be under way in each direction.
    pub reads_max: u8,
}

/// Exponent of the retransmission timeout: a packet that is not acknowledged is sent again after 4.096 µs × 2 to this
/// power: 67 ms.
const TIMEOUT: u8 = 14;
/// Number of times that a packet is sent again before the peer counts as dead. Not 7, the maximum, which Soft-RoCE
/// takes for «for ever».
const RETRIES: u8 = 6;
/// Time after which a SEND to an end without a posted receive is tried again: 0.16 ms (InfiniBand's code for that
/// time).
const RNR_TIMER: u8 = 8;
/// The most routers between the ends.
const HOPS_MAX: u8 = 64;

/// An RC queue pair.
pub(crate) struct Qp {
    pub(super) raw: NonNull<ibv_qp>,
    /// The same queue pair, for a provider with `ibv_wr_*`.
    pub(super) extended: Option<NonNull<ibv_qp_ex>>,
    pub(super) resource: Arc<Resource>,
    number: u32,
    inline_bytes: u32,
}

// SAFETY: libibverbs locks its objects itself; only the owner writes requests, through &mut.
unsafe impl Send for Qp {}

impl Qp {
    /// Makes a queue pair in RESET. If the provider has no `ibv_wr_*`, or not so many inline bytes, the queue pair has
    /// what the provider supports.
    pub fn new(plan: &QpPlan<'_>) -> io::Result<Self> {
        let first = if plan.extended { Self::with_requests(plan) } else { Self::classic(plan) };
        let (raw, extended, inline_bytes) = match first {
            Err(_) if plan.extended => Self::classic(plan),
            made => made,
        }?;
        let parents = [&plan.pd.resource, &plan.send_cq.resource, &plan.receive_cq.resource];
        let parents = parents.into_iter().map(Arc::clone).collect();
        let resource = Resource::new(Raw::Qp(raw), plan.pd.resource.context(), parents, None);
        // SAFETY: a live queue pair, whose number does not change.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        Ok(Self { raw, extended, resource, number, inline_bytes })
    }

    fn capabilities(plan: &QpPlan<'_>, inline_bytes: u32) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: plan.send_depth,
            max_recv_wr: plan.receive_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline_bytes,
        }
    }

    fn with_requests(plan: &QpPlan<'_>) -> io::Result<(NonNull<ibv_qp>, Option<NonNull<ibv_qp_ex>>, u32)> {
        let context = plan.pd.resource.context();
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let table = context.extended(offset_of!(verbs_context, create_qp_ex)).ok_or_else(unsupported)?;
        // SAFETY: the table reaches as far as this function, and does not change.
        let create = unsafe { (*table.as_ptr()).create_qp_ex }.ok_or_else(unsupported)?;
        let operations = IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_SEND_WITH_INV
            | IBV_QP_EX_WITH_RDMA_READ
            | IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
            | IBV_QP_EX_WITH_BIND_MW
            | IBV_QP_EX_WITH_LOCAL_INV;
        // SAFETY: plain numbers and pointers, for which zero means «nothing».
        let mut attributes: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.qp_context = std::ptr::without_provenance_mut(plan.tag as usize);
        attributes.send_cq = plan.send_cq.raw.as_ptr();
        attributes.recv_cq = plan.receive_cq.raw.as_ptr();
        attributes.cap = Self::capabilities(plan, plan.inline_bytes);
        attributes.qp_type = IBV_QPT_RC;
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.pd = plan.pd.raw.as_ptr();
        attributes.send_ops_flags = u64::from(operations);
        // SAFETY: an open context; the attributes name live objects of it.
        let raw = convention::object(unsafe { create(context.raw(), &raw mut attributes) })?;
        // SAFETY: a queue pair that was made with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.
        let extended = NonNull::new(unsafe { context.library().ibv_qp_to_qp_ex(raw.as_ptr()) });
        Ok((raw, extended, attributes.cap.max_inline_data))
    }

    fn classic(plan: &QpPlan<'_>) -> io::Result<(NonNull<ibv_qp>, Option<NonNull<ibv_qp_ex>>, u32)> {
        let mut said = Err(io::Error::from(io::ErrorKind::InvalidInput));
        for inline_bytes in [plan.inline_bytes, 0] {
            // SAFETY: plain numbers and pointers, for which zero means «nothing».
            let mut attributes: ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
            attributes.qp_context = std::ptr::without_provenance_mut(plan.tag as usize);
            attributes.send_cq = plan.send_cq.raw.as_ptr();
            attributes.recv_cq = plan.receive_cq.raw.as_ptr();
            attributes.cap = Self::capabilities(plan, inline_bytes);
            attributes.qp_type = IBV_QPT_RC;
            let library = plan.pd.resource.context().library();
            // SAFETY: a live domain; the attributes name live objects of its context.
            let raw = unsafe { library.ibv_create_qp(plan.pd.raw.as_ptr(), &raw mut attributes) };
            said = convention::object(raw).map(|raw| (raw, None, attributes.cap.max_inline_data));
            if said.is_ok() {
                break;
            }
        }
        said
    }

    /// The queue pair's number on the device.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The number of bytes that a request may carry inline.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Returns the state that the device reports.
    pub fn state(&self) -> io::Result<QpState> {
        let mut attributes: MaybeUninit<ibv_qp_attr> = MaybeUninit::zeroed();
        let mut made_with: MaybeUninit<ibv_qp_init_attr> = MaybeUninit::zeroed();
        let library = self.resource.context().library();
        let mask = mask(IBV_QP_STATE);
        let (room, other_room) = (attributes.as_mut_ptr(), made_with.as_mut_ptr());
        // SAFETY: a live queue pair, and room for both answers.
        convention::error_number(unsafe { library.ibv_query_qp(self.raw.as_ptr(), room, mask, other_room) })?;
        // SAFETY: plain numbers, zeroed and then filled in.
        let state = unsafe { attributes.assume_init() }.qp_state;
        Ok(match state {
            IBV_QPS_RESET => QpState::Reset,
            IBV_QPS_INIT => QpState::Init,
            IBV_QPS_RTR => QpState::ReadyToReceive,
            IBV_QPS_RTS | IBV_QPS_SQD => QpState::ReadyToSend,
            _ => QpState::Error,
        })
    }

    pub fn enter_reset(&mut self) -> io::Result<()> {
        self.modify(&attributes_to(IBV_QPS_RESET), IBV_QP_STATE)
    }

    pub fn enter_error(&mut self) -> io::Result<()> {
        self.modify(&attributes_to(IBV_QPS_ERR), IBV_QP_STATE)
    }

    pub fn enter_init(&mut self, port: u8, access: Access) -> io::Result<()> {
        let attributes =
            ibv_qp_attr { port_num: port, qp_access_flags: flags(access), ..attributes_to(IBV_QPS_INIT) };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(&attributes, mask)
    }

    /// Takes the queue pair to RTR. `peer.first_packet` is the number that the peer's first packet will have.
    pub fn enter_ready_to_receive(&mut self, route: Route, peer: &QpAddress) -> io::Result<()> {
        let mut attributes = ibv_qp_attr {
            path_mtu: route.mtu,
            dest_qp_num: peer.number,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: route.reads_max,
            min_rnr_timer: RNR_TIMER,
            ..attributes_to(IBV_QPS_RTR)
        };
        attributes.ah_attr.dlid = peer.lid;
        attributes.ah_attr.port_num = route.port;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.grh.dgid = ibv_gid { raw: peer.port };
        attributes.ah_attr.grh.sgid_index = route.gid_index;
        attributes.ah_attr.grh.hop_limit = HOPS_MAX;
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&attributes, mask)
    }

    pub fn enter_ready_to_send(
        &mut self,
        route: Route,
        first_packet: u32,
        rnr_retries: u8,
    ) -> io::Result<()> {
        let attributes = ibv_qp_attr {
            sq_psn: first_packet,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: rnr_retries,
            max_rd_atomic: route.reads_max,
            ..attributes_to(IBV_QPS_RTS)
        };
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&attributes, mask)
    }

    /// Changes the peer's rights, in INIT, RTR or RTS.
    pub fn set_access(&mut self, access: Access) -> io::Result<()> {
        let attributes = ibv_qp_attr { qp_access_flags: flags(access), ..attributes_to(IBV_QPS_RESET) };
        self.modify(&attributes, IBV_QP_ACCESS_FLAGS)
    }

    fn modify(&mut self, attributes: &ibv_qp_attr, which: ibv_qp_attr_mask) -> io::Result<()> {
        let mut attributes = *attributes;
        let library = self.resource.context().library();
        // SAFETY: a live queue pair; the attributes are plain numbers.
        let said = unsafe { library.ibv_modify_qp(self.raw.as_ptr(), &raw mut attributes, mask(which)) };
        convention::error_number(said)
    }
}

fn mask(mask: ibv_qp_attr_mask) -> c_int {
    c_int::try_from(mask).unwrap_or(c_int::MAX)
}

fn attributes_to(state: ibv_qp_state) -> ibv_qp_attr {
    // SAFETY: plain numbers, all of which may be zero.
    let mut attributes: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attributes.qp_state = state;
    attributes
}

//! Posts requests: with `ibv_wr_*` if the provider has these functions, with `ibv_post_send` otherwise. Requests that
//! are posted together share a doorbell, except binds: those of type-1 windows are a verb of their own (`ibv_bind_mw`),
//! and `ibv_post_send` is called at once after a bind of a type-2 window.

use super::bindings::*;
use super::convention;
use super::objects::{Mr, Mw, flags};
use super::queue_pair::Qp;
use portcullis_memory::Mapping;
use portcullis_nic::{Access, Memory, WindowKind};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The most bytes that a request carries inline: a control message.
pub(crate) const INLINE_BYTES: u32 = 128;

/// Bytes that a request carries inline: a copy, since the library may read them until the doorbell is rung, and the
/// client may write their memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineBytes {
    bytes: [u8; INLINE_BYTES as usize],
    length: usize,
}

impl InlineBytes {
    /// Copies some bytes. `None`: there are too many.
    pub fn copied(memory: &Mapping, offset: u64, length: u32) -> Option<Self> {
        let mut bytes = [0; INLINE_BYTES as usize];
        let length = usize::try_from(length).ok()?;
        memory.read(offset, bytes.get_mut(..length)?);
        Some(Self { bytes, length })
    }
}

/// Local bytes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSpan {
    pub address: u64,
    pub length: u32,
    pub lkey: u32,
    /// The bytes, if the request carries them inline: at most [`Qp::inline_bytes`].
    pub inline: Option<InlineBytes>,
}

/// The operation of a request, with libibverbs' own objects.
pub(crate) enum RawOperation<'a> {
    Send {
        local: RawSpan,
        invalidate: Option<u32>,
    },
    Read {
        local: RawSpan,
        address: u64,
        rkey: u32,
    },
    Write {
        local: RawSpan,
        address: u64,
        rkey: u32,
    },
    CompareAndSwap {
        local: RawSpan,
        address: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAndAdd {
        local: RawSpan,
        address: u64,
        rkey: u32,
        add: u64,
    },
    Bind {
        mw: &'a mut Mw,
        kind: WindowKind,
        rkey: u32,
        mr: &'a Mr,
        address: u64,
        length: u64,
        access: Access,
    },
    Invalidate {
        rkey: u32,
    },
}

impl RawOperation<'_> {
    fn is_inline(&self) -> bool {
        match self {
            Self::Send { local, .. } | Self::Write { local, .. } => local.inline.is_some(),
            _ => false,
        }
    }
}

pub(crate) struct RawRequest<'a> {
    pub id: u64,
    pub signalled: bool,
    pub operation: RawOperation<'a>,
}

/// Requests that are posted together. No request reaches the device before [`Posting::ring`], except at binds (see
/// above). A posting that is dropped posts nothing more.
#[must_use = "nothing is posted before it is rung"]
pub(crate) struct Posting<'a> {
    qp: &'a mut Qp,
    /// The requests for `ibv_post_send`: they are linked when the doorbell is rung.
    chain: Vec<Link>,
    /// Number of requests since `ibv_wr_start`, until `ibv_wr_complete`.
    begun: Option<usize>,
    /// Number of requests that the device has, or will receive with the next doorbell.
    posted: usize,
    error: Option<io::Error>,
}

/// A request of a chain, its span, and its inline bytes.
struct Link {
    wr: ibv_send_wr,
    sge: ibv_sge,
    inline: Option<InlineBytes>,
}

/// Aborts the posting: otherwise it would block its queue pair.
impl Drop for Posting<'_> {
    fn drop(&mut self) {
        let (Some(_), Some(extended)) = (self.begun.take(), self.qp.extended) else { return };
        // SAFETY: a live queue pair with a posting under way; the functions do not change.
        if let Some(abort) = unsafe { (*extended.as_ptr()).wr_abort } {
            // SAFETY: as above; the posting is aborted once.
            unsafe { abort(extended.as_ptr()) };
        }
    }
}

impl<'a> Posting<'a> {
    pub fn begin(qp: &'a mut Qp) -> Self {
        Self { qp, chain: Vec::new(), begun: None, posted: 0, error: None }
    }

    pub fn add(&mut self, request: RawRequest<'_>) {
        if self.error.is_some() {
            return;
        }
        if let RawOperation::Bind { mw, kind: WindowKind::One, rkey, mr, address, length, access } =
            request.operation
        {
            // `ibv_wr_bind_mw` is not used here, since mlx5 takes every window there for a type-2 window.
            self.hand_over();
            let bind = ibv_mw_bind {
                wr_id: request.id,
                send_flags: if request.signalled { IBV_SEND_SIGNALED } else { 0 },
                bind_info: bind_info(mr, address, length, access),
            };
            if self.error.is_none() {
                self.bind_type_1(mw, rkey, bind);
                self.posted += usize::from(self.error.is_none());
            }
        } else if let Some(extended) = self.qp.extended {
            self.add_extended(extended, request);
        } else {
            self.add_classic(request);
        }
    }

    /// Hands all requests to the device. Returns the number that the device accepted, and the error that stopped it.
    pub fn ring(mut self) -> (usize, Option<io::Error>) {
        self.hand_over();
        (self.posted, self.error.take())
    }

    /// Hands the requests added so far to the device.
    fn hand_over(&mut self) {
        self.ring_chain();
        let (Some(begun), Some(extended)) = (self.begun.take(), self.qp.extended) else { return };
        // SAFETY: a live queue pair with a posting under way; the functions do not change.
        let complete = unsafe { (*extended.as_ptr()).wr_complete };
        let said = match complete {
            // SAFETY: as above; the posting is completed once.
            Some(complete) => convention::error_number(unsafe { complete(extended.as_ptr()) }),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        if let Err(error) = said {
            // The device has accepted all of these requests or none.
            self.posted -= begun.min(self.posted);
            self.error = self.error.take().or(Some(error));
        }
    }

    /// Begins a posting with `ibv_wr_*`, unless one has begun, and counts one request.
    fn count_in(&mut self, extended: NonNull<ibv_qp_ex>) {
        if self.begun.is_none() {
            // SAFETY: a live queue pair, held exclusively, so that only this thread writes requests to it.
            if let Some(start) = unsafe { (*extended.as_ptr()).wr_start } {
                // SAFETY: as above.
                unsafe { start(extended.as_ptr()) };
            }
        }
        *self.begun.get_or_insert(0) += 1;
        self.posted += 1;
    }

    fn add_extended(&mut self, extended: NonNull<ibv_qp_ex>, request: RawRequest<'_>) {
        self.count_in(extended);
        let qp = extended.as_ptr();
        // SAFETY: a live queue pair, held exclusively, with a posting under way.
        unsafe { (*qp).wr_id = request.id };
        let flags = if request.signalled { IBV_SEND_SIGNALED } else { 0 };
        // The manual page does not require the flag, but Soft-RoCE does not find the bytes without it.
        let flags = if request.operation.is_inline() { flags | IBV_SEND_INLINE } else { flags };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = flags };
        // SAFETY: as above; the functions do not change.
        let functions = unsafe { extended.as_ref() };
        let local = match request.operation {
            RawOperation::Send { local, invalidate: None } => {
                // SAFETY: a posting under way; the same for the calls below.
                functions.wr_send.map(|call| unsafe { call(qp) }).map(|()| Some(local))
            }
            RawOperation::Send { local, invalidate: Some(rkey) } => {
                // SAFETY: as above.
                functions.wr_send_inv.map(|call| unsafe { call(qp, rkey) }).map(|()| Some(local))
            }
            RawOperation::Read { local, address, rkey } => {
                // SAFETY: as above.
                functions.wr_rdma_read.map(|call| unsafe { call(qp, rkey, address) }).map(|()| Some(local))
            }
            RawOperation::Write { local, address, rkey } => {
                // SAFETY: as above.
                functions.wr_rdma_write.map(|call| unsafe { call(qp, rkey, address) }).map(|()| Some(local))
            }
            RawOperation::CompareAndSwap { local, address, rkey, compare, swap } => functions
                .wr_atomic_cmp_swp
                // SAFETY: as above.
                .map(|call| unsafe { call(qp, rkey, address, compare, swap) })
                .map(|()| Some(local)),
            RawOperation::FetchAndAdd { local, address, rkey, add } => functions
                .wr_atomic_fetch_add
                // SAFETY: as above.
                .map(|call| unsafe { call(qp, rkey, address, add) })
                .map(|()| Some(local)),
            RawOperation::Bind { mw, rkey, mr, address, length, access, .. } => {
                let info = bind_info(mr, address, length, access);
                // SAFETY: as above; window and region are live.
                functions
                    .wr_bind_mw
                    .map(|call| unsafe { call(qp, mw.raw.as_ptr(), rkey, &raw const info) })
                    .map(|()| {
                        mw.set_rkey(rkey);
                        None
                    })
            }
            RawOperation::Invalidate { rkey } => {
                // SAFETY: as above.
                functions.wr_local_inv.map(|call| unsafe { call(qp, rkey) }).map(|()| None)
            }
        };
        let done = match local {
            None => None,
            Some(None) => Some(()),
            Some(Some(RawSpan { inline: Some(mut inline), .. })) => {
                let (bytes, length) = (inline.bytes.as_mut_ptr().cast(), inline.length);
                // SAFETY: as above; the call copies the bytes, which live until it returns.
                functions.wr_set_inline_data.map(|call| unsafe { call(qp, bytes, length) })
            }
            Some(Some(RawSpan { address, length, lkey, inline: None })) => {
                // SAFETY: as above; the device checks key and range.
                functions.wr_set_sge.map(|call| unsafe { call(qp, lkey, address, length) })
            }
        };
        if done.is_none() {
            self.posted -= 1;
            self.begun = self.begun.map(|begun| begun - 1);
            self.error = Some(io::ErrorKind::Unsupported.into());
        }
    }

    fn add_classic(&mut self, request: RawRequest<'_>) {
        // SAFETY: plain numbers and pointers, for which zero means «nothing».
        let mut wr: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr_id = request.id;
        wr.send_flags = if request.signalled { IBV_SEND_SIGNALED } else { 0 };
        let mut span = None;
        match request.operation {
            RawOperation::Send { local, invalidate } => {
                wr.opcode = if invalidate.is_some() { IBV_WR_SEND_WITH_INV } else { IBV_WR_SEND };
                wr.__bindgen_anon_1.invalidate_rkey = invalidate.unwrap_or(0);
                span = Some(local);
            }
            RawOperation::Read { local, address, rkey } => {
                wr.opcode = IBV_WR_RDMA_READ;
                wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey };
                span = Some(local);
            }
            RawOperation::Write { local, address, rkey } => {
                wr.opcode = IBV_WR_RDMA_WRITE;
                wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey };
                span = Some(local);
            }
            RawOperation::CompareAndSwap {
                local,
                address: remote_addr,
                rkey,
                compare: compare_add,
                swap,
            } => {
                wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                wr.wr.atomic =
                    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey };
                span = Some(local);
            }
            RawOperation::FetchAndAdd { local, address: remote_addr, rkey, add: compare_add } => {
                wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr.atomic =
                    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap: 0, rkey };
                span = Some(local);
            }
            RawOperation::Bind { mw, rkey, mr, address, length, access, .. } => {
                wr.opcode = IBV_WR_BIND_MW;
                let bind_info = bind_info(mr, address, length, access);
                wr.__bindgen_anon_2.bind_mw =
                    ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: mw.raw.as_ptr(), rkey, bind_info };
                // The doorbell is rung at once: until then the library needs the old key, afterwards the new one.
                self.push(wr, None);
                self.ring_chain();
                if self.error.is_none() {
                    mw.set_rkey(rkey);
                }
                return;
            }
            RawOperation::Invalidate { rkey } => {
                wr.opcode = IBV_WR_LOCAL_INV;
                wr.__bindgen_anon_1.invalidate_rkey = rkey;
            }
        }
        self.push(wr, span);
    }

    fn push(&mut self, mut wr: ibv_send_wr, span: Option<RawSpan>) {
        let mut sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
        if let Some(span) = span {
            sge = ibv_sge { addr: span.address, length: span.length, lkey: span.lkey };
            wr.num_sge = 1;
            if span.inline.is_some() {
                wr.send_flags |= IBV_SEND_INLINE;
            }
        }
        self.chain.push(Link { wr, sge, inline: span.and_then(|span| span.inline) });
        self.posted += 1;
    }

    /// Hands the requests in the chain to the device.
    fn ring_chain(&mut self) {
        let mut next = std::ptr::null_mut();
        for Link { wr, sge, inline } in self.chain.iter_mut().rev() {
            if let Some(inline) = inline {
                sge.addr = inline.bytes.as_ptr().expose_provenance() as u64;
            }
            wr.next = next;
            wr.sg_list = if wr.num_sge > 0 { std::ptr::from_mut(sge) } else { std::ptr::null_mut() };
            next = std::ptr::from_mut(wr);
        }
        if next.is_null() {
            return;
        }
        let Some(post) = self.qp.resource.context().operations().post_send else {
            self.error = Some(io::ErrorKind::Unsupported.into());
            return;
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, held exclusively; the chain and its spans live until it is cleared below.
        let said = convention::error_number(unsafe { post(self.qp.raw.as_ptr(), next, &raw mut bad) });
        if let Err(error) = said {
            let taken = self.chain.iter().position(|link| std::ptr::eq(&raw const link.wr, bad)).unwrap_or(0);
            self.posted -= (self.chain.len() - taken).min(self.posted);
            self.error = Some(error);
        }
        self.chain.clear();
    }

    /// Binds a type-1 window with `ibv_bind_mw`. The library advances the key itself, so it must have the preceding
    /// key.
    fn bind_type_1(&mut self, mw: &mut Mw, rkey: u32, mut bind: ibv_mw_bind) {
        let before = mw.rkey();
        if next_key(before) != rkey {
            // Only `ibv_wr_bind_mw` lets the caller choose the key.
            self.error = Some(io::ErrorKind::InvalidInput.into());
            return;
        }
        let Some(call) = self.qp.resource.context().operations().bind_mw else {
            self.error = Some(io::ErrorKind::Unsupported.into());
            return;
        };
        let (qp, window) = (self.qp.raw.as_ptr(), mw.raw.as_ptr());
        // SAFETY: live queue pair, window and region, the first two held exclusively.
        if let Err(error) = convention::error_number(unsafe { call(qp, window, &raw mut bind) }) {
            self.error = Some(error);
        }
    }

    /// Posts a receive, and returns whether the device accepted it.
    pub fn receive(qp: &mut Qp, id: u64, span: Option<RawSpan>) -> io::Result<()> {
        let post = qp.resource.context().operations().post_recv.ok_or(io::ErrorKind::Unsupported)?;
        let mut sge = span.map(|span| ibv_sge { addr: span.address, length: span.length, lkey: span.lkey });
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: sge.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut),
            num_sge: i32::from(span.is_some()),
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, held exclusively; the request and its span live during the call.
        convention::error_number(unsafe { post(qp.raw.as_ptr(), &raw mut wr, &raw mut bad) })
    }
}

/// Returns the key that `ibv_inc_rkey` makes of a key.
fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

fn bind_info(mr: &Mr, address: u64, length: u64, access: Access) -> ibv_mw_bind_info {
    ibv_mw_bind_info { mr: mr.raw.as_ptr(), addr: address, length, mw_access_flags: flags(access) }
}

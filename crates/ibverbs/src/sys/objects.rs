//! The objects of a device. Each keeps alive the objects that it was made from, and is destroyed before them.
//!
//! If the device refuses to destroy an object (a region under a window), the object goes to its context's reaper, with
//! its memory, and its destruction is tried again.

use super::bindings::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_WC_WITH_INV, ibv_cq, ibv_mr, ibv_mw, ibv_pd,
    ibv_qp, ibv_wc,
};
use super::context::Context;
use super::convention;
use portcullis_memory::Mapping;
use portcullis_nic::{Access, Memory, WindowKind};
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pointer of libibverbs.
#[derive(Clone, Copy)]
pub(super) enum Raw {
    Pd(NonNull<ibv_pd>),
    Mr(NonNull<ibv_mr>),
    Mw(NonNull<ibv_mw>),
    Cq(NonNull<ibv_cq>),
    Qp(NonNull<ibv_qp>),
}

impl Raw {
    fn give_back(self, context: &Context) -> io::Result<()> {
        let library = context.library();
        let said = match self {
            // SAFETY: an object of this context, destroyed once: it is not used after a success.
            Self::Pd(raw) => unsafe { library.ibv_dealloc_pd(raw.as_ptr()) },
            // SAFETY: as above.
            Self::Mr(raw) => unsafe { library.ibv_dereg_mr(raw.as_ptr()) },
            // SAFETY: as above.
            Self::Cq(raw) => unsafe { library.ibv_destroy_cq(raw.as_ptr()) },
            // SAFETY: as above.
            Self::Qp(raw) => unsafe { library.ibv_destroy_qp(raw.as_ptr()) },
            Self::Mw(raw) => {
                let deallocate = context.operations().dealloc_mw.ok_or(io::ErrorKind::Unsupported)?;
                // SAFETY: as above.
                unsafe { deallocate(raw.as_ptr()) }
            }
        };
        convention::error_number(said)
    }
}

/// An object and the objects that it needs.
pub(super) struct Resource {
    raw: Raw,
    context: Arc<Context>,
    /// The objects from which this one was made.
    parents: Vec<Arc<Resource>>,
    /// The bytes that the device may access through the object.
    memory: Option<Mapping>,
}

// SAFETY: libibverbs locks its objects itself; this type uses the pointer only to destroy the object.
unsafe impl Send for Resource {}
// SAFETY: as above.
unsafe impl Sync for Resource {}

impl Resource {
    pub fn new(
        raw: Raw,
        context: &Arc<Context>,
        parents: Vec<Arc<Self>>,
        memory: Option<Mapping>,
    ) -> Arc<Self> {
        Arc::new(Self { raw, context: Arc::clone(context), parents, memory })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        if let Err(error) = self.raw.give_back(&self.context) {
            tracing::debug!(%error, "the device does not take an object back yet");
            let (parents, memory) = (std::mem::take(&mut self.parents), self.memory.take());
            self.context.keep(Leftover { raw: self.raw, _parents: parents, _memory: memory });
        } else {
            self.context.reap();
        }
    }
}

/// An object that the device refused to destroy, and the objects that it needs.
pub(super) struct Leftover {
    raw: Raw,
    _parents: Vec<Arc<Resource>>,
    _memory: Option<Mapping>,
}

// SAFETY: as for Resource.
unsafe impl Send for Leftover {}

impl Leftover {
    pub fn give_back(&self, context: &Context) -> bool {
        self.raw.give_back(context).is_ok()
    }
}

/// A protection domain.
#[derive(Clone)]
pub(crate) struct Pd {
    pub(super) raw: NonNull<ibv_pd>,
    pub(super) resource: Arc<Resource>,
}

// SAFETY: libibverbs locks its objects itself.
unsafe impl Send for Pd {}

impl Pd {
    pub fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: an open context.
        let raw = convention::object(unsafe { context.library().ibv_alloc_pd(context.raw()) })?;
        Ok(Self { raw, resource: Resource::new(Raw::Pd(raw), context, Vec::new(), None) })
    }
}

/// A memory region.
#[derive(Clone)]
pub(crate) struct Mr {
    pub(super) raw: NonNull<ibv_mr>,
    _resource: Arc<Resource>,
}

// SAFETY: libibverbs locks its objects itself; the keys that are read here do not change.
unsafe impl Send for Mr {}

impl Mr {
    /// Registers `span` of `memory`, which must lie inside it, under addresses from `base` on.
    pub fn new(pd: &Pd, memory: &Mapping, span: &Range<u64>, base: u64, access: Access) -> io::Result<Self> {
        let inside = span.start < span.end && span.end <= memory.length();
        assert!(inside, "{span:?} lies outside {} bytes of memory", memory.length());
        let context = pd.resource.context();
        let offset = usize::try_from(span.start).unwrap_or(usize::MAX);
        let length = usize::try_from(span.end - span.start).unwrap_or(usize::MAX);
        // SAFETY: the span lies inside the mapping (checked above), which is one allocation.
        let start = unsafe { memory.start().add(offset) };
        let (pd_raw, start, flags) = (pd.raw.as_ptr(), start.as_ptr().cast(), flags(access));
        // SAFETY: a live domain, and mapped memory that is kept until the region is gone. There are no references into
        // it: a mapping gives none out.
        let raw = unsafe { context.library().ibv_reg_mr_iova2(pd_raw, start, length, base, flags) };
        let raw = convention::object(raw)?;
        let parents = vec![Arc::clone(&pd.resource)];
        Ok(Self { raw, _resource: Resource::new(Raw::Mr(raw), context, parents, Some(memory.clone())) })
    }

    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: a live region, whose keys do not change.
        let lkey = unsafe { (*self.raw.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*self.raw.as_ptr()).rkey };
        (lkey, rkey)
    }
}

/// The flags of `ibv_reg_mr` and of binds.
pub(super) fn flags(access: Access) -> u32 {
    let pairs = [
        (Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
        (Access::WINDOW_BIND, IBV_ACCESS_MW_BIND),
    ];
    pairs.into_iter().filter(|&(ours, _)| access.contains(ours)).fold(0, |flags, (_, theirs)| flags | theirs)
}

/// A memory window.
pub(crate) struct Mw {
    pub(super) raw: NonNull<ibv_mw>,
    _resource: Arc<Resource>,
}

// SAFETY: libibverbs locks its objects itself; only the owner reads and writes the key, and writes it through &mut.
unsafe impl Send for Mw {}

impl Mw {
    pub fn new(pd: &Pd, kind: WindowKind) -> io::Result<Self> {
        let context = pd.resource.context();
        let allocate = context.operations().alloc_mw.ok_or(io::ErrorKind::Unsupported)?;
        let kind = match kind {
            WindowKind::One => IBV_MW_TYPE_1,
            WindowKind::Two => IBV_MW_TYPE_2,
        };
        // SAFETY: a live domain.
        let raw = convention::object(unsafe { allocate(pd.raw.as_ptr(), kind) })?;
        Ok(Self {
            raw,
            _resource: Resource::new(Raw::Mw(raw), context, vec![Arc::clone(&pd.resource)], None),
        })
    }

    /// The key that the library has for the window, which it sends in binds.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live window; only its owner writes the key.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// Sets the key that the library has: `ibv_wr_bind_mw` leaves that to its caller, and so does a failed bind.
    pub fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: a live window, held exclusively.
        unsafe { (*self.raw.as_ptr()).rkey = rkey };
    }
}

/// A completion queue.
#[derive(Clone)]
pub(crate) struct Cq {
    pub(super) raw: NonNull<ibv_cq>,
    pub(super) resource: Arc<Resource>,
}

// SAFETY: libibverbs locks its objects itself.
unsafe impl Send for Cq {}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkCompletion {
    pub id: u64,
    pub status: u32,
    pub bytes: u32,
    pub invalidated: Option<u32>,
}

impl WorkCompletion {
    const NONE: Self = Self { id: 0, status: 0, bytes: 0, invalidated: None };
    /// The most entries that one poll returns.
    pub const BATCH: usize = 16;
}

impl Cq {
    /// Makes a queue that rings on the context's channel when it is armed.
    pub fn new(context: &Arc<Context>, depth: u32) -> io::Result<Self> {
        let depth = c_int::try_from(depth).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (library, channel) = (context.library(), context.channel());
        let tag = std::ptr::null_mut();
        // SAFETY: an open context and its live channel.
        let raw =
            convention::object(unsafe { library.ibv_create_cq(context.raw(), depth, tag, channel, 0) })?;
        Ok(Self { raw, resource: Resource::new(Raw::Cq(raw), context, Vec::new(), None) })
    }

    /// Takes completions from the queue, at most `most` and as many as fit.
    pub fn poll(&self, into: &mut [WorkCompletion; WorkCompletion::BATCH], most: usize) -> io::Result<usize> {
        let poll = self.resource.context().operations().poll_cq.ok_or(io::ErrorKind::Unsupported)?;
        let mut entries: [MaybeUninit<ibv_wc>; WorkCompletion::BATCH] =
            [const { MaybeUninit::uninit() }; WorkCompletion::BATCH];
        let most = c_int::try_from(most.min(entries.len())).unwrap_or(c_int::MAX);
        let room = entries.as_mut_ptr().cast();
        // SAFETY: a live queue, and room for as many entries as are requested.
        let polled = convention::count(unsafe { poll(self.raw.as_ptr(), most, room) })?;
        for (entry, said) in entries.iter().zip(into.iter_mut()).take(polled) {
            // SAFETY: the first `polled` entries were filled in.
            let entry = unsafe { entry.assume_init_ref() };
            *said = WorkCompletion { id: entry.wr_id, status: entry.status, ..WorkCompletion::NONE };
            // The other fields are defined only for successes.
            if entry.status == 0 {
                said.bytes = entry.byte_len;
                if entry.wc_flags & IBV_WC_WITH_INV != 0 {
                    // SAFETY: the flag shows which of the two fields is set.
                    said.invalidated = Some(unsafe { entry.__bindgen_anon_1.invalidated_rkey });
                }
            }
        }
        Ok(polled)
    }

    /// Returns room for [`Cq::poll`].
    pub fn room() -> [WorkCompletion; WorkCompletion::BATCH] {
        [WorkCompletion::NONE; WorkCompletion::BATCH]
    }

    /// Makes the queue ring once when a completion arrives. The caller has to poll afterwards for completions that
    /// arrived before.
    pub fn arm(&self) -> io::Result<()> {
        let arm = self.resource.context().operations().req_notify_cq.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: a live queue.
        convention::error_number(unsafe { arm(self.raw.as_ptr(), 0) })
    }

    /// Number of entries that the device gave the queue.
    pub fn depth(&self) -> u32 {
        // SAFETY: a live queue, whose depth does not change.
        u32::try_from(unsafe { (*self.raw.as_ptr()).cqe }).unwrap_or(0)
    }
}

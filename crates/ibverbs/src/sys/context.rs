//! An opened device: its attributes, its events, and objects that it has refused to destroy.

use super::bindings::{IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR};
use super::bindings::{
    Libibverbs, ibv_async_event, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_device_attr,
    ibv_gid_entry, ibv_port_attr, ibv_qp, verbs_context,
};
use super::convention;
use super::library::{DeviceList, library};
use super::objects::Leftover;
use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceEvent {
    /// A peer's access through the queue pair with this tag was refused.
    Refused(u32),
    /// The queue pair with this tag broke for another reason.
    Broken(u32),
    Other,
}

/// An opened device, and the channel on which its completion queues ring.
pub(crate) struct Context {
    library: &'static Libibverbs,
    raw: NonNull<ibv_context>,
    channel: NonNull<ibv_comp_channel>,
    /// Objects that the device refused to destroy.
    reaper: Mutex<Vec<Leftover>>,
}

// SAFETY: libibverbs locks its contexts itself: verbs may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name. `None`: the list has no such device.
    pub fn open(list: &DeviceList, name: &str) -> io::Result<Option<Arc<Self>>> {
        let Some(device) = list.find(name) else { return Ok(None) };
        let library = library().map_err(io::Error::other)?;
        // SAFETY: a device of a list that lives during the call.
        let raw = convention::object(unsafe { library.ibv_open_device(device) })?;
        // SAFETY: the context was just opened.
        let channel = convention::object(unsafe { library.ibv_create_comp_channel(raw.as_ptr()) });
        let channel = channel.inspect_err(|_| {
            // SAFETY: nothing was made from the context.
            let _ = unsafe { library.ibv_close_device(raw.as_ptr()) };
        })?;
        let context = Self { library, raw, channel, reaper: Mutex::default() };
        for descriptor in [context.event_descriptor(), context.channel_descriptor()] {
            let flags = rustix::fs::fcntl_getfl(descriptor)?;
            rustix::fs::fcntl_setfl(descriptor, flags | OFlags::NONBLOCK)?;
        }
        Ok(Some(Arc::new(context)))
    }

    pub(super) fn library(&self) -> &'static Libibverbs {
        self.library
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn channel(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    /// Returns the functions of the provider.
    pub(super) fn operations(&self) -> &ibv_context_ops {
        // SAFETY: an open context, whose functions do not change.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    /// Returns the newer functions of the provider, if its table reaches as far as the function at `offset`.
    pub(super) fn extended(&self, offset: usize) -> Option<NonNull<verbs_context>> {
        // SAFETY: an open context, whose marker does not change.
        let marker = unsafe { (*self.raw.as_ptr()).abi_compat };
        if marker.addr() != usize::MAX {
            return None;
        }
        // SAFETY: the marker shows that this context is the last field of a `verbs_context`.
        let extended = unsafe { self.raw.as_ptr().byte_sub(offset_of!(verbs_context, context)) };
        let extended = NonNull::new(extended.cast::<verbs_context>())?;
        // SAFETY: as above; the size does not change.
        let size = unsafe { (*extended.as_ptr()).sz };
        (size >= size_of::<verbs_context>() - offset).then_some(extended)
    }

    pub fn device_attributes(&self) -> io::Result<ibv_device_attr> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: an open context, and room for the answer.
        let said = unsafe { self.library.ibv_query_device(self.raw(), attributes.as_mut_ptr()) };
        convention::error_number(said)?;
        // SAFETY: plain numbers, zeroed and then filled in.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Returns a port's attributes. `port` counts from one.
    pub fn port_attributes(&self, port: u8) -> io::Result<ibv_port_attr> {
        let mut attributes: MaybeUninit<ibv_port_attr> = MaybeUninit::zeroed();
        // The exported function fills in the fields of the oldest ABI, with which all later ones begin.
        let room = attributes.as_mut_ptr().cast();
        // SAFETY: an open context, and room for more than the answer.
        let said = unsafe { self.library.ibv_query_port(self.raw(), port, room) };
        convention::error_number(said)?;
        // SAFETY: plain numbers, zeroed and then filled in.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Returns the entry of a port's GID table, if there is one at `index`.
    pub fn gid_entry(&self, port: u8, index: u32) -> Option<ibv_gid_entry> {
        let mut entry: MaybeUninit<ibv_gid_entry> = MaybeUninit::zeroed();
        let size = size_of::<ibv_gid_entry>();
        let (port, room) = (u32::from(port), entry.as_mut_ptr());
        // SAFETY: an open context, and room for an answer of the size that is passed.
        let said = unsafe { self.library._ibv_query_gid_ex(self.raw(), port, index, room, 0, size) };
        // SAFETY: plain numbers, zeroed and then filled in.
        convention::error_number(said).ok().map(|()| unsafe { entry.assume_init() })
    }

    /// A descriptor that is readable when [`Context::next_event`] has an event.
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context, whose descriptor does not change.
        let descriptor = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    /// A descriptor that is readable when an armed completion queue has an event: see [`Context::quiet`].
    pub fn channel_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the context, and its descriptor does not change.
        let descriptor = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    /// Removes the events of completion queues from the channel.
    pub fn quiet(&self) {
        let (mut cq, mut tag) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel that does not block, and room for the answer.
        while unsafe { self.library.ibv_get_cq_event(self.channel(), &raw mut cq, &raw mut tag) } == 0 {
            // Each event is acknowledged at once, since a queue with unacknowledged events cannot be destroyed.
            // SAFETY: the queue of the event. Destroying it waits for this acknowledgement.
            unsafe { self.library.ibv_ack_cq_events(cq, 1) };
        }
    }

    /// Returns the next event, if there is one. Never waits.
    pub fn next_event(&self) -> Option<DeviceEvent> {
        let mut event: MaybeUninit<ibv_async_event> = MaybeUninit::zeroed();
        // SAFETY: an open context whose descriptor does not block, and room for the answer.
        let said = unsafe { self.library.ibv_get_async_event(self.raw(), event.as_mut_ptr()) };
        convention::minus_one(said).ok()?;
        // SAFETY: the call filled it in.
        let mut event = unsafe { event.assume_init() };
        let kind = event.event_type;
        let queue_pairs = [IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_FATAL];
        let said = if queue_pairs.contains(&kind) {
            // SAFETY: events of these kinds name a queue pair.
            let qp = unsafe { event.element.qp };
            let tag = Self::tag(qp);
            if kind == IBV_EVENT_QP_FATAL { DeviceEvent::Broken(tag) } else { DeviceEvent::Refused(tag) }
        } else {
            DeviceEvent::Other
        };
        // SAFETY: the event came from ibv_get_async_event, and is acknowledged once.
        unsafe { self.library.ibv_ack_async_event(&raw mut event) };
        Some(said)
    }

    /// Returns the tag that the queue pair was made with.
    fn tag(qp: *mut ibv_qp) -> u32 {
        // SAFETY: a queue pair with an unacknowledged event. Destroying it waits for the acknowledgement.
        let tag = unsafe { (*qp).qp_context }.addr();
        u32::try_from(tag).unwrap_or(u32::MAX)
    }

    /// Keeps an object that the device refused to destroy.
    pub(super) fn keep(&self, leftover: Leftover) {
        self.reaper.lock().unwrap_or_else(PoisonError::into_inner).push(leftover);
    }

    /// Tries again to destroy the objects that the device refused to destroy before. Returns the number that is left.
    pub fn reap(&self) -> usize {
        let leftovers = std::mem::take(&mut *self.reaper.lock().unwrap_or_else(PoisonError::into_inner));
        // This runs outside the lock: dropping a leftover may drop its parents, which call `keep` or this function.
        let refused: Vec<Leftover> =
            leftovers.into_iter().filter(|leftover| !leftover.give_back(self)).collect();
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        reaper.extend(refused);
        reaper.len()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every completion queue keeps the context alive, so none is left on the channel.
        let _ = unsafe { self.library.ibv_destroy_comp_channel(self.channel()) };
        // SAFETY: every object keeps the context alive, so none is left.
        let _ = unsafe { self.library.ibv_close_device(self.raw()) };
    }
}

pub(crate) fn gid_bytes(gid: &super::bindings::ibv_gid) -> [u8; 16] {
    // SAFETY: both views of a GID are sixteen bytes, and any bytes are valid.
    unsafe { gid.raw }
}

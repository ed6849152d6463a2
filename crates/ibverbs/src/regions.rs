//! Regions and windows, and which lies over which.

use crate::sys::{Mr, Mw};
use portcullis_nic::{Access, LocalSpan, PdId, QpId, RegionId, WindowBinding, WindowKind};
use portcullis_softnic::shared::Mapping;
use std::ptr::NonNull;

/// A registered region.
pub(crate) struct MemoryRegion {
    pub mr: Mr,
    pub pd: PdId,
    pub memory: Mapping,
    /// Where in the memory it starts.
    pub start: u64,
    /// How its first byte is called.
    pub base: u64,
    pub length: u64,
    pub access: Access,
    /// Windows that lie over it.
    pub windows: u32,
}

impl MemoryRegion {
    /// Where a span's bytes are in this process, if the span lies inside the region.
    pub fn bytes(&self, span: &LocalSpan) -> Option<NonNull<u8>> {
        let offset = span.address.checked_sub(self.base)?;
        let inside = offset.checked_add(span.length.into())? <= self.length;
        let offset = usize::try_from(self.start.checked_add(offset)?).ok()?;
        let bytes = self.memory.start().as_ptr().wrapping_add(offset);
        NonNull::new(bytes).filter(|_| inside)
    }

    /// Whether a window may lie over it so: inside, and with no rights that the region's owner has not.
    pub fn carries(&self, binding: &WindowBinding) -> bool {
        let end = binding.address.0.checked_add(binding.length);
        let inside = binding.address.0 >= self.base && end.is_some_and(|end| end <= self.base + self.length);
        let writes = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let allowed = self.access.contains(Access::WINDOW_BIND)
            && (!writes || self.access.contains(Access::LOCAL_WRITE));
        binding.length == 0 || (inside && allowed)
    }
}

/// An allocated window.
pub(crate) struct MemoryWindow {
    pub mw: Mw,
    pub pd: PdId,
    pub kind: WindowKind,
    /// The region that it lies over, once the bind is reported.
    pub over: Option<RegionId>,
    /// The queue pair that it is bound to, if it is of type 2.
    pub on: Option<QpId>,
}

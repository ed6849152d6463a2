//! Regions and windows, which window lies over which region, and requests that name them.

use crate::queue_pair::Effect;
use crate::slots::Slots;
use crate::sys::{InlineBytes, Mr, Mw, RawOperation, RawSpan};
use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, LocalSpan, Operation, PdId, QpId, RegionId, Rkey, VerbsError, WindowBinding, WindowKind,
};
use std::collections::HashMap;

pub(crate) struct MemoryRegion {
    pub mr: Mr,
    pub pd: PdId,
    pub memory: Mapping,
    /// The offset in the memory at which the region starts.
    pub start: u64,
    /// The address of the region's first byte in requests.
    pub base: u64,
    pub length: u64,
    pub access: Access,
    /// Number of windows that lie over the region.
    pub windows: u32,
}

impl MemoryRegion {
    /// Returns a copy of a span's bytes, if the span lies inside the region and is short enough.
    pub fn bytes(&self, span: &LocalSpan) -> Option<InlineBytes> {
        let offset = span.address.checked_sub(self.base)?;
        let inside = offset.checked_add(span.length.into())? <= self.length;
        let offset = self.start.checked_add(offset).filter(|_| inside)?;
        InlineBytes::copied(&self.memory, offset, span.length)
    }

    /// Whether the region allows this binding: the window lies inside it, and has no rights that the region lacks.
    pub fn carries(&self, binding: &WindowBinding) -> bool {
        let end = binding.address.0.checked_add(binding.length);
        let inside = binding.address.0 >= self.base && end.is_some_and(|end| end <= self.base + self.length);
        let writes = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let allowed = self.access.contains(Access::WINDOW_BIND)
            && (!writes || self.access.contains(Access::LOCAL_WRITE));
        binding.length == 0 || (inside && allowed)
    }
}

pub(crate) struct MemoryWindow {
    pub mw: Mw,
    pub pd: PdId,
    pub kind: WindowKind,
    /// The region that the window lies over, once its bind has completed.
    pub over: Option<RegionId>,
    /// The queue pair that the window is bound to, if it is of type 2.
    pub on: Option<QpId>,
}

/// All regions and windows of a NIC.
pub(crate) struct Books {
    pub windows: Slots<MemoryWindow>,
    pub regions: Slots<MemoryRegion>,
    /// The ids of regions by the key of local spans.
    pub by_lkey: HashMap<u32, u32>,
}

impl Default for Books {
    fn default() -> Self {
        Self { windows: Slots::new("window"), regions: Slots::new("region"), by_lkey: HashMap::new() }
    }
}

impl Books {
    /// Whether a request of a queue pair in this domain may reach the device. Mistakes that devices handle carelessly
    /// are checked here too: binds beyond their region or across domains, and atomics over more or less than a word.
    pub fn is_sound(&self, pd: PdId, operation: &Operation) -> Result<bool, VerbsError> {
        match operation {
            Operation::CompareAndSwap { local, .. } | Operation::FetchAndAdd { local, .. } => {
                Ok(local.length == 8)
            }
            Operation::BindWindow(binding) => {
                let window = self.windows.get(binding.window.0)?;
                let region = self.regions.get(binding.region.0)?;
                let own_key = Rkey(window.mw.rkey()).index() == binding.rkey.index();
                Ok(window.pd == pd && region.pd == pd && own_key && region.carries(binding))
            }
            // No device has chains in the part of libibverbs that all devices share.
            Operation::Chain(_) => Ok(false),
            _ => Ok(true),
        }
    }

    /// Returns the change that a request makes when it succeeds.
    pub fn effect(&self, operation: &Operation) -> Effect {
        match *operation {
            Operation::BindWindow(binding) => Effect::Bind {
                window: binding.window,
                key_before: self.windows.get(binding.window.0).map_or(0, |window| window.mw.rkey()),
                over: (binding.length > 0).then_some(binding.region),
            },
            Operation::LocalInvalidate { rkey } => Effect::Invalidate { rkey: rkey.0 },
            _ => Effect::None,
        }
    }

    /// Restores the window's key after a request failed or was not posted: the library has advanced the key already.
    pub fn undo(&mut self, effect: Effect) {
        if let Effect::Bind { window, key_before, .. } = effect
            && let Ok(window) = self.windows.get_mut(window.0)
        {
            window.mw.set_rkey(key_before);
        }
    }

    /// Converts a span for libibverbs, with its bytes if they travel in the request.
    fn span(&self, pd: PdId, inline_bytes: u32, span: &LocalSpan) -> RawSpan {
        let short = span.length > 0 && span.length <= inline_bytes;
        let region = short.then(|| self.by_lkey.get(&span.lkey.0)).flatten();
        let region = region.and_then(|&region| self.regions.get(region).ok());
        // A key of another domain is left for the device to refuse.
        let inline = region.filter(|region| region.pd == pd).and_then(|region| region.bytes(span));
        RawSpan { address: span.address, length: span.length, lkey: span.lkey.0, inline }
    }

    /// Converts a request to libibverbs' own objects, if all objects that it names exist.
    pub fn raw(&mut self, pd: PdId, inline_bytes: u32, operation: &Operation) -> Option<RawOperation<'_>> {
        let outgoing = |span: &LocalSpan| self.span(pd, inline_bytes, span);
        let incoming = |span: &LocalSpan| self.span(pd, 0, span);
        Some(match *operation {
            Operation::Send { local } => RawOperation::Send { local: outgoing(&local), invalidate: None },
            Operation::SendWithInvalidate { local, rkey } => {
                RawOperation::Send { local: outgoing(&local), invalidate: Some(rkey.0) }
            }
            Operation::Write { local, remote } => {
                let (address, rkey) = (remote.address.0, remote.rkey.0);
                RawOperation::Write { local: outgoing(&local), address, rkey }
            }
            Operation::Read { local, remote } => {
                let (address, rkey) = (remote.address.0, remote.rkey.0);
                RawOperation::Read { local: incoming(&local), address, rkey }
            }
            Operation::CompareAndSwap { local, remote, compare, swap } => {
                let (address, rkey) = (remote.address.0, remote.rkey.0);
                RawOperation::CompareAndSwap { local: incoming(&local), address, rkey, compare, swap }
            }
            Operation::FetchAndAdd { local, remote, add } => {
                let (address, rkey) = (remote.address.0, remote.rkey.0);
                RawOperation::FetchAndAdd { local: incoming(&local), address, rkey, add }
            }
            Operation::BindWindow(binding) => {
                let window = self.windows.get_mut(binding.window.0).ok()?;
                RawOperation::Bind {
                    kind: window.kind,
                    mw: &mut window.mw,
                    rkey: binding.rkey.0,
                    mr: &self.regions.get(binding.region.0).ok()?.mr,
                    address: binding.address.0,
                    length: binding.length,
                    access: binding.access,
                }
            }
            Operation::LocalInvalidate { rkey } => RawOperation::Invalidate { rkey: rkey.0 },
            Operation::Chain(_) => return None,
        })
    }
}

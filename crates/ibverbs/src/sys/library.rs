//! The library, which is loaded at run time, and its devices.

use super::bindings::{Libibverbs, ibv_device};
use super::convention;
use portcullis_errors::{Coded, ErrorCode};
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The name of the library's file, on Linux distributions of the last ten years.
const FILE: &str = "libibverbs.so.1";

/// There is no libibverbs on this machine, or no usable one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no libibverbs here ({0}): install rdma-core (Debian and Ubuntu: apt-get install libibverbs1 ibverbs-providers)"
)]
pub struct NoLibrary(String);

impl Coded for NoLibrary {
    fn code(&self) -> ErrorCode {
        ErrorCode::NoLibrary
    }
}

/// Returns the library. It is loaded once in a process and never unloaded: its providers run threads and hold
/// descriptors.
pub(crate) fn library() -> Result<&'static Libibverbs, NoLibrary> {
    static LIBRARY: OnceLock<Result<Libibverbs, NoLibrary>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| {
        // SAFETY: the initialisers of libibverbs require nothing of their caller. The types of the functions come from
        // its own header, whose ABI it promises to keep under this file name.
        unsafe { Libibverbs::new(FILE) }.map_err(|error| NoLibrary(error.to_string()))
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// The devices of this machine at the time when the list was made.
pub(crate) struct DeviceList {
    library: &'static Libibverbs,
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    pub fn new() -> Result<Self, std::io::Error> {
        let library = library().map_err(std::io::Error::other)?;
        let mut count = 0;
        // SAFETY: the count is a live integer.
        let first = convention::object(unsafe { library.ibv_get_device_list(&raw mut count) })?;
        Ok(Self { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Returns the names of the devices.
    pub fn names(&self) -> Vec<String> {
        (0..self.count).filter_map(|index| self.name(index)).collect()
    }

    fn name(&self, index: usize) -> Option<String> {
        let device = self.device(index)?;
        // SAFETY: the device is in this list, which lives as long as self.
        let name = NonNull::new(unsafe { self.library.ibv_get_device_name(device) }.cast_mut())?;
        // SAFETY: the library returns a terminated string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Some(name.to_string_lossy().into_owned())
    }

    pub(super) fn find(&self, name: &str) -> Option<*mut ibv_device> {
        let index = (0..self.count).find(|&index| self.name(index).is_some_and(|it| it == name))?;
        self.device(index)
    }

    fn device(&self, index: usize) -> Option<*mut ibv_device> {
        if index >= self.count {
            return None;
        }
        // SAFETY: the index is below the count that came with the array.
        let entry = unsafe { self.first.add(index) };
        // SAFETY: an entry of the array, which is not written any more.
        let device = unsafe { entry.read() };
        (!device.is_null()).then_some(device)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list, and is freed once.
        unsafe { self.library.ibv_free_device_list(self.first.as_ptr()) };
    }
}

//! The functions of CUDA's driver that a registration needs. This is the only unsafe code about CUDA.
//!
//! The types are those of `cuda.h`. Symbols with `_v2` are the functions that this header names without it.

use super::{CudaError, SUCCESS};
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

/// `CU_MEMHOSTREGISTER_PORTABLE`: the memory counts as page-locked in every context.
pub(super) const PORTABLE: c_uint = 1;

/// A context of a device. It is the driver's handle, and this code never looks behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context(usize);

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type Release = unsafe extern "C" fn(c_int) -> c_int;
type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type GetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;
type Push = unsafe extern "C" fn(*mut c_void) -> c_int;
type Pop = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Unregister = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The functions. All of them may be called by any thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    init: Init,
    get_error_name: GetErrorName,
    device_get: DeviceGet,
    retain: Retain,
    release: Release,
    get_current: GetCurrent,
    get_device: GetDevice,
    push: Push,
    pop: Pop,
    register: Register,
    unregister: Unregister,
}

impl Functions {
    /// Loads the library, which is never unloaded, and finds its functions.
    pub(super) fn load(path: &Path) -> Result<Self, CudaError> {
        let library = || path.display().to_string();
        // SAFETY: the initialisers of the driver's library require nothing of their caller.
        let loaded = unsafe { Library::new(path) };
        let loaded = loaded.map_err(|error| {
            // The loader's reason is behind the error, whose own text says only that the loader failed.
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            CudaError::NoLibrary { library: library(), why }
        })?;
        let found = Self::find(&loaded);
        // The functions stay valid because the library stays loaded.
        std::mem::forget(loaded);
        found.map_err(|function| CudaError::TooOld { library: library(), function })
    }

    /// Finds the functions, or returns the name of one that the library lacks.
    fn find(library: &Library) -> Result<Self, &'static str> {
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the function has the type of the field, which is the one of `cuda.h`. The driver keeps the types
                // of its symbols: a changed function gets another suffix.
                let found = unsafe { library.get($name) };
                *found.map_err(|_| $name)?
            }};
        }
        Ok(Self {
            init: function!("cuInit"),
            get_error_name: function!("cuGetErrorName"),
            device_get: function!("cuDeviceGet"),
            retain: function!("cuDevicePrimaryCtxRetain"),
            release: function!("cuDevicePrimaryCtxRelease_v2"),
            get_current: function!("cuCtxGetCurrent"),
            get_device: function!("cuCtxGetDevice"),
            push: function!("cuCtxPushCurrent_v2"),
            pop: function!("cuCtxPopCurrent_v2"),
            register: function!("cuMemHostRegister_v2"),
            unregister: function!("cuMemHostUnregister"),
        })
    }

    /// Starts the driver in this process. It may be started any number of times.
    pub(super) fn init(&self) -> c_int {
        // SAFETY: the function has the type of `cuda.h`, and zero is its only valid argument.
        unsafe { (self.init)(0) }
    }

    /// Returns the name of a result.
    pub(super) fn name_of(&self, number: c_int) -> String {
        let mut name = null();
        // SAFETY: the function has the type of `cuda.h`, and `name` is a live pointer.
        let found = unsafe { (self.get_error_name)(number, &raw mut name) };
        if found != SUCCESS || name.is_null() {
            return "an unknown result".to_owned();
        }
        // SAFETY: the driver has returned a terminated string, which is a constant of its library.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Returns the device of the calling thread's context, if the thread has a context.
    pub(super) fn current_device(&self) -> Option<c_int> {
        let mut context = null_mut();
        // SAFETY: the function has the type of `cuda.h`, and `context` is a live pointer.
        let found = unsafe { (self.get_current)(&raw mut context) };
        if found != SUCCESS || context.is_null() {
            return None;
        }
        let mut device = 0;
        // SAFETY: as above, with a live integer.
        let found = unsafe { (self.get_device)(&raw mut device) };
        (found == SUCCESS).then_some(device)
    }

    /// Returns the first device, or the driver's result.
    pub(super) fn first_device(&self) -> Result<c_int, c_int> {
        let mut device = 0;
        // SAFETY: the function has the type of `cuda.h`, and `device` is a live integer.
        let found = unsafe { (self.device_get)(&raw mut device, 0) };
        if found == SUCCESS { Ok(device) } else { Err(found) }
    }

    /// Returns a device's primary context, which stays until it is released, or the driver's result.
    pub(super) fn retain_primary(&self, device: c_int) -> Result<Context, c_int> {
        let mut context = null_mut();
        // SAFETY: the function has the type of `cuda.h`, and `context` is a live pointer.
        let found = unsafe { (self.retain)(&raw mut context, device) };
        if found == SUCCESS { Ok(Context(context.expose_provenance())) } else { Err(found) }
    }

    /// Releases a device's primary context, once for each time that it was retained.
    pub(super) fn release_primary(&self, device: c_int) -> c_int {
        // SAFETY: the function has the type of `cuda.h`, and checks its argument.
        unsafe { (self.release)(device) }
    }

    /// Makes a context that of the calling thread, until [`Functions::pop`].
    pub(super) fn push(&self, context: Context) -> c_int {
        // SAFETY: the function has the type of `cuda.h`. Only `retain_primary` makes contexts, and the registration that
        // has one releases it last.
        unsafe { (self.push)(std::ptr::with_exposed_provenance_mut(context.0)) }
    }

    /// Gives the calling thread the context back that it had before [`Functions::push`].
    pub(super) fn pop(&self) -> c_int {
        let mut context = null_mut();
        // SAFETY: the function has the type of `cuda.h`, and `context` is a live pointer.
        unsafe { (self.pop)(&raw mut context) }
    }

    /// Registers memory in the calling thread's context.
    pub(super) fn register(&self, address: *mut u8, bytes: u64, flags: c_uint) -> c_int {
        // A length that no address has is one that the driver refuses.
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the function has the type of `cuda.h`. The driver locks the pages of mapped memory, refuses any other
        // address, and neither reads nor writes the bytes.
        unsafe { (self.register)(address.cast(), bytes, flags) }
    }

    /// Ends the registration of the memory at an address, in the calling thread's context.
    pub(super) fn unregister(&self, address: *mut u8) -> c_int {
        // SAFETY: the function has the type of `cuda.h`, and refuses an address that is not registered.
        unsafe { (self.unregister)(address.cast()) }
    }
}

//! Registration of a session's arena with CUDA: GPUs then copy from and to the arena without the processor, and while
//! the program goes on.
//!
//! This uses the library of CUDA's driver, not that of the runtime. The driver's library is on the loader's path
//! wherever a driver is installed. The runtime's library need not be: frameworks bring copies of their own, in folders
//! and under names of their own. The runtime uses each device's primary context, as this code does, so memory that is
//! registered here is page-locked for the runtime and for every framework over it.

mod driver;

use driver::{Context, Functions, PORTABLE};
use portcullis::ArenaMemory;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::forks;
use std::ffi::c_int;
use std::path::Path;

/// The driver's results that are told apart, by their numbers in `cuda.h`.
const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;

/// Whether a session's arena is to be registered with CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WantedCuda {
    /// No. Nothing is loaded.
    #[default]
    No,
    /// Yes, and it is an error if that is impossible.
    Required,
    /// Yes, if that is possible.
    IfPossible,
}

/// The reason why an arena could not be registered with CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The library of CUDA's driver cannot be loaded, or not be used: it is a stub, or does not fit the kernel's driver.
    #[error(
        "no CUDA driver here: {library} cannot be used ({why}): install NVIDIA's driver; start a container with the \
         driver's libraries (docker run --gpus all); or do without CUDA (cuda=False in Python, PORTCULLIS_CUDA_NO in C)"
    )]
    NoLibrary {
        /// The file that was looked for.
        library: String,
        /// The loader's reason.
        why: String,
    },
    /// The library lacks a function, so it is older than CUDA 11 or is another library.
    #[error("{library} has no {function}: install a driver for CUDA 11 or later (version 450)")]
    TooOld {
        /// The file that was loaded.
        library: String,
        /// The function.
        function: &'static str,
    },
    /// The driver finds no GPU.
    #[error(
        "{library} finds no GPU: see whether nvidia-smi lists one and whether CUDA_VISIBLE_DEVICES hides it, or do \
         without CUDA (cuda=False in Python, PORTCULLIS_CUDA_NO in C)"
    )]
    NoDevice {
        /// The file that was loaded.
        library: String,
    },
    /// The driver refused a call.
    #[error(
        "{library} refused {call} for an arena of {bytes} bytes, with {name} ({number}): see whether nvidia-smi shows \
         the GPU, and whether a smaller arena is accepted"
    )]
    Refused {
        /// The file that was loaded.
        library: String,
        /// The driver's function.
        call: &'static str,
        /// Bytes of the arena.
        bytes: u64,
        /// The name of the driver's result.
        name: String,
        /// The number of the driver's result.
        number: i32,
    },
}

impl Coded for CudaError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoLibrary { .. } | Self::TooOld { .. } | Self::NoDevice { .. } => ErrorCode::NoCuda,
            Self::Refused { .. } => ErrorCode::CudaRefused,
        }
    }
}

/// CUDA's driver, as its library was loaded. The library stays loaded until the process ends: it runs threads.
#[derive(Debug)]
pub struct CudaDriver {
    functions: Functions,
    library: String,
}

impl CudaDriver {
    /// The name of the driver's library on Linux.
    pub const LIBRARY: &str = "libcuda.so.1";

    /// Loads the driver's library: by a path, or by a name that the loader looks for.
    ///
    /// # Errors
    /// There is no such library, or it lacks a function.
    pub fn load(library: &Path) -> Result<Self, CudaError> {
        let functions = Functions::load(library)?;
        Ok(Self { functions, library: library.display().to_string() })
    }

    /// Registers all bytes of an arena, for all GPUs. The registration ends when the last handle on the arena, such as
    /// a buffer, is dropped, before the arena's memory is unmapped.
    ///
    /// The memory is registered in the primary context of the calling thread's device or, if the thread has none yet, of
    /// the first device. That context stays until the registration ends.
    ///
    /// # Errors
    /// The driver finds no GPU, or refuses.
    pub fn register(self, arena: &ArenaMemory, bytes: u64) -> Result<(), CudaError> {
        let registration = self.try_to_register(arena.address(), bytes).map_err(|refused| match refused {
            (_, NO_DEVICE) => CudaError::NoDevice { library: self.library.clone() },
            ("cuInit", number) => CudaError::NoLibrary {
                library: self.library.clone(),
                why: format!("cuInit: {} ({number})", self.functions.name_of(number)),
            },
            (call, number) => CudaError::Refused {
                library: self.library.clone(),
                call,
                bytes,
                name: self.functions.name_of(number),
                number,
            },
        })?;
        arena.keep_until_unmapped(registration);
        Ok(())
    }

    /// Registers memory. An error is the name of the refused function, and the driver's result.
    fn try_to_register(&self, address: *mut u8, bytes: u64) -> Result<Registration, (&'static str, c_int)> {
        let functions = self.functions;
        check("cuInit", functions.init())?;
        let device = match functions.current_device() {
            Some(device) => device,
            None => functions.first_device().map_err(|number| ("cuDeviceGet", number))?,
        };
        let context =
            functions.retain_primary(device).map_err(|number| ("cuDevicePrimaryCtxRetain", number))?;
        // From here on the drop of this value releases the context.
        let mut registration = Registration { functions, device, context, address: None, forks: forks() };
        let registered = registration.within_context(|| functions.register(address, bytes, PORTABLE))?;
        check("cuMemHostRegister", registered)?;
        registration.address = Some(address.expose_provenance());
        Ok(registration)
    }
}

fn check(call: &'static str, number: c_int) -> Result<(), (&'static str, c_int)> {
    if number == SUCCESS { Ok(()) } else { Err((call, number)) }
}

/// Registered memory. The drop ends the registration.
#[derive(Debug)]
struct Registration {
    functions: Functions,
    device: c_int,
    context: Context,
    /// Address of the memory. `None`: the memory is not registered.
    address: Option<usize>,
    /// The value of [`forks`] in the process that registered the memory.
    forks: u32,
}

impl Registration {
    /// Makes a call while the registration's context is that of the calling thread.
    fn within_context(&self, act: impl FnOnce() -> c_int) -> Result<c_int, (&'static str, c_int)> {
        check("cuCtxPushCurrent", self.functions.push(self.context))?;
        let number = act();
        // The thread gets back the context that it had. If that fails, the context was destroyed meanwhile.
        let _ = self.functions.pop();
        Ok(number)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A child of `fork` cannot use CUDA, and the registration is its parent's.
        if forks() != self.forks {
            return;
        }
        // The driver refuses these calls once it has shut down at the end of the process. Its registrations are gone then.
        if let Some(address) = self.address {
            let functions = self.functions;
            let _ =
                self.within_context(|| functions.unregister(std::ptr::with_exposed_provenance_mut(address)));
        }
        let _ = self.functions.release_primary(self.device);
    }
}

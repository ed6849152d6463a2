//! Sessions.

use crate::border::{Text, call, given};
use crate::handles::{self, Session, SessionState};
use portcullis::{Lifetime, Memory, SessionOptions as Options};
use portcullis_foreign::{Attached, CudaDriver, Misuse, WantedCuda};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// Options with which a session is opened. All zeros: the defaults.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SessionOptions {
    /// Bytes of the arena, from which all transfers and buffers take memory. Zero: 4 MiB.
    pub arena_bytes: u64,
    /// Largest number of operations that may be under way at once. Zero: 1024.
    pub operations_max: u32,
    /// Longest time that the attach, and each operation and call, may wait for the node, in microseconds. After this
    /// time the operation or call ends with `PORTCULLIS_ERROR_TIMED_OUT`, and the session continues. A request that may
    /// wait at the node for other holders has that waiting time besides. Zero: 5 seconds.
    pub within: u32,
}

impl SessionOptions {
    pub(crate) fn options(given: Option<&Self>) -> Options {
        let mut options = Options::default();
        let given = given.copied().unwrap_or_default();
        if given.arena_bytes > 0 {
            options.arena_bytes = given.arena_bytes;
        }
        if given.operations_max > 0 {
            options.client.operations_max = given.operations_max;
        }
        if given.within > 0 {
            options.within = Lifetime(given.within.into());
        }
        options
    }
}

/// Connects to the node at an address: `shm:/run/portcullis.sock`, `rdma:HOST:PORT`, `udp:HOST:PORT`, or
/// `name:TENANT/NODE`. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_connect(
    address: Text,
    options: Option<&SessionOptions>,
    session: Option<&mut Session>,
) -> c_int {
    call(|| {
        let session = given("session", session)?;
        *session = Session::default();
        let attached = Attached::connect(address.read("address")?, SessionOptions::options(options))?;
        session.id = handles::open(SessionState::new(attached))?;
        Ok(())
    })
}

/// Ends a session, with everything that belongs to it: permissions, buffers, keepers, and operations under way. When
/// this returns, no operation of the session uses the program's memory any more.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_session_close(session: Session) -> c_int {
    call(|| {
        drop(handles::close::<SessionState>(session.id)?);
        Ok(())
    })
}

/// Gets the client's number on its node. The node's audit log names the client by this number.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_session_number(session: Session, number: Option<&mut u64>) -> c_int {
    call(|| {
        let number = given("number", number)?;
        *number = handles::enter::<SessionState>(session.id)?.attached.session.number();
        Ok(())
    })
}

/// The arena is not registered with CUDA. Nothing is loaded.
pub const PORTCULLIS_CUDA_NO: u32 = 0;
/// The arena is registered with CUDA, and the call fails if that is impossible.
pub const PORTCULLIS_CUDA_REQUIRED: u32 = 1;
/// The arena is registered with CUDA if that is possible.
pub const PORTCULLIS_CUDA_IF_POSSIBLE: u32 = 2;

/// The arena of a session: the memory of all its buffers, and of the session's own messages.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArenaInfo {
    /// Address of the first byte. It is the first byte of a page. Programs read and write only bytes of their buffers.
    pub data: *mut c_void,
    /// Number of bytes.
    pub length: u64,
    /// Whether the arena is registered with CUDA.
    pub cuda: bool,
    /// Reserved: zeros.
    pub reserved: [u8; 7],
}

/// Gets the address and the length of the session's arena, for a device's driver that is to copy from and to buffers.
///
/// `cuda` is one of `PORTCULLIS_CUDA_...`. It says whether the arena is registered with CUDA first: then a GPU copies
/// from and to buffers asynchronously. A registered arena stays registered. The library is `libcuda.so.1` of CUDA's
/// driver, which is loaded by this call. The registration ends with the session, before its memory is unmapped. The
/// program waits for copies of its GPUs before it closes the session. `PORTCULLIS_ERROR_NO_CUDA`: there is no such
/// library, or no GPU. `PORTCULLIS_ERROR_CUDA_REFUSED`: the driver refused.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_session_arena(
    session: Session,
    cuda: u32,
    arena: Option<&mut ArenaInfo>,
) -> c_int {
    call(|| {
        let to = given("arena", arena)?;
        *to = ArenaInfo { data: std::ptr::null_mut(), length: 0, cuda: false, reserved: [0; 7] };
        let wanted = match cuda {
            PORTCULLIS_CUDA_NO => WantedCuda::No,
            PORTCULLIS_CUDA_REQUIRED => WantedCuda::Required,
            PORTCULLIS_CUDA_IF_POSSIBLE => WantedCuda::IfPossible,
            _ => {
                let wrong =
                    "is none of PORTCULLIS_CUDA_NO, PORTCULLIS_CUDA_REQUIRED and PORTCULLIS_CUDA_IF_POSSIBLE";
                return Err(Misuse::Argument { argument: "cuda", wrong }.into());
            }
        };
        let mut state = handles::enter::<SessionState>(session.id)?;
        to.cuda = state.attached.register_with_cuda(wanted, Path::new(CudaDriver::LIBRARY))?;
        let arena = state.attached.session.arena();
        (to.data, to.length) = (arena.address().cast(), arena.length());
        Ok(())
    })
}

/// Gets the session's descriptor. After `portcullis_arm`, an event loop waits until the descriptor is readable. The
/// descriptor stays the same for the life of the session. Only the session reads from it and closes it.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_descriptor(session: Session, descriptor: Option<&mut c_int>) -> c_int {
    call(|| {
        let descriptor = given("descriptor", descriptor)?;
        *descriptor = handles::enter::<SessionState>(session.id)?.attached.session.descriptor().as_raw_fd();
        Ok(())
    })
}

/// Prepares the session's descriptor: from now on it becomes readable when something arrives or the node ends.
/// `microseconds` becomes the longest time that the event loop may wait before it calls `portcullis_poll`. Zero:
/// something has already arrived, or the session is over. `UINT64_MAX`: the wait has no limit. Any other call on the
/// session undoes this, so this call must be the last one before the wait.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_arm(session: Session, microseconds: Option<&mut u64>) -> c_int {
    call(|| {
        let microseconds = given("microseconds", microseconds)?;
        let mut state = handles::enter::<SessionState>(session.id)?;
        *microseconds = match state.attached.session.arm() {
            Duration::MAX => u64::MAX,
            wait => u64::try_from(wait.as_micros()).unwrap_or(u64::MAX),
        };
        Ok(())
    })
}

/// Processes what has arrived for the session, without waiting. `ended` becomes the number of completions that
/// `portcullis_wait` can return.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_poll(session: Session, ended: Option<&mut usize>) -> c_int {
    call(|| {
        let ended = given("ended", ended)?;
        *ended = handles::enter::<SessionState>(session.id)?.attached.poll();
        Ok(())
    })
}

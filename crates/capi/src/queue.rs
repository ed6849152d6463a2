//! Queues.

use crate::border::{Source, Target, Text, call, given};
use crate::handles::{self, QueueHandle, QueueState, Session, SessionState};
use crate::permissions::{Object, keep};
use crate::table::{address_of, name_of};
use portcullis::{Keep, Lifetime};
use portcullis_foreign::Driven;
use portcullis_structures::queue::{Queue, QueueOptions as Options};
use std::ffi::{c_int, c_void};

/// Options with which a queue is made. All zeros: the defaults.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QueueOptions {
    /// Longest time for which a client's death can hold up other clients, in microseconds. Zero: 10 ms.
    pub lease: u64,
    /// Time for which the queue is kept while no client has a permission on it: `PORTCULLIS_KEEP_...`, or microseconds
    /// after the tenant's last client has left. Zero: `PORTCULLIS_KEEP_ATTACHED`.
    pub keep: u64,
    /// Number of slots of a segment: 64 to 1024. Zero: 1024.
    pub segment_slots: u32,
    /// Bytes of a slot's cell: a multiple of 8. An entry takes as many slots of one segment as it fills cells. Zero:
    /// 64.
    pub cell_bytes: u32,
    /// Largest number of segments that the queue may have at a time. Zero: 1024.
    pub segments_max: u32,
    /// Whether entries are claimed (`portcullis_queue_claim`) and acknowledged, instead of popped.
    pub claims: bool,
    /// Reserved: zeros.
    pub reserved: [u8; 3],
}

impl QueueOptions {
    fn options(given: Option<&Self>) -> Options {
        let (given, usual) = (given.copied().unwrap_or_default(), Options::default());
        let or = |given, usual| if given == 0 { usual } else { given };
        Options {
            lease: if given.lease == 0 { usual.lease } else { Lifetime(given.lease) },
            keep: if given.keep == 0 { Keep::Attached } else { keep(given.keep) },
            segment_slots: or(given.segment_slots, usual.segment_slots),
            cell_bytes: or(given.cell_bytes, usual.cell_bytes),
            segments_max: or(given.segments_max, usual.segments_max),
            claims: given.claims,
        }
    }
}

/// Makes an empty queue. If `name` is not null, the queue gets this name in the tenant. `options` may be null. The
/// handle has a session of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_queue_create(
    session: Session,
    name: Text,
    options: Option<&QueueOptions>,
    queue: Option<&mut QueueHandle>,
) -> c_int {
    call(|| {
        let handle = given("queue", queue)?;
        *handle = QueueHandle::default();
        let (name, options) = (name_of(name)?, QueueOptions::options(options));
        let another = handles::enter::<SessionState>(session.id)?.attached.session.another()?;
        let queue = Driven::<Queue>::create(another, &options, name)?;
        handle.id = handles::open(QueueState::new(queue))?;
        Ok(())
    })
}

/// Opens a queue that exists. The caller gives either its name in the tenant or the object that is its head; the other
/// argument is null. The handle has a session of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_queue_open(
    session: Session,
    name: Text,
    head: Option<&Object>,
    queue: Option<&mut QueueHandle>,
) -> c_int {
    call(|| {
        let handle = given("queue", queue)?;
        *handle = QueueHandle::default();
        let address = address_of(name, head)?;
        let another = handles::enter::<SessionState>(session.id)?.attached.session.another()?;
        let queue = Driven::<Queue>::open(another, address)?;
        handle.id = handles::open(QueueState::new(queue))?;
        Ok(())
    })
}

/// Gets the object that names the queue. Other clients can open the queue by this object.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_head(queue: QueueHandle, head: Option<&mut Object>) -> c_int {
    call(|| {
        let head = given("head", head)?;
        *head = handles::enter::<QueueState>(queue.id)?.queue.run(async |queue| queue.head()).into();
        Ok(())
    })
}

/// Adds an entry at the end of the queue. After an error of the session, the entry may or may not have been added, but
/// never twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_queue_push(
    queue: QueueHandle,
    entry: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        let entry = Source(entry).bytes("entry", length)?;
        handles::enter::<QueueState>(queue.id)?.queue.run(async |queue| queue.push(entry).await)?;
        Ok(())
    })
}

/// Takes the first entry, and waits for one for `microseconds` at most. `is_found` becomes true if there was an entry.
/// `length` becomes the length of the entry. If `room` is too short for the entry, which is an error, the handle keeps
/// the entry for the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_queue_pop(
    queue: QueueHandle,
    microseconds: u64,
    entry: *mut c_void,
    room: usize,
    length: Option<&mut usize>,
    is_found: Option<&mut bool>,
) -> c_int {
    call(|| {
        let (length, is_found) = (given("length", length)?, given("is_found", is_found)?);
        (*length, *is_found) = (0, false);
        let mut state = handles::enter::<QueueState>(queue.id)?;
        let popped = match state.left.take() {
            Some(left) => Some(left),
            None if microseconds == 0 => state.queue.run(async |queue| queue.pop().await)?,
            None => state.queue.run(async |queue| queue.pop_within(Lifetime(microseconds)).await)?,
        };
        let Some(popped) = popped else { return Ok(()) };
        *is_found = true;
        if let Err(too_short) = Target(entry).put(&popped, room, length) {
            state.left = Some(popped);
            return Err(too_short.into());
        }
        Ok(())
    })
}

/// Ends the queue: no client can push any more, and consumers take the entries that are left. This cannot be undone.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_end(queue: QueueHandle) -> c_int {
    call(|| {
        handles::enter::<QueueState>(queue.id)?.queue.run(async |queue| queue.close().await)?;
        Ok(())
    })
}

/// Frees the queue with the entries that are left in it, and removes its name. The handle is closed. If consumers are
/// to take the entries that are left, call `portcullis_queue_end` instead.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_destroy(queue: QueueHandle) -> c_int {
    call(|| {
        let open = handles::close::<QueueState>(queue.id)?;
        open.queue.end(async |queue| queue.destroy().await)?;
        Ok(())
    })
}

/// Closes the handle. The queue stays.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_close(queue: QueueHandle) -> c_int {
    call(|| {
        drop(handles::close::<QueueState>(queue.id)?);
        Ok(())
    })
}

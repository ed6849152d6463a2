//! Handles: the numbers that C programs use instead of values of Rust.
//!
//! A handle is a number and never an address. A handle that was closed, copied from somewhere or made up leads to an
//! error and not to memory. A slot that was closed gets another generation before it is used again.

use portcullis::{Kept, Permission};
use portcullis_foreign::{ArenaBuffer, Attached, Driven, Entered, ExclusiveCell, LocalNode, Misuse};
use portcullis_slots::{Reuse, Slots};
use portcullis_structures::queue::{Claim, Queue};
use portcullis_structures::table::Table;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A session with a node. One thread uses it at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Session {
    /// Number of the handle. Zero: no session.
    pub id: u64,
}

/// A table of keys and values. One thread uses the handle at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TableHandle {
    /// Number of the handle. Zero: no table.
    pub id: u64,
}

/// A queue. One thread uses the handle at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct QueueHandle {
    /// Number of the handle. Zero: no queue.
    pub id: u64,
}

/// A node in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Node {
    /// Number of the handle. Zero: no node.
    pub id: u64,
}

/// A permission that a session holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PermissionHandle {
    /// Number of the session's handle.
    pub session: u64,
    /// Number of the permission in the session. Zero: no permission.
    pub id: u64,
}

/// A buffer in a session's arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct BufferHandle {
    /// Number of the session's handle.
    pub session: u64,
    /// Number of the buffer in the session. Zero: no buffer.
    pub id: u64,
}

/// A keeper, which keeps a permission extended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct KeeperHandle {
    /// Number of the session's handle.
    pub session: u64,
    /// Number of the keeper in the session. Zero: no keeper.
    pub id: u64,
}

/// A session, and everything in it for which C has handles.
pub(crate) struct SessionState {
    pub attached: Attached,
    pub permissions: Slots<u64, Permission>,
    pub buffers: Slots<u64, BufferState>,
    pub keepers: Slots<u64, Kept>,
    pub submitted: Slots<u64, crate::submission::Submitted>,
}

/// A buffer for which C has a handle.
pub(crate) enum BufferState {
    Idle(ArenaBuffer),
    UnderWay,
}

/// Largest number of handles of each kind that a session gives out.
const HANDLES_MAX: u32 = 1 << 24;

impl SessionState {
    pub fn new(attached: Attached) -> Self {
        Self {
            attached,
            permissions: Slots::new(Reuse::LatestFirst, HANDLES_MAX),
            buffers: Slots::new(Reuse::LatestFirst, HANDLES_MAX),
            keepers: Slots::new(Reuse::LatestFirst, HANDLES_MAX),
            submitted: Slots::new(Reuse::LatestFirst, HANDLES_MAX),
        }
    }
}

/// A queue, with an entry that was popped or claimed and did not fit into the caller's memory, if there is one.
pub(crate) struct QueueState {
    pub queue: Driven<Queue>,
    pub left: Option<Vec<u8>>,
    pub left_claim: Option<Claim>,
}

impl QueueState {
    pub fn new(queue: Driven<Queue>) -> Self {
        Self { queue, left: None, left_claim: None }
    }
}

/// A kind of object that a handle can stand for.
pub(crate) trait Open: Sized {
    /// Name of the kind in errors.
    const WHAT: &'static str;
    fn wrap(self) -> Object;
    fn seen(object: &Object) -> Option<&Self>;
    fn of(object: &mut Object) -> Option<&mut Self>;
    fn unwrap(object: Object) -> Option<Self>;
}

macro_rules! objects {
    ($($variant:ident($type:ty), $what:literal;)*) => {
        /// An open object.
        pub(crate) enum Object {
            $($variant(Box<$type>),)*
        }

        $(impl Open for $type {
            const WHAT: &'static str = $what;

            fn wrap(self) -> Object {
                Object::$variant(Box::new(self))
            }

            #[inline]
            fn seen(object: &Object) -> Option<&Self> {
                match object {
                    Object::$variant(it) => Some(it),
                    _ => None,
                }
            }

            #[inline]
            fn of(object: &mut Object) -> Option<&mut Self> {
                match object {
                    Object::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn unwrap(object: Object) -> Option<Self> {
                match object {
                    Object::$variant(it) => Some(*it),
                    _ => None,
                }
            }
        })*
    };
}

objects! {
    Session(SessionState), "the session";
    Table(Driven<Table>), "the table";
    Queue(QueueState), "the queue";
    Node(LocalNode), "the node";
}

/// A slot for one open object. The number of a handle contains the number of the slot, and the generation of the
/// slot for which the handle is.
struct HandleSlot {
    generation: AtomicU32,
    cell: ExclusiveCell<(u32, Object)>,
}

/// Number of slots that are made at a time.
const CHUNK: usize = 64;
const CHUNK_BITS: u32 = CHUNK.trailing_zeros();
/// Number of bits of a handle's number that hold the number of the slot.
const SLOT_BITS: u32 = 16;
const CHUNKS: usize = 1 << (SLOT_BITS - CHUNK_BITS);

static SLOTS: [OnceLock<Box<[HandleSlot]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: Mutex<Free> = Mutex::new(Free { begun: 0, closed: Vec::new() });

/// The slots in which no object is open.
struct Free {
    /// Places with a number below this were used. The others were not.
    begun: u32,
    closed: Vec<u32>,
}

/// Access to an open object, until this is dropped. No other thread has access meanwhile.
pub(crate) struct Inside<'a, T> {
    entered: Entered<'a, (u32, Object)>,
    kind: std::marker::PhantomData<T>,
}

impl<T: Open> std::ops::Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        T::seen(&self.entered.1).expect("its kind was looked at on the way in")
    }
}

impl<T: Open> std::ops::DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        T::of(&mut self.entered.1).expect("its kind was looked at on the way in")
    }
}

/// Puts an object into a free slot. Returns the number of its handle.
///
/// # Errors
/// All slots are taken.
pub(crate) fn open<T: Open>(value: T) -> Result<u64, Misuse> {
    let mut object = value.wrap();
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let number = match free.closed.pop() {
            Some(number) => number,
            None if free.begun < 1 << SLOT_BITS => {
                free.begun += 1;
                free.begun - 1
            }
            None => {
                let wrong = "is one more handle than a process can have: close some";
                return Err(Misuse::Argument { argument: "this", wrong });
            }
        };
        let slot = slot_made(number);
        let generation = slot.generation.load(Ordering::Relaxed);
        match slot.cell.open((generation, object)) {
            Ok(()) => return Ok(u64::from(generation) << SLOT_BITS | u64::from(number)),
            // A call has panicked in this slot, so the slot is never used again.
            Err((_, back)) => object = back,
        }
    }
}

fn slot_made(number: u32) -> &'static HandleSlot {
    let number = number as usize;
    let slot = |_| HandleSlot { generation: AtomicU32::new(1), cell: ExclusiveCell::closed("the handle") };
    let chunk = SLOTS[number >> CHUNK_BITS].get_or_init(|| (0..CHUNK).map(slot).collect());
    &chunk[number % CHUNK]
}

/// Returns the slot of a handle, the number of the slot, and the generation that the handle contains. `None`: the
/// handle was closed, or never was one. This is known without entering the slot, so such a handle does not disturb the
/// thread that is inside now.
#[inline]
fn slot(handle: u64) -> Option<(&'static HandleSlot, u32, u32)> {
    let number = handle & ((1 << SLOT_BITS) - 1);
    let generation = u32::try_from(handle >> SLOT_BITS).ok()?;
    let number = u32::try_from(number).ok()?;
    let chunk = SLOTS[(number >> CHUNK_BITS) as usize].get()?;
    let slot = &chunk[number as usize % CHUNK];
    (slot.generation.load(Ordering::Relaxed) == generation).then_some((slot, number, generation))
}

/// Enters the object for which a handle stands.
///
/// # Errors
/// The handle was closed, stands for another kind of object, or never was one; another thread is inside; a call has
/// panicked inside; or the process is a child of the one that opened the handle.
#[inline]
pub(crate) fn enter<T: Open>(handle: u64) -> Result<Inside<'static, T>, Misuse> {
    let closed = Misuse::Closed { what: T::WHAT };
    let (slot, _, generation) = slot(handle).ok_or(closed)?;
    let entered = slot.cell.enter().map_err(|misuse| misuse.about(T::WHAT))?;
    if entered.0 != generation || T::seen(&entered.1).is_none() {
        return Err(closed);
    }
    Ok(Inside { entered, kind: std::marker::PhantomData })
}

/// Closes a handle for good. Returns the object for which it stood.
///
/// # Errors
/// As [`enter`].
pub(crate) fn close<T: Open>(handle: u64) -> Result<T, Misuse> {
    let closed = Misuse::Closed { what: T::WHAT };
    let (slot, number, generation) = slot(handle).ok_or(closed)?;
    let is_meant = |inside: &(u32, Object)| inside.0 == generation && T::seen(&inside.1).is_some();
    let taken = slot.cell.close_if(is_meant).map_err(|misuse| misuse.about(T::WHAT))?;
    let (_, object) = taken.ok_or(closed)?;
    // If the generations started again from the first, an old handle would lead to a newer object. So a slot that has
    // used up its generations is not used again.
    if slot.generation.fetch_add(1, Ordering::Relaxed) < u32::MAX - 1 {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).closed.push(number);
    }
    T::unwrap(object).ok_or(closed)
}

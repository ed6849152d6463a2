//! The numbers that C has instead of values.
//!
//! A handle is a number and never an address: a handle that was closed, copied from somewhere or made up leads to an error and
//! not to memory. A place that was closed gets another generation before it is used again.

use portcullis::{Kept, Permission};
use portcullis_foreign::{ArenaBuffer, Attached, Door, Driven, Entered, LocalNode, Misuse};
use portcullis_slots::{Reuse, Slots};
use portcullis_structures::queue::{Claim, Queue};
use portcullis_structures::table::Table;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A session with a node. One thread uses it at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Session {
    /// Zero: none.
    pub id: u64,
}

/// A table of keys and values. One thread uses the handle at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TableHandle {
    /// Zero: none.
    pub id: u64,
}

/// A queue. One thread uses the handle at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct QueueHandle {
    /// Zero: none.
    pub id: u64,
}

/// A node in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Node {
    /// Zero: none.
    pub id: u64,
}

/// A permission that a session holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PermissionHandle {
    /// The session.
    pub session: u64,
    /// Zero: none.
    pub id: u64,
}

/// A buffer in a session's arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct BufferHandle {
    /// The session.
    pub session: u64,
    /// Zero: none.
    pub id: u64,
}

/// What keeps a permission extended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct KeeperHandle {
    /// The session.
    pub session: u64,
    /// Zero: none.
    pub id: u64,
}

/// A session, and everything of it that C has handles for.
pub(crate) struct SessionState {
    pub attached: Attached,
    pub permissions: Slots<u64, Permission>,
    pub buffers: Slots<u64, BufferState>,
    pub keepers: Slots<u64, Kept>,
    pub submitted: Slots<u64, crate::submission::Submitted>,
}

/// A buffer that C has a handle for.
pub(crate) enum BufferState {
    Idle(ArenaBuffer),
    UnderWay,
}

/// The most handles of each kind that a session gives out.
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

/// A queue, and an entry that was popped or claimed and had no room at its caller.
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

/// What a handle can stand for.
pub(crate) trait Open: Sized {
    /// What errors call it.
    const WHAT: &'static str;
    fn wrap(self) -> Object;
    fn seen(object: &Object) -> Option<&Self>;
    fn of(object: &mut Object) -> Option<&mut Self>;
    fn unwrap(object: Object) -> Option<Self>;
}

macro_rules! objects {
    ($($variant:ident($type:ty), $what:literal;)*) => {
        /// What is open.
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

/// A place for something open. The number of a handle says which place, and which generation of it.
struct Place {
    generation: AtomicU32,
    door: Door<(u32, Object)>,
}

/// Places are made this many at a time.
const CHUNK: usize = 64;
const CHUNK_BITS: u32 = CHUNK.trailing_zeros();
/// Bits of a handle's number that say which place.
const PLACE_BITS: u32 = 16;
const CHUNKS: usize = 1 << (PLACE_BITS - CHUNK_BITS);

static PLACES: [OnceLock<Box<[Place]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: Mutex<Free> = Mutex::new(Free { begun: 0, closed: Vec::new() });

/// Which places nothing is in.
struct Free {
    /// Places below this were used.
    begun: u32,
    closed: Vec<u32>,
}

/// The way in to something open.
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

/// Opens a place. Returns the number of its handle.
///
/// # Errors
/// All places are taken.
pub(crate) fn open<T: Open>(value: T) -> Result<u64, Misuse> {
    let mut object = value.wrap();
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let number = match free.closed.pop() {
            Some(number) => number,
            None if free.begun < 1 << PLACE_BITS => {
                free.begun += 1;
                free.begun - 1
            }
            None => {
                let wrong = "is one more handle than a process can have: close some";
                return Err(Misuse::Argument { argument: "this", wrong });
            }
        };
        let place = place_made(number);
        let generation = place.generation.load(Ordering::Relaxed);
        match place.door.open((generation, object)) {
            Ok(()) => return Ok(u64::from(generation) << PLACE_BITS | u64::from(number)),
            // A call has panicked in it: it is never used again.
            Err((_, back)) => object = back,
        }
    }
}

fn place_made(number: u32) -> &'static Place {
    let number = number as usize;
    let place = |_| Place { generation: AtomicU32::new(1), door: Door::closed("the handle") };
    let chunk = PLACES[number >> CHUNK_BITS].get_or_init(|| (0..CHUNK).map(place).collect());
    &chunk[number % CHUNK]
}

/// The place of a handle, its number, and the generation that the handle means. `None`: the handle was closed, or never was one.
/// So whoever is inside now is not disturbed by it.
#[inline]
fn place(handle: u64) -> Option<(&'static Place, u32, u32)> {
    let number = handle & ((1 << PLACE_BITS) - 1);
    let generation = u32::try_from(handle >> PLACE_BITS).ok()?;
    let number = u32::try_from(number).ok()?;
    let chunk = PLACES[(number >> CHUNK_BITS) as usize].get()?;
    let place = &chunk[number as usize % CHUNK];
    (place.generation.load(Ordering::Relaxed) == generation).then_some((place, number, generation))
}

/// Goes in to what a handle stands for.
///
/// # Errors
/// It was closed, is something else or never was, another thread is in, or the process is a child of the one that opened it.
#[inline]
pub(crate) fn enter<T: Open>(handle: u64) -> Result<Inside<'static, T>, Misuse> {
    let closed = Misuse::Closed { what: T::WHAT };
    let (place, _, generation) = place(handle).ok_or(closed)?;
    let entered = place.door.enter().map_err(|misuse| misuse.about(T::WHAT))?;
    if entered.0 != generation || T::seen(&entered.1).is_none() {
        return Err(closed);
    }
    Ok(Inside { entered, kind: std::marker::PhantomData })
}

/// Closes a handle for good and returns what it stood for.
///
/// # Errors
/// As [`enter`].
pub(crate) fn close<T: Open>(handle: u64) -> Result<T, Misuse> {
    let closed = Misuse::Closed { what: T::WHAT };
    let (place, number, generation) = place(handle).ok_or(closed)?;
    let is_meant = |inside: &(u32, Object)| inside.0 == generation && T::seen(&inside.1).is_some();
    let taken = place.door.close_if(is_meant).map_err(|misuse| misuse.about(T::WHAT))?;
    let (_, object) = taken.ok_or(closed)?;
    // A generation that comes round again would open what an old handle must not: the place is left then.
    if place.generation.fetch_add(1, Ordering::Relaxed) < u32::MAX - 1 {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).closed.push(number);
    }
    T::unwrap(object).ok_or(closed)
}

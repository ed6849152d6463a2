//! Heaps: shared memory with the same addresses in every process, into which many processes put values.

mod layout;
mod pages;
mod place;
mod runs;
mod slabs;
mod steps;

pub use pages::Owner;
pub use place::{HEAP_ADDRESSES, HEAP_BYTES_MAX, HEAP_BYTES_MIN, HeapPlace};
pub use steps::Steps;

use crate::plain::Plain;
use crate::pointer::check_depth;
use crate::scope::Scope;
use crate::{Boxed, HeapFull, PointerError, Room, Source};
use pages::{PageWords, SharedWords};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Mapping, MappingError, Memory, SealedFile};
use runs::Runs;
use slabs::{LARGEST, Slabs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use steps::Life;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// A heap, as one process uses it. Clones are the same heap.
///
/// All processes that have the heap may write anywhere in it, at any time. So its bytes are read and written by value;
/// they are read in place only in a copy ([`View`](crate::View)). The allocator's state is in the heap as well. A
/// process that overwrites it can make other processes overwrite each other's values in that heap, and has no other
/// effect.
#[derive(Clone, Debug)]
pub struct Heap(Arc<Inner>);

/// A handle that reports whether this process still uses a heap.
#[derive(Debug)]
pub(crate) struct HeapUse(Weak<Inner>);

impl HeapUse {
    pub fn is_used(&self) -> bool {
        self.0.strong_count() > 0
    }
}

#[derive(Debug)]
struct Inner {
    place: HeapPlace,
    memory: Mapping,
    /// Offset of the first data page.
    data: u64,
    runs: Runs<SharedWords>,
    slabs: Mutex<Slabs>,
    /// First page of the run that was taken last.
    last: AtomicU32,
    /// Page at which the search for free pages begins.
    next: AtomicU32,
}

/// The error of a heap that cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// No heap can have these addresses.
    #[error("no heap can have the {length} bytes at {address:#x}")]
    NoPlace {
        /// The address of the first byte.
        address: u64,
        /// The length in bytes.
        length: u64,
    },
    /// The passed memory is no heap for that place.
    #[error("the memory that was passed is not a heap for {address:#x}")]
    NotAHeap {
        /// The address of the place.
        address: u64,
    },
    /// The machine refused to map the memory.
    #[error(transparent)]
    Memory(#[from] MappingError),
}

impl Coded for HeapError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoPlace { .. } => ErrorCode::HeapPlace,
            Self::NotAHeap { .. } => ErrorCode::NotAHeap,
            Self::Memory(error) => error.code(),
        }
    }
}

/// The error of freeing an address at which no allocation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing that was allocated begins at {0:#x}")]
pub struct NotAllocated(pub u64);

impl Coded for NotAllocated {
    fn code(&self) -> ErrorCode {
        ErrorCode::NotAllocated
    }
}

impl Heap {
    /// Creates a heap, whose data pages are zeros.
    ///
    /// # Errors
    /// The machine has not enough memory.
    pub fn create(place: HeapPlace, owner: Owner) -> Result<Self, HeapError> {
        let memory = Mapping::shareable("portcullis-heap", place.length)?;
        layout::found(&memory, place);
        Ok(Self::of(memory, place, owner, Life::default()))
    }

    /// Returns the same heap as used by a process that dies after a number of steps.
    #[must_use]
    pub fn dying(&self, steps: Steps) -> Self {
        Self::of(self.0.memory.clone(), self.place(), self.owner(), Life::of(steps))
    }

    /// Creates a heap in memory of its length, which is zeros.
    #[cfg_attr(not(feature = "across"), expect(dead_code, reason = "others have files of their own"))]
    pub(crate) fn create_in(memory: Mapping, place: HeapPlace, owner: Owner) -> Self {
        debug_assert_eq!(memory.length(), place.length);
        layout::found(&memory, place);
        Self::of(memory, place, owner, Life::default())
    }

    /// Opens a heap that another process has made. This process uses it as `owner`.
    ///
    /// # Errors
    /// The file is no heap for that place, or could shrink; or the machine refuses.
    pub fn open(file: OwnedFd, place: HeapPlace, owner: Owner) -> Result<Self, HeapError> {
        let heap = Self::join(file, place, owner)?;
        let is_heap = layout::is_heap(heap.memory(), place);
        is_heap.then_some(heap).ok_or(HeapError::NotAHeap { address: place.start() })
    }

    /// Opens a heap that other processes use already. Its header is not checked: one of them may have overwritten it.
    pub(crate) fn join(file: OwnedFd, place: HeapPlace, owner: Owner) -> Result<Self, HeapError> {
        let file = SealedFile::of_peer(file, place.length)?;
        Ok(Self::of(Mapping::of_file(file, true)?, place, owner, Life::default()))
    }

    fn of(memory: Mapping, place: HeapPlace, owner: Owner, life: Life) -> Self {
        let (data, count) = layout::data(place.length);
        let words = SharedWords { memory: memory.clone(), offset: layout::ENTRIES, count, life };
        let (runs, slabs) = (Runs::new(words, owner), Mutex::default());
        let (last, next) = (AtomicU32::new(0), AtomicU32::new(0));
        Self(Arc::new(Inner { place, memory, data, runs, slabs, last, next }))
    }

    /// The heap's addresses.
    #[must_use]
    pub fn place(&self) -> HeapPlace {
        self.0.place
    }

    /// Whether both are clones of one heap of this process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a handle that reports later whether this process still uses the heap.
    pub(crate) fn used(&self) -> HeapUse {
        HeapUse(Arc::downgrade(&self.0))
    }

    /// The heap's memory, at whatever address this process has mapped it.
    #[must_use]
    pub fn memory(&self) -> &Mapping {
        &self.0.memory
    }

    /// The heap's file, to be passed to another process.
    ///
    /// # Panics
    /// The heap is a server's part of a connection to another machine: such memory has no file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.memory.file().expect("a heap of this machine is a file's memory")
    }

    /// The owner as which this process uses the heap.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.0.runs.owner()
    }

    /// Takes a scope of at least `bytes` bytes, with pages of its own (RPCool §5.1).
    ///
    /// # Errors
    /// There are no neighbouring free pages of that size.
    pub fn scope(&self, bytes: u64) -> Result<Scope, HeapFull> {
        let (address, length) = self.take_pages(bytes)?;
        Ok(Scope::new(self.clone(), address, length))
    }

    fn take_pages(&self, bytes: u64) -> Result<(u64, u64), HeapFull> {
        let full = HeapFull { wanted: bytes, place: "heap", length: self.0.place.length };
        let pages = u32::try_from(bytes.max(1).div_ceil(PAGE_BYTES)).map_err(|_| full)?;
        let (runs, last) = (&self.0.runs, self.0.last.load(Ordering::Relaxed));
        // Most scopes end before the next one begins, so their pages are taken again. Other pages would first have to
        // be brought in by each process that has the heap.
        let first = if runs.take_at(last, pages) {
            last
        } else {
            runs.take(pages, self.0.next.load(Ordering::Relaxed)).ok_or(full)?
        };
        self.0.last.store(first, Ordering::Relaxed);
        self.0.next.store(first + pages, Ordering::Relaxed);
        Ok((self.address(first, 0), u64::from(pages) * PAGE_BYTES))
    }

    fn address(&self, page: u32, offset: u64) -> u64 {
        self.0.place.start() + self.0.data + u64::from(page) * PAGE_BYTES + offset
    }

    /// The page of an address, and the offset in the page.
    fn page(&self, address: u64) -> Option<(u32, u64)> {
        let offset = address.checked_sub(self.0.place.start() + self.0.data)?;
        let page = u32::try_from(offset / PAGE_BYTES).ok()?;
        (page < self.0.runs.words().count()).then_some((page, offset % PAGE_BYTES))
    }

    /// Frees the allocation that begins at an address: a value, or the pages of a scope. Any process may free the
    /// allocations of others.
    ///
    /// # Errors
    /// No allocation begins there.
    pub fn free(&self, address: u64) -> Result<(), NotAllocated> {
        let (page, offset) = self.page(address).ok_or(NotAllocated(address))?;
        let is_run = offset == 0 && self.0.runs.free(page).is_some();
        let is_freed = is_run || {
            let mut slabs = self.0.slabs.lock().unwrap_or_else(PoisonError::into_inner);
            slabs.free(&self.0.runs, page, offset)
        };
        if is_freed { Ok(()) } else { Err(NotAllocated(address)) }
    }

    /// Takes over the pages of a dead process: frees its scopes and its larger values. Its small values stay, also
    /// those that it was about to pass on. Each of its threads may have lost one piece that it was just taking.
    pub fn reclaim(&self, dead: Owner) {
        let slabs = self.0.runs.reclaim(dead);
        self.0.slabs.lock().unwrap_or_else(PoisonError::into_inner).adopt(slabs);
    }

    /// Number of bytes in free pages.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.0.runs.free_pages()) * PAGE_BYTES
    }

    /// Overwrites a value.
    ///
    /// # Errors
    /// The pointer leads out of the heap, or the stack is used up.
    pub fn set<T: Plain>(&self, at: Boxed<T>, value: T) -> Result<(), PointerError> {
        self.check(at.address(), size_of::<T>() as u64)?;
        self.put(at.address(), value.as_bytes());
        Ok(())
    }

    fn offset(&self, address: u64, length: u64) -> Result<u64, PointerError> {
        check_depth()?;
        self.0.place.offset(address, length).ok_or(PointerError::Outside { address, length })
    }
}

impl Source for Heap {
    fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), PointerError> {
        let offset = self.offset(address, into.len() as u64)?;
        self.0.memory.read(offset, into);
        Ok(())
    }

    fn check(&self, address: u64, length: u64) -> Result<(), PointerError> {
        self.offset(address, length).map(|_| ())
    }
}

impl Room for Heap {
    fn reserve(&self, bytes: u64, align: u64) -> Result<u64, HeapFull> {
        // All pieces have at least the alignment of the smallest piece.
        debug_assert!(align <= layout::DATA_ALIGN, "an alignment of {align}");
        if bytes > LARGEST {
            return self.take_pages(bytes).map(|(address, _)| address);
        }
        let mut slabs = self.0.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = slabs.take(&self.0.runs, bytes, self.0.next.load(Ordering::Relaxed));
        let full = HeapFull { wanted: bytes, place: "heap", length: self.0.place.length };
        piece.map(|(page, offset)| self.address(page, offset)).ok_or(full)
    }

    fn release(&self, address: u64, _bytes: u64) {
        // If a peer has overwritten the allocator's state, the room may not be allocated any more.
        let _ = self.free(address);
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        let offset = self.0.place.offset(address, bytes.len() as u64);
        let offset =
            offset.unwrap_or_else(|| panic!("{} bytes at {address:#x} lie outside a heap", bytes.len()));
        if self.0.runs.words().life.goes_on() {
            self.0.memory.write(offset, bytes);
        }
    }
}

#[cfg(test)]
mod tests;

//! A mapping: memory that other processes and threads may write at any moment.

use crate::SealedFile;
use crate::address_range::Claim;
use crate::residency::unmap;
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::alloc::Layout;
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, OnceLock};

/// Bytes of a page. Mappings are rounded up to whole pages.
pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Length up to which private memory is allocated on the heap.
const HEAP_BYTES_MAX: u64 = 64 << 10;

/// Error: the machine refused memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {length} bytes of memory: {source}")]
pub struct MappingError {
    what: &'static str,
    length: u64,
    source: Errno,
}

impl Coded for MappingError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Mapping
    }
}

impl MappingError {
    /// Returns a function that converts the kernel's reason into an error. The error names the failed operation and the
    /// number of bytes.
    pub(crate) fn to(what: &'static str, length: u64) -> impl Fn(Errno) -> Self {
        move |source| Self { what, length, source }
    }
}

/// Mapped memory that other processes, the NIC's engine and other threads may write at any moment.
///
/// No reference to plain bytes in it exists. Every access is an atomic, or a copy that the compiler cannot see into: a
/// peer that writes meanwhile makes values wrong, not behaviour undefined.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub(crate) start: NonNull<u8>,
    pub(crate) length: u64,
    pub(crate) owner: Arc<Owner>,
}

/// The part that the clones of a mapping share. Dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct Owner {
    start: NonNull<u8>,
    pub length: usize,
    pub source: Source,
}

/// Origin of a mapping's memory.
#[derive(Debug)]
pub(crate) enum Source {
    /// A piece of the heap.
    Heap(Layout),
    /// Pages that were mapped.
    Pages {
        file: Option<SealedFile>,
        is_writable: bool,
        /// A pipe that holds a page of each huge page that the file could become.
        hold: OnceLock<OwnedFd>,
    },
    /// Pages in a range of addresses that was reserved for them. The claim unmaps them.
    Claimed { _claim: Claim },
}

// SAFETY: the mapping stays valid for as long as any clone lives, in whichever thread that is, and all accesses are
// atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above: all methods take &self and access the memory atomically.
unsafe impl Sync for Mapping {}
// SAFETY: an owner only frees its memory, once, when the last clone of its mapping is gone; that works on any thread.
unsafe impl Send for Owner {}
// SAFETY: a shared reference to an owner only allows reading its fields.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: start is what the allocator returned for this layout, and no clone of the mapping is left.
            Source::Heap(layout) => unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) },
            // SAFETY: start is what mmap returned for this length, and no clone of the mapping is left.
            Source::Pages { .. } => unsafe { unmap(self.start, self.length) },
            Source::Claimed { .. } => {}
        }
    }
}

impl Mapping {
    fn new(start: NonNull<u8>, bytes: usize, source: Source) -> Self {
        Self { start, length: bytes as u64, owner: Arc::new(Owner { start, length: bytes, source }) }
    }

    /// Zeroed memory of this process alone, on huge pages if the machine has spare ones.
    ///
    /// # Errors
    /// The machine does not have enough.
    pub fn private(length: u64) -> Result<Self, MappingError> {
        if length <= HEAP_BYTES_MAX {
            return Self::on_heap(length);
        }
        let mapping = Self::on_huge_pages(length)?;
        // Clients' data does not belong in a core dump.
        mapping.advise(Advice::LinuxDontDump);
        Ok(mapping)
    }

    /// Allocates the memory on the heap. Mapping and unmapping small pieces would take the lock of the whole address
    /// space.
    fn on_heap(length: u64) -> Result<Self, MappingError> {
        let length = round_up(length, PAGE_BYTES);
        let error = MappingError::to("allocate", length);
        let size = |bytes| usize::try_from(bytes).map_err(|_| error(Errno::NOMEM));
        let bytes = size(length)?;
        let layout = Layout::from_size_align(bytes, size(PAGE_BYTES)?).map_err(|_| error(Errno::INVAL))?;
        // SAFETY: the layout has at least one page.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(error(Errno::NOMEM))?;
        Ok(Self::new(start, bytes, Source::Heap(layout)))
    }

    fn on_huge_pages(length: u64) -> Result<Self, MappingError> {
        let rounded = round_up(length, HUGE_PAGE_BYTES);
        if length >= HUGE_PAGE_BYTES
            && let Ok(mapping) = Self::anonymous(rounded, MapFlags::HUGETLB | MapFlags::HUGE_2MB)
        {
            return Ok(mapping);
        }
        let mapping = Self::anonymous(round_up(length, PAGE_BYTES), MapFlags::empty())?;
        if length >= HUGE_PAGE_BYTES {
            // Without transparent huge pages the memory works all the same.
            mapping.advise(Advice::LinuxHugepage);
        }
        Ok(mapping)
    }

    /// Gives the kernel advice about the whole of a mapping that was just made. The kernel may ignore it.
    fn advise(&self, advice: Advice) {
        // SAFETY: the span is exactly the mapping, and the three kinds of advice that are given here change no bytes.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.owner.length, advice) };
    }

    fn anonymous(length: u64, flags: MapFlags) -> Result<Self, MappingError> {
        Self::anonymous_at(null_mut(), length, flags)
    }

    /// Zeroed memory of this process alone that takes no memory of the machine until it is used. Its address is a free
    /// address that the caller names, or the kernel's choice.
    pub(crate) fn reserved(address: Option<NonZeroUsize>, length: u64) -> Result<Self, MappingError> {
        let wanted = address.map_or(null_mut(), |address| without_provenance_mut(address.get()));
        let mut flags = MapFlags::NORESERVE;
        flags.set(MapFlags::FIXED_NOREPLACE, address.is_some());
        Self::anonymous_at(wanted, length, flags)
    }

    fn anonymous_at(
        wanted: *mut core::ffi::c_void,
        length: u64,
        flags: MapFlags,
    ) -> Result<Self, MappingError> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | flags);
        // SAFETY: a fresh anonymous mapping overlaps nothing: the kernel chooses its address, or refuses an address that is in
        // use.
        let start = unsafe { rustix::mm::mmap_anonymous(wanted, bytes, protection, flags) };
        Self::from_mmap(start, bytes, None, true)
    }

    /// Zeroed memory to share with other processes, of a new [`SealedFile`].
    ///
    /// # Errors
    /// The machine does not have enough.
    pub fn shareable(name: &str, length: u64) -> Result<Self, MappingError> {
        Self::of_file(SealedFile::new(name, length)?, true)
    }

    /// The memory of a file that a peer has sent (see [`SealedFile::of_peer`]).
    ///
    /// # Errors
    /// The file has another length, the file can shrink, or the machine refuses.
    pub fn of_peer(file: OwnedFd, length: u64, writable: bool) -> Result<Self, MappingError> {
        Self::of_file(SealedFile::of_peer(file, length)?, writable)
    }

    /// The memory of a file, at an address that the kernel chooses.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn of_file(file: SealedFile, writable: bool) -> Result<Self, MappingError> {
        Self::shared(file, writable, null_mut(), MapFlags::empty())
    }

    /// The memory of a file at an agreed address, so that addresses in it mean the same in each process that maps it
    /// there. It never replaces another mapping.
    ///
    /// # Errors
    /// Something is mapped there already, if only in part; the address is not on a page boundary; or the machine
    /// refuses.
    pub fn of_file_at(address: NonZeroUsize, file: SealedFile, writable: bool) -> Result<Self, MappingError> {
        let wanted = without_provenance_mut(address.get());
        let mapping = Self::shared(file, writable, wanted, MapFlags::FIXED_NOREPLACE)?;
        // Kernels before 4.17 do not know the flag. They map a file elsewhere if the address is not free.
        if mapping.start.addr() != address {
            return Err(MappingError::to("map", mapping.length)(Errno::EXIST));
        }
        Ok(mapping)
    }

    fn shared(
        file: SealedFile,
        writable: bool,
        wanted: *mut core::ffi::c_void,
        flags: MapFlags,
    ) -> Result<Self, MappingError> {
        let bytes = usize::try_from(file.length()).unwrap_or(usize::MAX);
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | flags;
        // SAFETY: a fresh mapping overlaps nothing: the kernel chooses its address, or refuses an address that is in
        // use. The file cannot shrink.
        let start = unsafe { rustix::mm::mmap(wanted, bytes, protection, flags, file.descriptor(), 0) };
        Self::from_mmap(start, bytes, Some(file), writable)
    }

    fn from_mmap(
        start: rustix::io::Result<*mut core::ffi::c_void>,
        bytes: usize,
        file: Option<SealedFile>,
        is_writable: bool,
    ) -> Result<Self, MappingError> {
        let error = MappingError::to("map", bytes as u64);
        let start = NonNull::new(start.map_err(&error)?.cast()).ok_or(error(Errno::NOMEM))?;
        Ok(Self::new(start, bytes, Source::Pages { file, is_writable, hold: OnceLock::new() }))
    }

    /// Access rights of the mapping's pages. `None`: the mapping is a piece of the heap.
    pub(crate) fn access_of_pages(&self) -> Option<libc::c_int> {
        match self.owner.source {
            Source::Heap(_) => None,
            Source::Pages { is_writable: false, .. } => Some(libc::PROT_READ),
            Source::Pages { .. } | Source::Claimed { .. } => Some(libc::PROT_READ | libc::PROT_WRITE),
        }
    }

    /// A file that is mapped over the whole of a claim, from the claim's start on.
    pub(crate) fn claimed(start: NonNull<u8>, claim: Claim) -> Self {
        let bytes = usize::try_from(claim.length()).unwrap_or(usize::MAX);
        let mapping = Self::new(start, bytes, Source::Claimed { _claim: claim });
        mapping.advise(Advice::LinuxDontFork);
        mapping
    }

    /// Forbids or allows this process to write whole pages. It affects only this mapping: the same memory can be mapped
    /// elsewhere. A write to a forbidden page raises SIGSEGV.
    ///
    /// # Errors
    /// The machine refuses, or the memory is a piece of the heap.
    ///
    /// # Panics
    /// The bytes are not entirely in this mapping, or are not whole pages.
    pub fn allow_writes(&self, offset: u64, length: u64, allowed: bool) -> Result<(), MappingError> {
        assert!(
            (offset | length).is_multiple_of(PAGE_BYTES),
            "{length} bytes at {offset} are not whole pages"
        );
        let start = self.pointer(offset, length, 1);
        let error = MappingError::to("protect", length);
        if matches!(self.owner.source, Source::Heap(_)) {
            return Err(error(Errno::INVAL));
        }
        let mut access = MprotectFlags::READ;
        access.set(MprotectFlags::WRITE, allowed);
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        // SAFETY: the span was checked to lie in this mapping, which is live. No reference to its bytes exists. A write
        // to a page that may not be written is a fault, and changes nothing.
        unsafe { rustix::mm::mprotect(start.cast(), bytes, access) }.map_err(error)
    }

    /// Some bytes of the mapping as memory of their own: offsets count from there, and nothing outside is reached.
    /// Pages and access rights stay those of the whole. Returns `None` if the bytes are not entirely in this mapping,
    /// or do not begin at a word.
    #[must_use]
    pub fn part(&self, offset: u64, length: u64) -> Option<Self> {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        (is_inside && offset.is_multiple_of(8)).then(|| {
            let start = NonNull::new(self.pointer(offset, length, 8));
            Self { start: start.unwrap_or(self.start), length, owner: Arc::clone(&self.owner) }
        })
    }

    /// The mapping's address in this process, for a device. The memory stays there while any clone lives.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn sealed_file(&self) -> Option<&SealedFile> {
        match &self.owner.source {
            Source::Pages { file, .. } => file.as_ref(),
            Source::Claimed { .. } | Source::Heap(_) => None,
        }
    }

    /// The file behind shareable memory.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.sealed_file().map(SealedFile::descriptor)
    }

    /// Seals the file behind shareable memory (see [`SealedFile::seal_future_writes`]).
    ///
    /// # Errors
    /// The memory has no file, or the kernel refuses.
    pub fn seal_future_writes(&self) -> Result<(), MappingError> {
        let file =
            self.sealed_file().ok_or_else(|| MappingError::to("seal a file of", self.length)(Errno::BADF))?;
        file.seal_future_writes()
    }
}

pub(crate) fn round_up(length: u64, unit: u64) -> u64 {
    length.max(1).div_ceil(unit).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use rustix::fs::MemfdFlags;

    #[test]
    fn a_part_is_those_bytes_and_no_others() {
        let whole = Mapping::private(8192).unwrap();
        let part = whole.part(4096, 64).unwrap();
        part.write(0, b"part");
        let mut there = [0; 4];
        whole.read(4096, &mut there);
        assert_eq!((&there, part.length()), (b"part", 64));
        let inner = part.part(8, 56).unwrap();
        drop((whole, part));
        inner.store(48, 7);
        assert_eq!(inner.load(48), 7);
        assert!(
            inner.part(0, 57).is_none() && inner.part(4, 8).is_none() && inner.part(8, u64::MAX).is_none()
        );
        let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inner.load(56)));
        assert!(outside.is_err(), "what is behind it is not reached");
    }

    #[test]
    fn a_shared_file_cannot_shrink_or_grow_under_its_maker() {
        let mapping = Mapping::shareable("test", 8192).unwrap();
        let file = mapping.file().unwrap();
        assert!(rustix::fs::ftruncate(file, 4096).is_err());
        assert!(rustix::fs::ftruncate(file, 1 << 20).is_err());
        // A hole is zeros, not a fault.
        mapping.write(0, &[1; 64]);
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, hole, 0, 8192).unwrap();
        assert_eq!(mapping.load(0), 0);
    }

    #[test]
    fn a_peer_file_that_could_shrink_is_not_mapped() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(Mapping::of_peer(file, 4096, true).is_err());
    }

    #[test]
    fn a_read_only_seal_keeps_peers_from_writing() {
        let mapping = Mapping::shareable("test", 4096).unwrap();
        mapping.seal_future_writes().unwrap();
        let copy = mapping.file().unwrap().try_clone_to_owned().unwrap();
        assert!(Mapping::of_peer(copy.try_clone().unwrap(), 4096, true).is_err());
        assert!(Mapping::of_peer(copy, 4096, false).is_ok());
    }

    /// An address at which only the test itself maps anything: each test has a gibibyte of its own.
    fn place(test: usize) -> NonZeroUsize {
        NonZeroUsize::new((16 << 40) + (test << 30)).unwrap()
    }

    fn file(pages: u64) -> SealedFile {
        SealedFile::new("test", pages * PAGE_BYTES).unwrap()
    }

    fn kind<T>(refused: Result<T, MappingError>) -> Option<Errno> {
        refused.err().map(|error| error.source)
    }

    #[test]
    fn an_address_that_was_agreed_on_is_the_mappings() {
        let elsewhere = Mapping::of_file(file(3), true).unwrap();
        let again = elsewhere.file().unwrap().try_clone_to_owned().unwrap();
        let again = SealedFile::of_peer(again, 3 * PAGE_BYTES).unwrap();
        let mapping = Mapping::of_file_at(place(0), again, true).unwrap();
        assert_eq!((mapping.start().addr(), mapping.length()), (place(0), 3 * PAGE_BYTES));
        elsewhere.write(PAGE_BYTES, b"the same file");
        let mut bytes = [0; 13];
        mapping.read(PAGE_BYTES, &mut bytes);
        assert_eq!(&bytes, b"the same file");
    }

    #[test]
    fn nothing_is_mapped_over_what_is_there() {
        let there = Mapping::of_file_at(place(1), file(4), true).unwrap();
        there.store(0, 5);
        there.store(3 * PAGE_BYTES, 6);
        let page = usize::try_from(PAGE_BYTES).unwrap();
        let at = |pages| place(1).checked_add(pages * page).unwrap();
        let before = NonZeroUsize::new(place(1).get() - page).unwrap();
        for address in [place(1), at(3), before] {
            assert_eq!(kind(Mapping::of_file_at(address, file(4), true)), Some(Errno::EXIST), "{address:#x}");
        }
        assert_eq!((there.load(0), there.load(3 * PAGE_BYTES)), (5, 6));
        // There is room beside the mapping, and in its place once its last clone is dropped.
        let beside = Mapping::of_file_at(at(4), file(1), false).unwrap();
        let clone = there.clone();
        drop(there);
        assert_eq!(kind(Mapping::of_file_at(place(1), file(1), true)), Some(Errno::EXIST));
        drop(clone);
        assert_eq!(Mapping::of_file_at(place(1), file(4), true).unwrap().load(0), 0);
        drop(beside);
    }

    #[test]
    fn only_a_page_can_be_mapped_at_an_address() {
        let odd = place(2).checked_add(8).unwrap();
        assert_eq!(kind(Mapping::of_file_at(odd, file(1), true)), Some(Errno::INVAL));
        // Beyond a process's address space.
        assert!(Mapping::of_file_at(NonZeroUsize::MAX, file(1), true).is_err());
    }
}

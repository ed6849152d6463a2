//! A mapping, and the only ways to touch it.

use crate::{Bytes, Memory};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, MlockFlags, ProtFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Once, OnceLock};

/// Bytes of a page that mappings are rounded up to.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Copies at least this long go through the string instruction.
const STRING_COPY_BYTES: u64 = 512;

/// Private memory of no more than that is on the heap.
const HEAP_BYTES_MAX: u64 = 64 << 10;
/// What is filled or unmapped at once. The kernel locks the process's address space meanwhile, and whoever needs that lock
/// waits: the engine's thread too, when its heap grows.
const FILLED_AT_ONCE: usize = 256 << 10;
const UNMAPPED_AT_ONCE: usize = 2 << 20;

/// The machine would not give memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {length} bytes of memory: {source}")]
pub struct MappingError {
    what: &'static str,
    length: u64,
    source: rustix::io::Errno,
}

/// Mapped memory that others may write at any moment: other processes, the NIC's engine, other threads.
///
/// No reference to plain bytes in it exists. Everything goes through atomics or through a copy instruction that the
/// compiler cannot look into, so a peer that writes meanwhile can make values wrong, but nothing undefined.
#[derive(Clone, Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: u64,
    owner: Arc<Owner>,
}

#[derive(Debug)]
struct Owner {
    start: NonNull<u8>,
    length: usize,
    /// It is no mapping of its own, but a piece of the heap.
    on_heap: Option<Layout>,
    file: Option<OwnedFd>,
    /// A pipe that holds a page of each huge page that the file could become.
    holds: OnceLock<OwnedFd>,
}

// SAFETY: the mapping stays valid for as long as any clone lives, wherever that is, and all accesses are atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above: all methods take &self and access the memory atomically.
unsafe impl Sync for Mapping {}
// SAFETY: an owner only unmaps, once, when the last clone of its mapping is gone; munmap works on any thread.
unsafe impl Send for Owner {}
// SAFETY: nothing is done through a shared reference to an owner but reading its fields.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(layout) = self.on_heap {
            // SAFETY: start is what the allocator returned for this layout, and nobody holds the mapping any more.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
            return;
        }
        // From the end, so that what is left stays one piece.
        let mut left = self.length;
        while left > 0 {
            let from = left.saturating_sub(1) / UNMAPPED_AT_ONCE * UNMAPPED_AT_ONCE;
            // SAFETY: from is below length, the mapping's own.
            let start = unsafe { self.start.as_ptr().add(from) };
            // SAFETY: the span is the rest of what mmap returned and was asked for, and nobody holds the mapping any more.
            let _ = unsafe { rustix::mm::munmap(start.cast(), left - from) };
            left = from;
        }
    }
}

impl Mapping {
    /// Zeroed memory of this process alone, on huge pages where the machine has some to spare.
    ///
    /// # Errors
    /// The machine has not enough.
    pub fn private(length: u64) -> Result<Self, MappingError> {
        if length <= HEAP_BYTES_MAX {
            return Self::on_heap(length);
        }
        let mapping = Self::on_huge_pages(length)?;
        let bytes = usize::try_from(mapping.length).unwrap_or(usize::MAX);
        // What clients keep here is nothing for a core dump.
        // SAFETY: the span is exactly the mapping just made, and this advice changes no bytes.
        let _ = unsafe {
            rustix::mm::madvise(mapping.start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxDontDump)
        };
        Ok(mapping)
    }

    /// A piece of the heap: to map and unmap little things takes the lock of the whole address space.
    fn on_heap(length: u64) -> Result<Self, MappingError> {
        let length = round_up(length, PAGE_BYTES);
        let error = |source| MappingError { what: "allocate", length, source };
        let size = |bytes| usize::try_from(bytes).map_err(|_| error(rustix::io::Errno::NOMEM));
        let bytes = size(length)?;
        let layout = Layout::from_size_align(bytes, size(PAGE_BYTES)?);
        let layout = layout.map_err(|_| error(rustix::io::Errno::INVAL))?;
        // SAFETY: the layout has a page at least.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(error(rustix::io::Errno::NOMEM))?;
        let owner = Owner { start, length: bytes, on_heap: Some(layout), file: None, holds: OnceLock::new() };
        Ok(Self { start, length, owner: Arc::new(owner) })
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
            let bytes = usize::try_from(mapping.length).unwrap_or(usize::MAX);
            // Only advice: without transparent huge pages the memory works all the same.
            // SAFETY: the span is exactly the mapping just made, and this advice changes no bytes.
            let _ = unsafe {
                rustix::mm::madvise(mapping.start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage)
            };
        }
        Ok(mapping)
    }

    fn anonymous(length: u64, flags: MapFlags) -> Result<Self, MappingError> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | flags);
        // SAFETY: a fresh anonymous mapping at an address that the kernel picks overlaps nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
        Self::from_mmap(start, bytes, None)
    }

    /// Zeroed memory to share with other processes: a file without a name that cannot shrink or grow any more, so
    /// that no peer can make an access here fault.
    ///
    /// # Errors
    /// The machine has not enough.
    pub fn shareable(name: &str, length: u64) -> Result<Self, MappingError> {
        let length = round_up(length, PAGE_BYTES);
        let error = |what| move |source| MappingError { what, length, source };
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(error("create a file of"))?;
        rustix::fs::ftruncate(&file, length).map_err(error("size a file of"))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(error("seal a file of"))?;
        Self::of_file(file, length, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// From here on nobody can map the file writable, write to it or punch holes into it; mappings that exist can be
    /// written as before.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn seal_future_writes(&self) -> Result<(), MappingError> {
        let error = |source| MappingError { what: "seal a file of", length: self.length, source };
        let file = self.file().ok_or_else(|| error(rustix::io::Errno::BADF))?;
        rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL).map_err(error)
    }

    /// Has all of its pages there, and keeps them where they are: this process does not fault on them any more, as long
    /// as nobody can punch holes into the file. Where the limit on locked memory is too low, the kernel may swap them out.
    ///
    /// # Errors
    /// The machine has not enough.
    pub fn make_resident(&self) -> Result<(), MappingError> {
        let (start, bytes) = (self.start.as_ptr().cast(), self.owner.length);
        // First, so that each page is locked as it comes, and not all of them are gone through twice.
        // SAFETY: the span is this mapping, which is live; a lock changes no bytes, and ends with the mapping.
        if let Err(error) = unsafe { rustix::mm::mlock_with(start, bytes, MlockFlags::ONFAULT) } {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(%error, "clients' ports are not locked, and may be swapped out: raise the limit on \
                                        locked memory (ulimit -l), or go without swap");
            });
        }
        match self.fill() {
            // Before Linux 5.14 there is no such advice.
            Err(rustix::io::Errno::INVAL) => self.touch_all(),
            Err(source) => return Err(MappingError { what: "fill", length: self.length, source }),
            Ok(()) => {}
        }
        if let Err(error) = self.hold_together() {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(%error, "clients can have their ports' pages moved, and hold the node up meanwhile: \
                                        raise /proc/sys/fs/pipe-user-pages-soft");
            });
        }
        Ok(())
    }

    /// Has all pages there.
    fn fill(&self) -> rustix::io::Result<()> {
        let bytes = self.owner.length;
        for from in (0..bytes).step_by(FILLED_AT_ONCE) {
            let length = FILLED_AT_ONCE.min(bytes - from);
            // SAFETY: from is below the mapping's length.
            let start = unsafe { self.start.as_ptr().add(from) };
            // SAFETY: the span lies in this mapping, which is live; the advice changes no bytes.
            unsafe { rustix::mm::madvise(start.cast(), length, rustix::mm::Advice::LinuxPopulateWrite) }?;
        }
        Ok(())
    }

    /// Keeps peers from having the file's pages moved to huge ones (MADV_COLLAPSE): while the kernel does that in a
    /// thread of theirs, of the lowest priority if they like, whoever touches such a page waits. The kernel leaves a
    /// huge page's range alone if somebody holds one page of it, and a pipe can.
    fn hold_together(&self) -> rustix::io::Result<()> {
        let Some(file) = self.file().filter(|_| self.length >= HUGE_PAGE_BYTES) else { return Ok(()) };
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let ranges = self.length / HUGE_PAGE_BYTES;
        let bytes = usize::try_from(ranges * PAGE_BYTES).unwrap_or(usize::MAX);
        rustix::pipe::fcntl_setpipe_size(&writer, bytes)?;
        for range in 0..ranges {
            let mut at = range * HUGE_PAGE_BYTES;
            // By reference: what the pipe gets is the file's page itself.
            rustix::pipe::splice(file, Some(&mut at), &writer, None, 1, SpliceFlags::NONBLOCK)?;
        }
        let _ = self.owner.holds.set(reader);
        Ok(())
    }

    fn touch_all(&self) {
        for page in (0..self.length).step_by(4096) {
            self.word(page).fetch_add(0, Ordering::Relaxed);
        }
    }

    /// Maps a file that a peer passed. The peer must not be able to shrink it while it is mapped: it is refused
    /// unless it is sealed so and `length` long.
    ///
    /// # Errors
    /// The file is not such a file, or the machine refuses.
    pub fn of_peer(file: OwnedFd, length: u64, writable: bool) -> Result<Self, MappingError> {
        let error = |what| move |source| MappingError { what, length, source };
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(error("read the seals of"))?;
        let size = rustix::fs::fstat(&file).map_err(error("measure"))?.st_size;
        let sound = seals.contains(SealFlags::SHRINK) && u64::try_from(size).is_ok_and(|size| size == length);
        if !sound {
            return Err(error("trust a file for")(rustix::io::Errno::PERM));
        }
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        Self::of_file(file, length, protection)
    }

    fn of_file(file: OwnedFd, length: u64, protection: ProtFlags) -> Result<Self, MappingError> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing; the file cannot shrink.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file.as_fd(), 0)
        };
        Self::from_mmap(start, bytes, Some(file))
    }

    fn from_mmap(
        start: rustix::io::Result<*mut core::ffi::c_void>,
        bytes: usize,
        file: Option<OwnedFd>,
    ) -> Result<Self, MappingError> {
        let length = bytes as u64;
        let start = start.map_err(|source| MappingError { what: "map", length, source })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(MappingError {
            what: "map",
            length,
            source: rustix::io::Errno::NOMEM,
        })?;
        let owner = Owner { start, length: bytes, on_heap: None, file, holds: OnceLock::new() };
        Ok(Self { start, length, owner: Arc::new(owner) })
    }

    /// Where it lies in this process: for a device that is told so. It stays there while any clone lives.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The file behind shareable memory.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.owner.file.as_ref().map(AsFd::as_fd)
    }

    /// Panics unless `length` bytes from `offset` on lie in the mapping, and turns the offset into a count.
    #[inline]
    fn check(&self, offset: u64, length: u64) -> usize {
        let inside = offset <= self.length && length <= self.length - offset;
        assert!(inside, "{length} bytes at {offset} lie outside a mapping of {}", self.length);
        // A mapping's length came from a usize, and the offset is not beyond it.
        usize::try_from(offset).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(crate) fn pointer(&self, offset: u64, length: u64, align: u64) -> *mut u8 {
        let count = self.check(offset, length);
        assert!(offset.is_multiple_of(align), "an atomic access at {offset} is not aligned");
        // SAFETY: the count was checked to lie inside the mapping, which is one allocation.
        unsafe { self.start.as_ptr().add(count) }
    }

    /// The aligned word at `offset`, as an atomic.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        let pointer = self.pointer(offset, 8, 8).cast::<u64>();
        // SAFETY: eight aligned bytes inside a live mapping, which lives as long as self; only atomics touch them.
        unsafe { AtomicU64::from_ptr(pointer) }
    }

    /// The aligned half word at `offset`, as an atomic: futexes are that wide.
    #[inline]
    #[must_use]
    pub fn half_word(&self, offset: u64) -> &AtomicU32 {
        let pointer = self.pointer(offset, 4, 4).cast::<u32>();
        // SAFETY: four aligned bytes inside a live mapping, which lives as long as self; only atomics touch them.
        unsafe { AtomicU32::from_ptr(pointer) }
    }

    #[inline]
    fn byte(&self, offset: u64) -> &AtomicU8 {
        let pointer = self.pointer(offset, 1, 1);
        // SAFETY: one byte inside a live mapping, which lives as long as self; only atomics touch it.
        unsafe { AtomicU8::from_ptr(pointer) }
    }

    /// `count` aligned words from `offset` on, as atomics.
    #[inline]
    fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        let pointer = self.pointer(offset, count as u64 * 8, 8).cast::<AtomicU64>();
        // SAFETY: count aligned words inside a live mapping, which lives as long as self; only atomics touch them.
        unsafe { std::slice::from_raw_parts(pointer, count) }
    }

    /// Copies bytes between places that others may write meanwhile.
    ///
    /// # Safety
    /// Both spans lie inside live memory.
    unsafe fn string_copy(from: *const u8, to: *mut u8, length: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: both spans lie inside live memory, says the caller. The copy is made by the processor, not by the
        // language: bytes that a peer changes meanwhile arrive old or new. The direction flag is clear at every
        // function entry (System V ABI).
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") length => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        for index in 0..length {
            // SAFETY: index < length, and both spans lie inside live memory, says the caller.
            let source = unsafe { from.add(index) };
            // SAFETY: as above.
            let target = unsafe { to.add(index) };
            // SAFETY: one byte inside live memory; a volatile read of a byte cannot tear.
            let byte = unsafe { source.read_volatile() };
            // SAFETY: one byte inside live memory.
            unsafe { target.write_volatile(byte) };
        }
    }
}

fn round_up(length: u64, unit: u64) -> u64 {
    length.max(1).div_ceil(unit).saturating_mul(unit)
}

impl Memory for Mapping {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.pointer(offset, into.len() as u64, 1);
        fence(Ordering::Acquire);
        // SAFETY: pointer() checked the mapping's span; the other is a slice of the same length.
        unsafe { Self::string_copy(from, into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let to = self.pointer(offset, from.len() as u64, 1);
        // SAFETY: pointer() checked the mapping's span; the other is a slice of the same length.
        unsafe { Self::string_copy(from.as_ptr(), to, from.len()) };
        fence(Ordering::Release);
    }

    fn zero(&self, offset: u64, length: u64) {
        self.check(offset, length);
        let end = offset + length;
        let first = offset.next_multiple_of(8).min(end);
        let last = (end - end % 8).max(first);
        for at in (offset..first).chain(last..end) {
            self.byte(at).store(0, Ordering::Relaxed);
        }
        let count = usize::try_from((last - first) / 8).unwrap_or(0);
        if count > 0 {
            for word in self.words(first, count) {
                word.store(0, Ordering::Relaxed);
            }
        }
        fence(Ordering::Release);
    }

    #[inline]
    fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }
}

impl Bytes for Mapping {
    #[inline]
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64) {
        if (from | at | length).is_multiple_of(8) && length < STRING_COPY_BYTES {
            let count = usize::try_from(length / 8).unwrap_or(0);
            for (source, target) in self.words(from, count).iter().zip(to.words(at, count)) {
                target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        } else {
            let source = self.pointer(from, length, 1);
            let target = to.pointer(at, length, 1);
            // SAFETY: pointer() checked both spans.
            unsafe { Self::string_copy(source, target, usize::try_from(length).unwrap_or(0)) };
        }
    }

    #[inline]
    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64 {
        match self.word(offset).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        }
    }

    #[inline]
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.word(offset).fetch_add(add, Ordering::AcqRel)
    }

    #[inline]
    fn prefetch(&self, offset: u64) {
        let pointer = self.pointer(offset, 1, 1);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch of any address faults on nothing and changes nothing that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.cast_const().cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = pointer;
    }

    #[inline]
    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        let words = self.words(offset, N);
        std::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    #[inline]
    fn store_words<const N: usize>(&self, offset: u64, values: [u64; N]) {
        for (word, value) in self.words(offset, N).iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_move_exactly_their_bytes(
            from in 0u64..600, at in 0u64..600, length in 0u64..1200, seed: u8,
        ) {
            let (source, target) = (Mapping::private(4096).unwrap(), Mapping::private(4096).unwrap());
            let pattern: Vec<u8> = (0..4096u32).map(|i| (i % 251).to_le_bytes()[0] ^ seed).collect();
            source.write(0, &pattern);
            target.write(0, &[0xee; 4096]);
            source.copy(from, &target, at, length);
            let mut got = vec![0; 4096];
            target.read(0, &mut got);
            let index = |offset: u64| usize::try_from(offset).unwrap();
            let (from, at, length) = (index(from), index(at), index(length));
            prop_assert_eq!(&got[at..at + length], &pattern[from..from + length]);
            prop_assert!(got[..at].iter().chain(&got[at + length..]).all(|&byte| byte == 0xee));
        }

        #[test]
        fn zeroing_touches_exactly_its_bytes(offset in 0u64..64, length in 0u64..200) {
            let mapping = Mapping::private(4096).unwrap();
            mapping.write(0, &[0xff; 512]);
            mapping.zero(offset, length);
            let mut got = [0; 512];
            mapping.read(0, &mut got);
            for (index, byte) in got.iter().enumerate() {
                let inside = (offset..offset + length).contains(&(index as u64));
                prop_assert_eq!(*byte, if inside { 0 } else { 0xff });
            }
        }
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
    #[should_panic(expected = "outside a mapping")]
    fn an_offset_past_the_end_panics_like_a_slice() {
        Mapping::private(4096).unwrap().load(4096);
    }

    #[test]
    fn a_read_only_seal_keeps_peers_from_writing() {
        let mapping = Mapping::shareable("test", 4096).unwrap();
        mapping.seal_future_writes().unwrap();
        let copy = mapping.file().unwrap().try_clone_to_owned().unwrap();
        assert!(Mapping::of_peer(copy.try_clone().unwrap(), 4096, true).is_err());
        assert!(Mapping::of_peer(copy, 4096, false).is_ok());
    }
}

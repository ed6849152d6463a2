//! The heap: far blocks from the range, local ones from this process's own memory.
//!
//! Small blocks are allocated by dlmalloc, with the requested size written before each. A block of [`LARGE_BYTES`] or
//! more in the range has granules of its own, which are given back when it is freed: the node's memory shrinks at once.

use crate::child;
use crate::granules::GRANULE;
use crate::range::Range;
use crate::settings::{Settings, VARIABLE};
use dlmalloc::{Allocator, Dlmalloc};
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::RefCell;
use std::ptr::{copy_nonoverlapping, null_mut};

/// The size from which on a far block has granules of its own.
const LARGE_BYTES: usize = 256 << 10;
/// Bytes between the start of a large block's granules and the block. Some programs would take a block at the start of
/// a page for memory that they may share or protect as a whole.
const LARGE_OFFSET: usize = 64;
/// Bytes before a small block, and the alignment that all blocks have.
const HEADER_BYTES: usize = 16;
/// The unit in which dlmalloc takes far memory: one of the monitor's segments.
const FAR_GRANULARITY: usize = 1 << 20;

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(FAR_GRANULARITY.is_multiple_of(GRANULE));

/// The header before a small block.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    /// Bytes that the program requested.
    size: usize,
    /// Distance from the start of dlmalloc's block to the block.
    offset: usize,
}

/// Whether this process has a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The range has not been requested yet.
    New,
    /// There is no range, or it is not this process's.
    Local,
    /// New blocks come from the range.
    Far,
}

/// The memory that a block lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Local,
    Far,
    Large,
}

/// The heap of this process.
pub(crate) struct Heap {
    phase: Phase,
    least: usize,
    /// While the local small blocks have fewer bytes in total, new small blocks are local.
    first: usize,
    /// Bytes of local blocks.
    local_bytes: usize,
    /// Bytes of the range. 0: this process never had one.
    range: usize,
    far: Dlmalloc<FarMemory>,
    local: Dlmalloc<LocalMemory>,
}

impl Heap {
    pub(crate) const fn new() -> Self {
        Self {
            phase: Phase::New,
            least: 0,
            first: 0,
            local_bytes: 0,
            range: 0,
            far: Dlmalloc::new_with_allocator(FarMemory(RefCell::new(None))),
            local: Dlmalloc::new_with_allocator(LocalMemory),
        }
    }

    /// Maps the range, if the monitor has requested one and this has not been tried yet.
    pub(crate) fn set_up(&mut self) {
        if self.phase != Phase::New {
            return;
        }
        self.phase = Phase::Local;
        // SAFETY: the name is a C string. Before the first allocation no other thread changes the environment.
        let text = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        if text.is_null() {
            return;
        }
        // SAFETY: what getenv returns is a C string.
        let text = unsafe { core::ffi::CStr::from_ptr(text) };
        let Some(settings) = Settings::parse(text.to_bytes()) else { return };
        if let Some(range) = Range::set_up(settings) {
            self.least = usize::try_from(settings.least).unwrap_or(usize::MAX);
            self.first = usize::try_from(settings.first).unwrap_or(usize::MAX);
            self.range = usize::try_from(settings.range).unwrap_or(0) / GRANULE * GRANULE;
            *self.far.allocator().0.borrow_mut() = Some(range);
            let is_set = self.far.set_granularity(FAR_GRANULARITY);
            assert!(is_set, "the granularity is a power of two");
            self.phase = Phase::Far;
        }
    }

    /// Whether a forked child would lack blocks that its parent has.
    pub(crate) fn forbids_fork(&self) -> bool {
        self.phase == Phase::Far
            && self.with_range(|range| !range.forks() && range.granules().has_taken()).unwrap_or(false)
    }

    /// Prepares the heap of a forked child: the parent's blocks remain, new blocks are local, and no far block is
    /// freed.
    pub(crate) fn forked(&mut self) {
        self.with_range(|range| {
            if range.forks() {
                child::join(range);
            } else {
                crate::range::keep_only([-1; 3]);
            }
        });
        self.phase = Phase::Local;
    }

    fn with_range<R>(&self, use_it: impl FnOnce(&mut Range) -> R) -> Option<R> {
        self.far.allocator().0.borrow_mut().as_mut().map(use_it)
    }

    /// Allocates a block of `size` bytes, aligned to a power of two. Null: there is no memory.
    pub(crate) fn allocate(&mut self, size: usize, align: usize) -> *mut u8 {
        self.set_up();
        let is_far = self.is_far(size);
        if is_far && size >= LARGE_BYTES && align <= LARGE_OFFSET {
            return self.allocate_large(size);
        }
        let extra = HEADER_BYTES + if align > HEADER_BYTES { align } else { 0 };
        let Some(whole) = size.checked_add(extra) else { return null_mut() };
        let base = if is_far {
            // SAFETY: dlmalloc accepts any size.
            unsafe { self.far.c_malloc(whole) }
        } else {
            // SAFETY: as above.
            unsafe { self.local.c_malloc(whole) }
        };
        if base.is_null() {
            return base;
        }
        self.local_bytes += if is_far { 0 } else { size };
        let offset = (base.addr() + HEADER_BYTES).next_multiple_of(align.max(HEADER_BYTES)) - base.addr();
        // SAFETY: the block has room for the header, the alignment and the bytes.
        let block = unsafe { base.add(offset) };
        write_header(block, Header { size, offset });
        block
    }

    /// Whether a new block of this size is far.
    fn is_far(&self, size: usize) -> bool {
        let is_among_first = size < LARGE_BYTES && self.local_bytes.saturating_add(size) <= self.first;
        self.phase == Phase::Far && size >= self.least && !is_among_first
    }

    fn allocate_large(&mut self, size: usize) -> *mut u8 {
        let Some(whole) = size.checked_add(LARGE_OFFSET) else { return null_mut() };
        let block = self.with_range(|range| {
            let granule = range.take(whole.div_ceil(GRANULE))?;
            range.granules().set_size(granule, size);
            // SAFETY: the granules have room for the offset and the bytes.
            Some(unsafe { range.at(granule).add(LARGE_OFFSET) })
        });
        block.flatten().unwrap_or(null_mut())
    }

    /// Allocates a block of zeros.
    pub(crate) fn allocate_zeroed(&mut self, size: usize) -> *mut u8 {
        let block = self.allocate(size, HEADER_BYTES);
        // Fresh granules are zeros already, and writing to them would fetch them.
        if !block.is_null() && self.kind(block) != Kind::Large {
            // SAFETY: the block has this many bytes.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    fn kind(&self, block: *mut u8) -> Kind {
        self.with_range(|range| {
            if !range.has(block, self.range) {
                return Kind::Local;
            }
            let granule = range.granule_of(block);
            // SAFETY: the offset lies in the granule.
            let start = unsafe { range.at(granule).add(LARGE_OFFSET) };
            let is_large = start == block && range.granules().size(granule).is_some();
            if is_large { Kind::Large } else { Kind::Far }
        })
        .unwrap_or(Kind::Local)
    }

    /// Bytes of a block.
    ///
    /// # Safety
    /// The block was allocated here and was not freed.
    pub(crate) unsafe fn size(&self, block: *mut u8) -> usize {
        match self.kind(block) {
            Kind::Large => self
                .with_range(|range| {
                    let granule = range.granule_of(block);
                    range.granules().size(granule)
                })
                .flatten()
                .unwrap_or(0),
            Kind::Local | Kind::Far => read_header(block).size,
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block was allocated here and was not freed.
    pub(crate) unsafe fn free(&mut self, block: *mut u8) {
        let kind = self.kind(block);
        // The range's record of granules belongs to the parent, not to a forked child.
        if kind != Kind::Local && self.phase != Phase::Far {
            return;
        }
        if kind == Kind::Large {
            self.free_large(block);
            return;
        }
        let header = read_header(block);
        // SAFETY: dlmalloc's block begins this many bytes before the block.
        let base = unsafe { block.sub(header.offset) };
        if kind == Kind::Far {
            // SAFETY: the caller guarantees that the block was allocated by this allocator and was not freed.
            unsafe { self.far.c_free(base) };
        } else {
            self.local_bytes -= header.size;
            // SAFETY: as above.
            unsafe { self.local.c_free(base) };
        }
    }

    fn free_large(&mut self, block: *mut u8) {
        self.with_range(|range| {
            let granule = range.granule_of(block);
            let size = range.granules().size(granule).unwrap_or(0);
            range.granules().set_size(granule, 0);
            range.give_back(granule, (size + LARGE_OFFSET).div_ceil(GRANULE));
        });
    }

    /// Changes the size of a block, which may move. Null: there is no memory, and the block is unchanged.
    ///
    /// # Safety
    /// The block was allocated here and was not freed.
    pub(crate) unsafe fn resize(&mut self, block: *mut u8, size: usize) -> *mut u8 {
        let kind = self.kind(block);
        if kind == Kind::Large && self.resize_large(block, size) {
            return block;
        }
        let stays = kind == Kind::Far && size < LARGE_BYTES && size >= self.least && self.phase == Phase::Far
            || kind == Kind::Local && !self.is_far(size);
        if stays && read_header(block).offset == HEADER_BYTES {
            // SAFETY: the caller's promise, and the offset is that of a block without an alignment of its own.
            return unsafe { self.resize_small(block, size, kind) };
        }
        let new = self.allocate(size, HEADER_BYTES);
        if new.is_null() {
            return new;
        }
        // SAFETY: the caller guarantees that the block was allocated here.
        let old_size = unsafe { self.size(block) };
        // SAFETY: both blocks have at least this many bytes, and they are different blocks.
        unsafe { copy_nonoverlapping(block, new, old_size.min(size)) };
        // SAFETY: the caller guarantees that the block was allocated here and was not freed.
        unsafe { self.free(block) };
        new
    }

    /// Changes the size of a small block, which may move.
    ///
    /// # Safety
    /// The block was allocated by dlmalloc, lies right behind its header, and was not freed.
    unsafe fn resize_small(&mut self, block: *mut u8, size: usize, kind: Kind) -> *mut u8 {
        let Some(whole) = size.checked_add(HEADER_BYTES) else { return null_mut() };
        // SAFETY: the header lies right before the block.
        let base = unsafe { block.sub(HEADER_BYTES) };
        let base = if kind == Kind::Far {
            // SAFETY: the caller guarantees that the block was allocated by the allocator of its kind.
            unsafe { self.far.c_realloc(base, whole) }
        } else {
            // SAFETY: as above.
            unsafe { self.local.c_realloc(base, whole) }
        };
        if base.is_null() {
            return base;
        }
        // SAFETY: the block has room for its header.
        let block = unsafe { base.add(HEADER_BYTES) };
        if kind == Kind::Local {
            self.local_bytes = self.local_bytes - read_header(block).size + size;
        }
        write_header(block, Header { size, offset: HEADER_BYTES });
        block
    }

    /// Grows or shrinks a large block in place. `false`: it cannot be resized in place, or would not be large any more.
    fn resize_large(&mut self, block: *mut u8, size: usize) -> bool {
        if size < LARGE_BYTES || self.phase != Phase::Far {
            return false;
        }
        self.with_range(|range| {
            let granule = range.granule_of(block);
            let Some(old) = range.granules().size(granule) else { return false };
            let count = |size: usize| (size + LARGE_OFFSET).div_ceil(GRANULE);
            let (has, needs) = (count(old), count(size));
            if needs > has && !range.extend(granule + has, needs - has) {
                return false;
            }
            if needs < has {
                range.give_back(granule + needs, has - needs);
            }
            range.granules().set_size(granule, size);
            true
        })
        .unwrap_or(false)
    }
}

fn read_header(block: *mut u8) -> Header {
    // SAFETY: small blocks have a header right before them.
    let header = unsafe { block.sub(HEADER_BYTES) };
    // SAFETY: the header was written when the block was allocated, and blocks are aligned to the header's size.
    unsafe { header.cast::<Header>().read() }
}

fn write_header(block: *mut u8, header: Header) {
    // SAFETY: small blocks have room for a header right before them.
    let place = unsafe { block.sub(HEADER_BYTES) };
    // SAFETY: as above, and blocks are aligned to the header's size.
    unsafe { place.cast::<Header>().write(header) };
}

/// Source of dlmalloc's far memory.
struct FarMemory(RefCell<Option<Range>>);

// SAFETY: an allocation consists of granules that no other allocation has until they are freed.
unsafe impl Allocator for FarMemory {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let mut range = self.0.borrow_mut();
        let taken = range.as_mut().and_then(|range| {
            let granule = range.take(size.div_ceil(GRANULE))?;
            Some(range.at(granule))
        });
        taken.map_or((null_mut(), 0, 0), |start| (start, size.next_multiple_of(GRANULE), 0))
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        let kept = new.next_multiple_of(GRANULE);
        kept == new && self.free(start.wrapping_add(kept), old - kept)
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        let mut range = self.0.borrow_mut();
        let Some(range) = range.as_mut() else { return false };
        let granule = range.granule_of(start);
        range.give_back(granule, size.div_ceil(GRANULE));
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        GRANULE
    }
}

/// Source of dlmalloc's local memory.
struct LocalMemory;

// SAFETY: an allocation is a fresh mapping, until it is unmapped.
unsafe impl Allocator for LocalMemory {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address that the kernel picks overlaps nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), size, protection, flags) };
        start.map_or((null_mut(), 0, 0), |start| (start.cast(), size, 0))
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: dlmalloc frees only memory that it got from here and does not use any more.
        unsafe { rustix::mm::munmap(start.wrapping_add(new).cast(), old - new) }.is_ok()
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc frees only memory that it got from here and does not use any more.
        unsafe { rustix::mm::munmap(start.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

#[cfg(test)]
mod tests {
    use super::Heap;
    use rand::rngs::SmallRng;
    use rand::{Rng, RngExt, SeedableRng};

    #[test]
    fn blocks_keep_their_bytes_while_others_come_and_go() {
        for seed in 0..8 {
            println!("seed {seed}");
            keep(&mut SmallRng::seed_from_u64(seed));
        }
    }

    fn keep(dice: &mut impl Rng) {
        let mut heap = Heap::new();
        let mut blocks: Vec<(*mut u8, usize, u8)> = Vec::new();
        for round in 0..3000 {
            let below = 1usize << dice.random_range(1..18u32);
            let size = dice.random_range(0..below);
            match dice.random_range(0..5) {
                0 | 1 => {
                    let align = 1 << dice.random_range(0..13u32);
                    let block = heap.allocate(size, align);
                    assert!(
                        block.addr().is_multiple_of(align.max(16)),
                        "{block:?} is not aligned to {align}"
                    );
                    blocks.push(filled(block, size, round));
                }
                2 => {
                    let block = heap.allocate_zeroed(size);
                    check(&(block, size, 0));
                    blocks.push(filled(block, size, round));
                }
                3 if !blocks.is_empty() => {
                    let at = dice.random_range(0..blocks.len());
                    let (block, old, byte) = blocks[at];
                    // SAFETY: it came from this heap.
                    let moved = unsafe { heap.resize(block, size) };
                    check(&(moved, old.min(size), byte));
                    blocks[at] = filled(moved, size, round);
                }
                _ if !blocks.is_empty() => {
                    let it = blocks.swap_remove(dice.random_range(0..blocks.len()));
                    check(&it);
                    // SAFETY: it came from this heap.
                    assert_eq!(unsafe { heap.size(it.0) }, it.1);
                    // SAFETY: it came from this heap, and is not used any more.
                    unsafe { heap.free(it.0) };
                }
                _ => {}
            }
        }
        blocks.iter().for_each(check);
    }

    fn filled(block: *mut u8, size: usize, round: u32) -> (*mut u8, usize, u8) {
        let byte = round.to_le_bytes()[0];
        // SAFETY: the block has this many bytes.
        unsafe { block.write_bytes(byte, size) };
        (block, size, byte)
    }

    fn check(&(block, size, byte): &(*mut u8, usize, u8)) {
        // SAFETY: the block has this many bytes, which were written.
        let bytes = unsafe { std::slice::from_raw_parts(block, size) };
        assert!(bytes.iter().all(|&it| it == byte));
    }
}

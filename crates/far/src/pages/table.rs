//! State of each page and each segment. Segments that were never touched take no memory.

use super::staying::Stay;
use super::{ChunkId, RunId};

/// Number of pages of a segment (1 MiB), which has one chunk on the node.
pub const SEGMENT_PAGES: u64 = IN_SEGMENT as u64;
const IN_SEGMENT: usize = 256;

/// State of a page, which tells where its bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageState {
    /// The page is not local. Its bytes are zeros, unless they are stored.
    Absent,
    /// The program uses the page. If it is dirty, the program may write to it. Otherwise it is protected, and equals
    /// the stored bytes.
    Mapped { is_dirty: bool },
    /// The page is in a run.
    Held(RunId),
}

/// The end of a window that faults have moved along: the next fault beside it continues the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edge {
    No,
    /// A page that was mapped alone: a neighbour on either side continues.
    Single,
    /// The last page of a window that moves up, with the logarithm of its length.
    Up(u8),
    /// The first page of a window that moves down.
    Down(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) state: PageState,
    /// The chunk that stores bytes of the page. A page that is dirty, or in a dirty run, has newer ones.
    pub(super) stored_in: Option<ChunkId>,
    /// A write of the page to the chunk is in progress. No other write is begun meanwhile, so none overtakes another.
    pub(super) is_saving: bool,
    /// Edges of the window in which the page was mapped, and of the window in which its protection was lifted.
    pub(super) edge: Edge,
    pub(super) write_edge: Edge,
    /// Number of further times that the page is mapped writable although it is only read, because it was written after
    /// an earlier read. A needless writable mapping costs the program less than a second fault.
    pub(super) writes_expected: u8,
    /// Number of further times that the page is passed over when it is the oldest, because it was needed again soon
    /// after it was taken out.
    pub(super) lives: u8,
    /// Reason for which the mapped page must stay for now, if there is one.
    pub(super) stay: Stay,
    /// Stamp of the page's last mapping or first write.
    pub(super) stamp: u32,
}

const UNTOUCHED: Page = Page {
    state: PageState::Absent,
    stored_in: None,
    is_saving: false,
    edge: Edge::No,
    write_edge: Edge::No,
    writes_expected: 0,
    lives: 0,
    stay: Stay::No,
    stamp: 0,
};

#[derive(Debug)]
pub(super) struct Segment {
    pages: [Page; IN_SEGMENT],
    /// Number of runs of the segment's pages.
    pub(super) runs: u32,
    /// The chunk that the segment's pages are written to.
    pub(super) current: Option<ChunkId>,
    /// All chunks that have bytes of the segment's pages.
    pub(super) chunks: Vec<ChunkId>,
}

impl Segment {
    fn new() -> Self {
        Self { pages: [UNTOUCHED; IN_SEGMENT], runs: 0, current: None, chunks: Vec::new() }
    }
}

/// The segments of a range.
#[derive(Debug)]
pub(super) struct Table {
    pages: u64,
    segments: Vec<Option<Box<Segment>>>,
}

impl Table {
    pub(super) fn new(pages: u64) -> Self {
        let count =
            usize::try_from(pages.div_ceil(SEGMENT_PAGES)).expect("a range fits into the address space");
        Self { pages, segments: std::iter::repeat_with(|| None).take(count).collect() }
    }

    /// Number of pages of the range.
    pub(super) fn len(&self) -> u64 {
        self.pages
    }

    pub(super) fn page(&self, page: u64) -> Page {
        match self.segments.get(index(page / SEGMENT_PAGES)) {
            Some(Some(segment)) => segment.pages[index(page % SEGMENT_PAGES)],
            _ => UNTOUCHED,
        }
    }

    /// # Panics
    /// The page lies outside the range.
    pub(super) fn page_mut(&mut self, page: u64) -> &mut Page {
        assert!(page < self.pages, "page {page} lies outside the range");
        &mut self.segment_mut(page / SEGMENT_PAGES).pages[index(page % SEGMENT_PAGES)]
    }

    pub(super) fn segment_mut(&mut self, segment: u64) -> &mut Segment {
        self.segments[index(segment)].get_or_insert_with(|| Box::new(Segment::new()))
    }

    pub(super) fn is_touched(&self, segment: u64) -> bool {
        self.segments.get(index(segment)).is_some_and(Option::is_some)
    }

    /// Returns the segments that have a state.
    pub(super) fn touched(&self) -> impl Iterator<Item = u64> {
        (0u64..).zip(&self.segments).filter_map(|(number, segment)| segment.as_ref().map(|_| number))
    }

    /// Forgets a segment if its state is the initial one.
    pub(super) fn forget(&mut self, segment: u64) {
        let place = &mut self.segments[index(segment)];
        let is_bare = place.as_ref().is_some_and(|it| {
            it.runs == 0
                && it.chunks.is_empty()
                && it.pages.iter().all(|page| page.state == PageState::Absent && !page.is_saving)
        });
        if is_bare {
            *place = None;
        }
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

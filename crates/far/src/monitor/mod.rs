//! The monitor: fills the pages of a program's range, and keeps what does not fit on a node.

mod buffers;
mod effects;
mod node;

use crate::pages::{HELD_MIN, Limits, MAPPED_MIN, Pages};
use crate::{Ended, FarError, Program, SEGMENT_BYTES, Summary};
use buffers::Buffers;
use node::Node;
use portcullis::Session;
use portcullis_memory::userfault::{Fault, Handed, HandoverError, PAGE, Request, Userfault};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = PAGE as u64;
/// The part of the local memory that is buffers: what is on its way, and what was taken out and may come back.
const BUFFERS_PART: u64 = 4;
/// The most bytes of buffers.
const BUFFERS_MAX: u64 = 32 << 20;
/// What a session itself needs of its arena.
const ARENA_OWN_BYTES: u64 = 1 << 20;
/// The least local memory.
pub const LOCAL_MIN: u64 = 8 << 20;
/// How long the monitor polls before it sleeps. A fault seldom comes alone, and to wake the monitor takes longer than to
/// serve most faults.
const POLL_FOR: Duration = Duration::from_micros(100);
/// Turns between two looks for requests of a program whose other threads keep the monitor busy.
const REQUESTS_EVERY: u64 = 64;
/// The longest sleep. It bounds how long the monitor does not notice that the node has gone.
const SLEEP_MAX: Duration = Duration::from_millis(20);

const _: () = assert!(LOCAL_MIN > ARENA_OWN_BYTES + (MAPPED_MIN as u64 + HELD_MIN as u64) * PAGE_BYTES);

/// How much memory is where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes of the range.
    pub range: u64,
    /// Bytes that are local at most: mapped pages, the session's arena, and what is never far.
    pub local: u64,
    /// Bytes of small blocks that are never far: those that the program gets first. A program that never has more can
    /// fork as it likes.
    pub first: u64,
    /// Blocks of fewer bytes are never far. They are not counted.
    pub least: u64,
}

impl Sizes {
    /// Bytes of buffers.
    fn buffers(self) -> u64 {
        (self.local / BUFFERS_PART).clamp(u64::from(HELD_MIN) * PAGE_BYTES, BUFFERS_MAX) / PAGE_BYTES
            * PAGE_BYTES
    }

    /// Bytes of the arena that the monitor's session needs.
    #[must_use]
    pub fn arena_bytes(self) -> u64 {
        self.buffers() + ARENA_OWN_BYTES
    }

    fn limits(self) -> Limits {
        let pages = |bytes: u64| u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX);
        Limits {
            pages: self.range / PAGE_BYTES,
            mapped: pages(self.local.saturating_sub(self.arena_bytes() + self.first)).max(MAPPED_MIN),
            held: pages(self.buffers()),
        }
    }
}

/// A range that a program has handed over.
struct Range {
    handed: Handed,
    /// The program has executed another in its place, or is about to end: the range is gone with its memory.
    is_gone: bool,
}

/// Fills the pages of one program's range.
pub struct Monitor {
    sizes: Sizes,
    node: Node,
    buffers: Buffers,
    pages: Pages,
    range: Option<Range>,
    summary: Summary,
    waits: Waits,
    /// The program's end of the socket is closed.
    is_silent: bool,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

/// How long threads of the program have waited for pages.
#[derive(Debug, Default)]
struct Waits {
    /// Pages that are waited for, and since when any is.
    pages: std::collections::HashSet<u64>,
    since: Option<Instant>,
    all: Duration,
}

impl Waits {
    fn begin(&mut self, page: u64) {
        self.pages.insert(page);
        self.since.get_or_insert_with(Instant::now);
    }

    fn end(&mut self, pages: std::ops::Range<u64>) {
        if self.pages.is_empty() {
            return;
        }
        for page in pages {
            self.pages.remove(&page);
        }
        if self.pages.is_empty()
            && let Some(since) = self.since.take()
        {
            self.all += since.elapsed();
        }
    }

    fn end_all(&mut self) {
        self.pages.clear();
        self.all += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }
}

impl Monitor {
    /// Over a session whose arena has [`Sizes::arena_bytes`]. The node's NIC gets workers for it.
    ///
    /// # Errors
    /// This process may not fill pages, the node has no chunks, or they are too small.
    pub fn new(session: Session, sizes: Sizes) -> Result<Self, FarError> {
        Userfault::new()?.agree()?;
        let node = Node::join(session, SEGMENT_BYTES)?;
        let summary = Summary { local_bytes: sizes.local, ..Summary::default() };
        Ok(Self {
            sizes,
            node,
            buffers: Buffers::default(),
            pages: Pages::new(sizes.limits()),
            range: None,
            summary,
            waits: Waits::default(),
            is_silent: false,
        })
    }

    /// Serves a program until it ends. If its memory cannot be had any more, the program is killed before this returns.
    ///
    /// # Errors
    /// The node is gone or refuses, or the machine does. The program is dead.
    pub fn serve(&mut self, program: &mut Program) -> Result<Ended, FarError> {
        let started = Instant::now();
        let ended = self.serve_until_end(program);
        if ended.is_err() {
            // The range's descriptors are still open: until it is dead, the program waits and sees no zeros.
            program.kill();
        }
        self.waits.end_all();
        self.finish_range();
        self.summary.set_times(started.elapsed(), self.waits.all);
        ended
    }

    /// What has happened so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            chunks: self.node.chunks(),
            chunks_max: self.node.chunks_max(),
            chunks_allocated: self.node.chunks_allocated(),
            chunks_freed: self.node.chunks_allocated() - self.node.chunks(),
            ..self.summary.clone()
        }
    }

    fn serve_until_end(&mut self, program: &mut Program) -> Result<Ended, FarError> {
        let mut faults = Vec::new();
        let mut idle_since: Option<Instant> = None;
        for turn in 0u64.. {
            if turn.is_multiple_of(REQUESTS_EVERY) && !self.is_silent {
                self.take_requests(program)?;
            }
            let is_busy = self.take_faults(&mut faults)? | self.take_ended()?;
            self.carry_out_all()?;
            // One step at a time: a fault that comes meanwhile is served before the next.
            if is_busy || self.pages.prepare() {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() < POLL_FOR {
                std::hint::spin_loop();
                continue;
            }
            idle_since = None;
            let woken = self.sleep(program)?;
            if woken.has_request {
                self.take_requests(program)?;
            }
            if woken.has_ended
                && let Some(ended) = program.ended()?
            {
                return Ok(ended);
            }
        }
        unreachable!("a program ends before the turns do")
    }

    fn take_faults(&mut self, faults: &mut Vec<Fault>) -> Result<bool, FarError> {
        let Some(range) = &self.range else { return Ok(false) };
        range.handed.userfault.take(faults)?;
        let is_busy = !faults.is_empty();
        for fault in faults.drain(..) {
            let page = fault.address.wrapping_sub(range.handed.address) / PAGE_BYTES;
            self.waits.begin(page);
            self.pages.fault(page, fault.is_write);
        }
        Ok(is_busy)
    }

    /// Takes what has ended on the node's side.
    fn take_ended(&mut self) -> Result<bool, FarError> {
        let mut is_busy = false;
        for ended in self.node.poll(&mut self.buffers)? {
            is_busy = true;
            match ended {
                node::Ended::Loaded(run) => self.pages.loaded(run),
                node::Ended::Saved(run) => self.pages.saved(run),
                node::Ended::Allocated(segment) => self.pages.chunk_allocated(segment),
                node::Ended::Freed(segment) => self.pages.chunk_freed(segment),
            }
        }
        Ok(is_busy)
    }

    fn take_requests(&mut self, program: &Program) -> Result<(), FarError> {
        loop {
            let request = match program.handover.take() {
                Ok(Some(request)) => request,
                Ok(None) => return Ok(()),
                Err(HandoverError::Socket(Errno::PIPE | Errno::CONNRESET)) => {
                    // Nobody has the program's end any more.
                    self.is_silent = true;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            match request {
                Request::HandOver(handed) => self.begin_range(handed)?,
                Request::Release { address, length } => self.release(address, length)?,
                Request::Denied(errno) => return Err(FarError::Range(Errno::from_raw_os_error(errno))),
            }
            match program.handover.done() {
                // The program has ended meanwhile.
                Ok(()) | Err(HandoverError::Socket(Errno::PIPE | Errno::CONNRESET)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A program has begun: the one that was started, or another one that it executed in its own place.
    fn begin_range(&mut self, handed: Handed) -> Result<(), FarError> {
        let is_sound = handed.length == self.sizes.range && handed.address.is_multiple_of(PAGE_BYTES);
        if !is_sound {
            return Err(HandoverError::Malformed.into());
        }
        self.clear()?;
        handed.userfault.agree()?;
        handed.userfault.watch(handed.address, handed.length)?;
        self.range = Some(Range { handed, is_gone: false });
        self.summary.ranges += 1;
        Ok(())
    }

    /// Forgets all pages, and waits until the node has the chunks back.
    fn clear(&mut self) -> Result<(), FarError> {
        let Some(range) = &mut self.range else { return Ok(()) };
        range.is_gone = true;
        self.waits.end_all();
        let pages = self.sizes.limits().pages;
        let whole = crate::pages::Span { first: 0, count: u32::try_from(pages).unwrap_or(u32::MAX) };
        self.pages.release(whole);
        self.carry_out_all()?;
        while !self.node.is_at_rest() {
            self.take_ended()?;
            self.carry_out_all()?;
            self.node.wait()?;
        }
        self.finish_range();
        self.pages = Pages::new(self.sizes.limits());
        self.range = None;
        Ok(())
    }

    fn finish_range(&mut self) {
        self.summary.add(&self.pages.counters());
    }

    fn release(&mut self, address: u64, length: u64) -> Result<(), FarError> {
        let Some(range) = &self.range else { return Err(HandoverError::Malformed.into()) };
        let offset = address.wrapping_sub(range.handed.address);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= range.handed.length);
        if !is_inside || !(offset | length).is_multiple_of(PAGE_BYTES) || length == 0 {
            return Err(HandoverError::Malformed.into());
        }
        let count = u32::try_from(length / PAGE_BYTES).map_err(|_| HandoverError::Malformed)?;
        self.pages.release(crate::pages::Span { first: offset / PAGE_BYTES, count });
        self.carry_out_all()
    }

    /// Sleeps until something is to be done.
    fn sleep(&mut self, program: &Program) -> Result<Woken, FarError> {
        let at_most = self.node.arm().min(SLEEP_MAX);
        let mut descriptors = Vec::with_capacity(4);
        descriptors.push(PollFd::from_borrowed_fd(program.descriptor(), PollFlags::IN));
        descriptors.push(PollFd::from_borrowed_fd(self.node.descriptor(), PollFlags::IN));
        if !self.is_silent {
            descriptors.push(PollFd::new(&program.handover, PollFlags::IN));
        }
        if let Some(range) = &self.range {
            descriptors.push(PollFd::new(&range.handed.userfault, PollFlags::IN));
        }
        match poll(&mut descriptors, Timespec::try_from(at_most).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(FarError::machine("wait for the program")(errno)),
        }
        let is_ready = |at: usize| descriptors.get(at).is_some_and(|it| !it.revents().is_empty());
        Ok(Woken { has_ended: is_ready(0), has_request: !self.is_silent && is_ready(2) })
    }
}

/// What has woken the monitor.
struct Woken {
    has_ended: bool,
    has_request: bool,
}

//! The monitor: it fills the pages of a program's range, and stores the pages that do not fit on a node.

mod buffers;
mod effects;
mod events;
mod layout;
mod node;
mod taking;

use crate::pages::{HELD_MIN, Limits, MAPPED_MIN, Pages, SnapshotId, Span};
use crate::{Ended, FarError, Program, SEGMENT_BYTES, Summary};
use buffers::Buffers;
use events::Child;
use layout::Layout;
use node::Node;
use portcullis::Session;
use portcullis_memory::userfault::{
    Handed, Handover, HandoverError, MARKS_BYTES, PAGE, PageFault, Powers, Request, Terms, Userfault,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = PAGE as u64;
/// Divisor of the local memory: one part of this many is for buffers. They hold pages in transfer, and pages that were
/// taken out and may be mapped again.
const BUFFERS_PART: u64 = 4;
/// Maximum length of the buffers in bytes.
const BUFFERS_MAX: u64 = 32 << 20;
/// Bytes of the arena that a session itself needs.
const ARENA_OWN_BYTES: u64 = 1 << 20;
/// Minimum of the local memory in bytes.
pub const LOCAL_MIN: u64 = 8 << 20;
/// Time that the monitor polls before it sleeps. A fault seldom comes alone, and waking the monitor takes longer than
/// serving most faults.
const POLL_FOR: Duration = Duration::from_micros(100);
/// Turns between two checks for requests of a program whose other threads keep the monitor busy.
const REQUESTS_EVERY: u64 = 64;
/// The longest sleep. It bounds the time after which the monitor notices that the node is lost.
const SLEEP_MAX: Duration = Duration::from_millis(20);

const _: () = assert!(LOCAL_MIN > ARENA_OWN_BYTES + (MAPPED_MIN as u64 + HELD_MIN as u64) * PAGE_BYTES);

/// Sizes of the parts of a program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Length of the range in bytes.
    pub range: u64,
    /// Maximum number of local bytes: mapped pages, the session's arena, and memory that is never far.
    pub local: u64,
    /// Bytes of small blocks that are never far: those that the program allocates first. A program that never allocates
    /// more can fork without restrictions.
    pub first: u64,
    /// Blocks of fewer bytes than this are never far. They are not counted.
    pub least: u64,
}

impl Sizes {
    /// Length of the buffers in bytes.
    fn buffers(self) -> u64 {
        (self.local / BUFFERS_PART).clamp(u64::from(HELD_MIN) * PAGE_BYTES, BUFFERS_MAX) / PAGE_BYTES
            * PAGE_BYTES
    }

    /// Length in bytes of the arena that the monitor's session needs.
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

/// Treatment of pages that the kernel or a device has pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pins {
    /// Pinned pages are detected and stay where they are. It needs Linux 6.8.
    Respected,
    /// On a kernel that cannot detect pinned pages, they are taken out like others: bytes that a device or the kernel
    /// writes into them afterwards are lost, and pages that the program drops by `madvise` may have their old bytes.
    Risked,
}

/// A range that a program has handed over.
struct Range {
    handed: Handed,
    layout: Layout,
    /// The program has executed another in its place, or is about to end: the range's memory no longer exists.
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
    handover: Option<Arc<Handover>>,
    /// The program's process: readable when it has ended.
    process: Option<OwnedFd>,
    powers: Powers,
    started: Instant,
    /// Faults that are not served yet.
    faults: VecDeque<(Option<SnapshotId>, PageFault)>,
    /// Requests that arrived while the monitor waited for an answer.
    requests: VecDeque<Request>,
    children: BTreeMap<SnapshotId, Child>,
    /// Sockets of children whose memory no longer exists. Each is closed after its other end: before that, the kernel
    /// would end a child that is about to execute another program.
    parting: Vec<OwnedFd>,
    /// Forked children that are not matched yet: their numbers and sockets.
    callers: Vec<(u64, OwnedFd)>,
    /// The request that the program has not answered.
    asked: Option<taking::Asked>,
    last_tag: u64,
    /// Time of the last check of the processes.
    looked: Instant,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

/// Time that threads of the program have waited for pages.
#[derive(Debug, Default)]
struct Waits {
    /// Pages that threads wait for, and the start of the present waiting time.
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
    /// Creates a monitor over a session whose arena has [`Sizes::arena_bytes`]. The node's NIC gets workers for it.
    ///
    /// # Errors
    /// This process is not allowed to fill pages, the kernel cannot report which pages are pinned and `pins` requires
    /// it, the node has no chunks, or its chunks are too small.
    pub fn new(session: Session, sizes: Sizes, pins: Pins) -> Result<Self, FarError> {
        let powers = Userfault::powers()?;
        if !powers.moves && pins == Pins::Respected {
            return Err(FarError::CannotMove);
        }
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
            handover: None,
            process: None,
            powers,
            started: Instant::now(),
            faults: VecDeque::new(),
            requests: VecDeque::new(),
            children: BTreeMap::new(),
            parting: Vec::new(),
            callers: Vec::new(),
            asked: None,
            last_tag: 0,
            looked: Instant::now(),
        })
    }

    /// Serves a program until it ends. If its memory can no longer be read, the program is killed before this returns.
    ///
    /// # Errors
    /// The node is lost or refuses, or the machine refuses. The program is dead.
    pub fn serve(&mut self, program: &mut Program) -> Result<Ended, FarError> {
        self.started = Instant::now();
        self.handover = Some(Arc::clone(&program.handover));
        self.process = Some(program.watch()?);
        let ended = self.serve_until_end(program);
        if ended.is_err() {
            // The range's descriptors are still open: until the program is dead, it waits and sees no zeros. The kernel
            // ends the program's children when their sockets are closed, which happens before their descriptors are
            // closed.
            program.kill();
            self.children.values_mut().for_each(Child::end);
        }
        self.waits.end_all();
        self.summary.add(&self.pages.counters());
        self.summary.set_times(self.started.elapsed(), self.waits.all);
        ended
    }

    /// Returns the counters and sizes so far.
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
        let mut idle_since: Option<Instant> = None;
        let mut ended = None;
        for turn in 0u64.. {
            if turn.is_multiple_of(REQUESTS_EVERY) {
                self.take_requests()?;
                self.look_at_processes(program);
            }
            self.take_events(None)?;
            let is_busy = self.serve_faults() | self.take_ended()?;
            self.carry_out_all()?;
            self.forget_dropped();
            // One step at a time: a fault that arrives meanwhile is served before the next step.
            if is_busy || self.pages.prepare(self.started.elapsed()) {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() < POLL_FOR {
                std::hint::spin_loop();
                continue;
            }
            idle_since = None;
            let woken = self.sleep(program, ended.is_some())?;
            self.take_requests()?;
            if woken && let Some(how) = program.ended()? {
                ended = Some(how);
                self.range_is_gone();
                // Children may not have been reported.
                self.take_events(None)?;
            }
            if let Some(how) = ended {
                self.bury_children();
                if self.children.is_empty() && self.parting.is_empty() {
                    return Ok(how);
                }
            }
        }
        unreachable!("a program ends before the turns do")
    }

    /// Checks now and then which children are left, and how much memory all processes have.
    fn look_at_processes(&mut self, program: &Program) {
        if self.looked.elapsed() < SLEEP_MAX {
            return;
        }
        self.looked = Instant::now();
        self.bury_children();
        self.summary.see_own(crate::program::anonymous_bytes(program.process()));
    }

    /// Takes the operations that have ended on the node's side.
    fn take_ended(&mut self) -> Result<bool, FarError> {
        let mut is_busy = false;
        for ended in self.node.poll(&mut self.buffers)? {
            is_busy = true;
            match ended {
                node::Ended::Loaded(run) => self.pages.loaded(run),
                node::Ended::Saved(run) => self.pages.saved(run),
                node::Ended::Allocated(id) => self.pages.chunk_allocated(id),
                node::Ended::Freed => {}
            }
        }
        Ok(is_busy)
    }

    fn take_requests(&mut self) -> Result<(), FarError> {
        loop {
            let request = match self.requests.pop_front() {
                Some(request) => request,
                None => match self.next_request()? {
                    Some(request) => request,
                    None => return Ok(()),
                },
            };
            match request {
                Request::HandOver(handed) => self.begin_range(handed)?,
                Request::Taken(taken) => self.answered(taken)?,
                Request::Child { number, socket } => {
                    self.callers.push((number, socket));
                    self.introduce();
                }
                Request::Denied(errno) => return Err(FarError::Range(Errno::from_raw_os_error(errno))),
            }
        }
    }

    /// Takes the program's late answer, if it has arrived. Other requests wait.
    fn take_late_answer(&mut self) -> Result<(), FarError> {
        if self.has_ended() {
            self.range_is_gone();
        }
        while let Some(request) = self.next_request()? {
            match request {
                Request::Taken(taken) => self.answered(taken)?,
                other => self.requests.push_back(other),
            }
        }
        Ok(())
    }

    /// Begins the range of a program: the one that was started, or another one that it executed in its own place.
    fn begin_range(&mut self, handed: Handed) -> Result<(), FarError> {
        let is_sound = handed.length == self.sizes.range && handed.address.is_multiple_of(PAGE_BYTES);
        if !is_sound {
            return Err(HandoverError::Malformed.into());
        }
        self.clear()?;
        let powers = handed.userfault.agree(self.powers)?;
        handed.userfault.watch(handed.address, handed.length + MARKS_BYTES as u64)?;
        let layout = Layout::new(handed.address, handed.length);
        self.range = Some(Range { handed, layout, is_gone: false });
        self.summary.ranges += 1;
        match self.handover.as_ref().map(|handover| handover.accept(Terms { powers })) {
            // The program may have ended meanwhile.
            None | Some(Ok(()) | Err(HandoverError::Socket(Errno::PIPE | Errno::CONNRESET))) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Forgets the pages of a program that executes another one in its place, and waits until the chunks that no child
    /// needs were returned to the node.
    fn clear(&mut self) -> Result<(), FarError> {
        if self.range.is_none() {
            return Ok(());
        }
        self.range_is_gone();
        self.carry_out_all()?;
        while !self.node.is_at_rest() {
            self.take_ended()?;
            self.carry_out_all()?;
            self.node.wait()?;
        }
        self.range = None;
        Ok(())
    }

    /// Records that the program has ended, or executes another one: its memory no longer exists.
    fn range_is_gone(&mut self) {
        let Some(range) = self.range.as_mut().filter(|range| !range.is_gone) else { return };
        range.is_gone = true;
        self.waits.end_all();
        self.faults.retain(|(process, _)| process.is_some());
        self.give_up_asking();
        let count = u32::try_from(self.sizes.limits().pages).unwrap_or(u32::MAX);
        self.pages.unmapped(Span { first: 0, count });
    }

    /// Whether the program has ended.
    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Sleeps until there is work. Returns whether the program has ended.
    fn sleep(&mut self, program: &Program, has_ended: bool) -> Result<bool, FarError> {
        let at_most = self.node.arm().min(SLEEP_MAX);
        let mut descriptors = Vec::with_capacity(4 + self.children.len());
        descriptors.push(PollFd::from_borrowed_fd(self.node.descriptor(), PollFlags::IN));
        if !self.is_silent
            && let Some(handover) = &self.handover
        {
            descriptors.push(PollFd::new(&**handover, PollFlags::IN));
        }
        if let Some(faults) = self.faults_of(None) {
            descriptors.push(PollFd::new(faults, PollFlags::IN));
        }
        for child in self.children.values() {
            descriptors.push(PollFd::new(&child.faults, PollFlags::IN));
        }
        for socket in &self.parting {
            // Only the close of the other end is awaited.
            descriptors.push(PollFd::new(socket, PollFlags::empty()));
        }
        if !has_ended {
            descriptors.push(PollFd::from_borrowed_fd(program.descriptor(), PollFlags::IN));
        }
        match poll(&mut descriptors, Timespec::try_from(at_most).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(FarError::machine("wait for the program")(errno)),
        }
        Ok(!has_ended && descriptors.last().is_some_and(|it| !it.revents().is_empty()))
    }
}

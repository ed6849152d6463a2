//! Events of the memory of the program and of its forked children.

use super::layout::Layout;
use super::{Monitor, PAGE_BYTES};
use crate::FarError;
use crate::pages::{Access, Effect, SnapshotId, Span};
use portcullis_memory::userfault::{
    Event, Handover, MARKS_BYTES, PageFault, Stop, Userfault, UserfaultError, number_of,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::ops::Range;

/// A forked child of the program, or of another child.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) faults: Userfault,
    layout: Layout,
    /// The first address behind the range.
    marks: u64,
    /// The number by which the child identifies itself, once it has done so.
    number: Option<u64>,
    /// The child's socket, once the child has sent it. The kernel ends the child when this is closed.
    socket: Option<OwnedFd>,
    /// Pages that the child has dropped since the last effect was carried out.
    dropped: Vec<Span>,
}

impl Child {
    pub(super) fn address_of(&self, page: u64) -> Option<u64> {
        self.layout.places_of(Span::one(page)).first().map(|&(address, _)| address)
    }

    pub(super) fn has_dropped(&self, page: u64) -> bool {
        self.dropped.iter().any(|span| (span.first..span.end()).contains(&page))
    }

    /// Makes the kernel end the child.
    pub(super) fn end(&mut self) {
        self.socket = None;
    }

    fn is_alive(&self) -> bool {
        !matches!(self.faults.allow(self.marks, PAGE_BYTES), Err(UserfaultError::Ended))
    }
}

impl Monitor {
    /// Takes the events that have happened, and handles those that cannot wait. Faults are kept for later. `under_way`
    /// is an effect that is not carried out yet.
    pub(super) fn take_events(&mut self, under_way: Option<Effect>) -> Result<(), FarError> {
        let processes: Vec<_> = [None].into_iter().chain(self.children.keys().copied().map(Some)).collect();
        for process in processes {
            let mut events = Vec::new();
            match self.faults_of(process).map(|faults| faults.take(&mut events)) {
                Some(Ok(())) => {}
                None | Some(Err(UserfaultError::Ended)) => continue,
                Some(Err(error)) => return Err(error.into()),
            }
            for event in events {
                self.happened(process, event, under_way)?;
            }
        }
        Ok(())
    }

    fn happened(
        &mut self,
        process: Option<SnapshotId>,
        event: Event,
        under_way: Option<Effect>,
    ) -> Result<(), FarError> {
        match event {
            Event::Fault(fault) => self.faults.push_back((process, fault)),
            Event::Removed(addresses) => self.removed(process, &addresses),
            Event::Unmapped(addresses) => {
                let spans = self.layout_of(process).map_or_else(Vec::new, |layout| {
                    let spans = layout.pages_at(&addresses);
                    layout.unmap(&addresses);
                    spans
                });
                for span in spans {
                    match process {
                        None => self.pages.unmapped(span),
                        Some(child) => self.pages.child_removed(child, span),
                    }
                }
            }
            Event::Remapped { from, to } => {
                if let Some(layout) = self.layout_of(process) {
                    layout.remap(&from, to);
                }
            }
            Event::Forked(faults) => self.forked(process, faults, under_way)?,
        }
        Ok(())
    }

    fn removed(&mut self, process: Option<SnapshotId>, addresses: &Range<u64>) {
        if let Some(child) = process.and_then(|id| self.children.get_mut(&id)) {
            let marks = child.marks..child.marks + MARKS_BYTES as u64;
            if marks.contains(&addresses.start) {
                child.number =
                    Some(number_of(addresses.start - marks.start, addresses.end - addresses.start));
                self.introduce();
                return;
            }
        }
        let spans = self.layout_of(process).map_or_else(Vec::new, |layout| layout.pages_at(addresses));
        for span in spans {
            match process {
                None => self.pages.removed(span),
                Some(id) => {
                    self.pages.child_removed(id, span);
                    if let Some(child) = self.children.get_mut(&id) {
                        child.dropped.push(span);
                    }
                }
            }
        }
    }

    fn forked(
        &mut self,
        parent: Option<SnapshotId>,
        faults: Userfault,
        under_way: Option<Effect>,
    ) -> Result<(), FarError> {
        // Pages on their way to the node must have arrived before the child requests them.
        while !self.pages.is_settled() {
            self.take_ended()?;
            self.take_late_answer()?;
            if !self.pages.is_settled() {
                self.node.wait()?;
            }
        }
        let marks = match parent {
            None => self.range.as_ref().map(|range| range.handed.address + range.handed.length),
            Some(id) => self.children.get(&id).map(|child| child.marks),
        };
        let (Some(marks), Some(layout)) = (marks, self.layout_of(parent).cloned()) else { return Ok(()) };
        let id = self.pages.fork(parent, under_way);
        let child = Child { faults, layout, marks, number: None, socket: None, dropped: Vec::new() };
        self.children.insert(id, child);
        self.summary.forks += 1;
        Ok(())
    }

    /// Sends their own faults to the children whose number and socket have both arrived.
    pub(super) fn introduce(&mut self) {
        for (number, socket) in std::mem::take(&mut self.callers) {
            // The youngest child of this number: an older one has ended, and its number was assigned again.
            let child =
                self.children.values_mut().rev().find(|it| it.number == Some(number) && it.socket.is_none());
            match child {
                Some(child) => {
                    // A child that has ended meanwhile needs no descriptor.
                    let _ = Handover::adopt(rustix::fd::AsFd::as_fd(&socket), &child.faults);
                    child.socket = Some(socket);
                }
                None => self.callers.push((number, socket)),
            }
        }
    }

    /// Serves the faults that were kept.
    pub(super) fn serve_faults(&mut self) -> bool {
        let is_busy = !self.faults.is_empty();
        while let Some((process, PageFault { address, is_write, is_protected })) = self.faults.pop_front() {
            let Some(page) = self.layout_of(process).and_then(|layout| layout.page_at(address)) else {
                self.fill_foreign(process, address);
                continue;
            };
            let access = match (is_protected, is_write) {
                (true, _) => Access::Protected,
                (false, true) => Access::Write,
                (false, false) => Access::Read,
            };
            match process {
                None => {
                    self.waits.begin(page);
                    self.pages.fault(page, access);
                }
                Some(child) => self.pages.child_fault(child, page, access),
            }
        }
        is_busy
    }

    /// Fills a page that the layout does not contain. A mapping of the range that has grown, or was left behind when
    /// its pages moved, is treated like ordinary memory.
    fn fill_foreign(&mut self, process: Option<SnapshotId>, address: u64) {
        let Some(faults) = self.faults_of(process) else { return };
        match faults.fill_zeros(address, super::PAGE).map(|done| done.stop) {
            // A thread that still misses the page touches it again.
            Ok(None) | Err(_) => {}
            Ok(Some(Stop::There | Stop::Changing | Stop::Unmapped)) => {
                let _ = faults.wake(address, PAGE_BYTES);
            }
        }
    }

    pub(super) fn faults_of(&self, process: Option<SnapshotId>) -> Option<&Userfault> {
        match process {
            None => self.range.as_ref().filter(|range| !range.is_gone).map(|range| &range.handed.userfault),
            Some(id) => self.children.get(&id).map(|child| &child.faults),
        }
    }

    fn layout_of(&mut self, process: Option<SnapshotId>) -> Option<&mut Layout> {
        match process {
            None => self.range.as_mut().map(|range| &mut range.layout),
            Some(id) => self.children.get_mut(&id).map(|child| &mut child.layout),
        }
    }

    pub(super) fn places_of(&self, span: Span) -> Vec<(u64, Span)> {
        let range = self.range.as_ref().filter(|range| !range.is_gone);
        range.map_or_else(Vec::new, |range| range.layout.places_of(span))
    }

    /// Forgets which pages the children have dropped. No effect for those pages is left.
    pub(super) fn forget_dropped(&mut self) {
        self.children.values_mut().for_each(|child| child.dropped.clear());
    }

    /// Removes children that have ended or execute other programs.
    pub(super) fn bury_children(&mut self) {
        let ended: Vec<_> =
            self.children.iter().filter(|(_, child)| !child.is_alive()).map(|(&id, _)| id).collect();
        ended.into_iter().for_each(|id| self.child_ended(id));
        self.parting.retain(|socket| !is_closed_there(socket));
    }

    pub(super) fn child_ended(&mut self, id: SnapshotId) {
        let child = self.children.remove(&id);
        self.parting.extend(child.and_then(|child| child.socket));
        self.pages.child_ended(id);
    }
}

/// Whether the other end of a socket is closed in all processes.
fn is_closed_there(socket: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut sockets = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut sockets, Some(&now)).is_ok() && sockets[0].revents().contains(PollFlags::HUP)
}

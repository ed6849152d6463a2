//! Execution of the decisions of the pages' state machine.

use super::{Monitor, PAGE_BYTES};
use crate::FarError;
use crate::pages::{ChildEffect, Effect, RunId, SnapshotId, Span};
use portcullis_memory::userfault::{Fill, Stop, UserfaultError};

impl Monitor {
    pub(super) fn carry_out_all(&mut self) -> Result<(), FarError> {
        while let Some(effect) = self.pages.poll_effect() {
            match self.carry_out(effect) {
                Ok(()) => {}
                // The process ends, or executes another program. Its pages are no longer needed.
                Err(FarError::Faults(UserfaultError::Ended)) => match effect {
                    Effect::Child(id, _) => self.child_ended(id),
                    _ => self.range_is_gone(),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), FarError> {
        match effect {
            Effect::Load(run, span, chunk) => {
                self.buffers.add(self.node.session(), run, span)?;
                self.node.load(&mut self.buffers, run, chunk)
            }
            Effect::Save(run, _, chunk) => self.node.save(&mut self.buffers, run, chunk),
            Effect::Discard(run) => {
                self.buffers.remove(run);
                Ok(())
            }
            Effect::AllocateChunk(id) => self.node.allocate_chunk(id),
            Effect::FreeChunk(id) => self.node.free_chunk(id),
            Effect::TakeOut(run, span) => self.take_out(run, span),
            Effect::Map { run, first, span, is_writable } => {
                let fill = if is_writable { Fill::Writable } else { Fill::Protected };
                for page in span.pages() {
                    self.map(run, first, page, fill, effect)?;
                }
                self.waits.end(span.pages());
                Ok(())
            }
            Effect::Zero(span) => {
                for (address, part) in self.places_of(span) {
                    self.zero(address, part, effect)?;
                }
                self.waits.end(span.pages());
                Ok(())
            }
            Effect::Allow(span) => {
                for (address, part) in self.places_of(span) {
                    let length = u64::from(part.count) * PAGE_BYTES;
                    self.patiently(effect, |it| {
                        it.faults_of(None).map_or(Ok(None), |it| it.allow(address, length))
                    })?;
                }
                self.waits.end(span.pages());
                Ok(())
            }
            Effect::Refill(page) => self.refill(page, effect),
            Effect::Look(span) => {
                self.look(span);
                Ok(())
            }
            Effect::Child(id, what) => self.carry_out_for_child(id, what, effect),
        }
    }

    /// Repeats a call while the process changes its mappings: each time it takes the events that the kernel waits for.
    /// `effect` is not carried out before this returns.
    fn patiently(
        &mut self,
        effect: Effect,
        mut call: impl FnMut(&Self) -> Result<Option<Stop>, UserfaultError>,
    ) -> Result<Option<Stop>, FarError> {
        loop {
            match call(self)? {
                Some(Stop::Changing) => {
                    self.take_events(Some(effect))?;
                    std::thread::yield_now();
                }
                other => return Ok(other),
            }
        }
    }

    /// Maps a page that a run has. If the program has dropped the page meanwhile, it maps zeros.
    fn map(&mut self, run: RunId, first: u64, page: u64, fill: Fill, effect: Effect) -> Result<(), FarError> {
        let Some((address, _)) = self.places_of(Span::one(page)).first().copied() else { return Ok(()) };
        self.patiently(effect, |it| {
            let Some(faults) = it.faults_of(None) else { return Ok(None) };
            let done = if it.pages.is_dropped(page) {
                faults.fill_zeros(address, super::PAGE)?
            } else {
                faults.fill(address, &it.buffers.page(run, page - first), fill)?
            };
            Ok(done.stop)
        })?;
        self.wake(None, address)
    }

    /// Maps zeros for the missing pages of a span.
    fn zero(&mut self, address: u64, span: Span, effect: Effect) -> Result<(), FarError> {
        let length = span.count as usize * super::PAGE;
        let mut done = 0;
        while done < length {
            let at = address + done as u64;
            let mut filled = 0;
            let stop = self.patiently(effect, |it| {
                let Some(faults) = it.faults_of(None) else { return Ok(None) };
                let result = faults.fill_zeros(at + filled as u64, length - done - filled)?;
                filled += result.bytes;
                Ok(result.stop)
            })?;
            done += filled;
            if stop.is_none() {
                return Ok(());
            }
            self.wake(None, address + done as u64)?;
            done += super::PAGE;
        }
        Ok(())
    }

    fn refill(&mut self, page: u64, effect: Effect) -> Result<(), FarError> {
        let Some((address, _)) = self.places_of(Span::one(page)).first().copied() else { return Ok(()) };
        let stop = self.patiently(effect, |it| {
            let Some(faults) = it.faults_of(None) else { return Ok(None) };
            Ok(faults.fill_zeros(address, super::PAGE)?.stop)
        })?;
        match stop {
            None => self.pages.refilled(page),
            Some(_) => self.wake(None, address)?,
        }
        self.waits.end(page..page + 1);
        Ok(())
    }

    /// Wakes threads that wait for a page that existed already.
    pub(super) fn wake(&mut self, process: Option<SnapshotId>, address: u64) -> Result<(), FarError> {
        match self.faults_of(process) {
            Some(faults) => Ok(faults.wake(address, PAGE_BYTES)?),
            None => Ok(()),
        }
    }

    fn look(&mut self, span: Span) {
        let mut present = vec![true; span.count as usize];
        for (address, part) in self.places_of(span) {
            let Some(range) = self.range.as_ref() else { break };
            let Some(pagemap) = &range.handed.pagemap else { break };
            let mut entries = vec![0; part.count as usize * size_of::<u64>()];
            let at = address / PAGE_BYTES * size_of::<u64>() as u64;
            let Ok(read) = rustix::io::pread(pagemap, &mut entries, at) else { break };
            let from = usize::try_from(part.first - span.first).unwrap_or(usize::MAX);
            for (is_there, entry) in
                present[from..].iter_mut().zip(entries[..read].chunks_exact(size_of::<u64>()))
            {
                let entry = entry.try_into().map_or(u64::MAX, u64::from_ne_bytes);
                *is_there = entry & PRESENT_OR_SWAPPED != 0;
            }
        }
        self.pages.looked(span, |page| {
            usize::try_from(page - span.first).ok().and_then(|at| present.get(at)).copied().unwrap_or(true)
        });
    }

    fn carry_out_for_child(
        &mut self,
        id: SnapshotId,
        what: ChildEffect,
        effect: Effect,
    ) -> Result<(), FarError> {
        let span = match what {
            ChildEffect::Map { span, .. } => span,
            ChildEffect::Zero(page) | ChildEffect::Allow(page) => Span::one(page),
        };
        for page in span.pages() {
            let Some(address) = self.children.get(&id).and_then(|child| child.address_of(page)) else {
                continue;
            };
            self.patiently(effect, |it| {
                let Some(child) = it.children.get(&id) else { return Ok(None) };
                let faults = &child.faults;
                match what {
                    ChildEffect::Allow(_) => faults.allow(address, PAGE_BYTES),
                    // Pages that the child has dropped since the bytes were read are zeros.
                    ChildEffect::Map { run, first, .. } if !child.has_dropped(page) => {
                        Ok(faults.fill(address, &it.buffers.page(run, page - first), Fill::Writable)?.stop)
                    }
                    ChildEffect::Map { .. } | ChildEffect::Zero(_) => {
                        Ok(faults.fill_zeros(address, super::PAGE)?.stop)
                    }
                }
            })?;
            self.wake(Some(id), address)?;
        }
        Ok(())
    }
}

/// The bits of an entry of `/proc/PID/pagemap` that are set if the page exists, in memory or swapped out.
const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;

//! Requests that the program move pages out, and reads of their bytes.
//!
//! While the program moves pages, the monitor takes no event of its memory: the kernel moves no pages while an event
//! waits. So a page's bytes are never older than a change that the page table of the monitor knows. The program answers
//! within microseconds. If it is stopped, for example by a debugger, its answer is late, and the monitor continues
//! without it.

use super::{Monitor, PAGE_BYTES};
use crate::FarError;
use crate::pages::{RunId, Span, TakenOut};
use portcullis_memory::userfault::{Command, HandoverError, PAGE, Request, Taken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Time that the program may take to answer before the monitor continues.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// Pages that were requested from the program.
#[derive(Debug)]
pub(super) struct Asked {
    tag: u64,
    run: RunId,
    /// The run's pages.
    span: Span,
    /// The pages of the present command, a part of the run's.
    part: Span,
    /// The results for the run's other pages.
    so_far: TakenOut,
}

impl Monitor {
    /// Takes pages out of the program's memory.
    pub(super) fn take_out(&mut self, run: RunId, span: Span) -> Result<(), FarError> {
        self.buffers.add(self.node.session(), run, span)?;
        // Pages that are not mapped anywhere are treated as missing.
        let mut taken = TakenOut { missing: u64::MAX, ..TakenOut::default() };
        let places = self.places_of(span);
        for &(_, part) in &places {
            taken.missing &= !mask(span, part);
        }
        if self.asked.is_some() {
            taken.is_changing = true;
            self.pages.taken_out(run, taken, self.started.elapsed());
            return Ok(());
        }
        for (address, part) in places {
            self.last_tag += 1;
            let command = Command { tag: self.last_tag, address, count: part.count };
            self.pages.asked(run);
            self.asked = Some(Asked { tag: command.tag, run, span, part, so_far: taken });
            if let Some(handover) = &self.handover {
                // A program that has ended does not answer. The wait below detects this.
                let _ = handover.command(command);
            }
            let Some(answer) = self.await_answer(command.tag)? else { return Ok(()) };
            taken = self.merge(taken, run, (span, part), answer)?;
            if taken.is_changing {
                break;
            }
        }
        self.asked = None;
        self.finish_taking(run, span, taken)
    }

    /// Records an answer, and reads the bytes of the pages that were moved.
    fn merge(
        &mut self,
        mut taken: TakenOut,
        run: RunId,
        (span, part): (Span, Span),
        answer: Taken,
    ) -> Result<TakenOut, FarError> {
        let shift = part.first - span.first;
        let of_part = mask(span, part);
        taken.moved |= answer.moved << shift & of_part;
        taken.missing |= answer.missing << shift & of_part;
        taken.unprotected |= answer.unprotected << shift & of_part;
        taken.is_changing |= answer.is_changing;
        let Some(range) = &self.range else { return Ok(taken) };
        for (at, page) in part.pages().enumerate() {
            if answer.moved >> at & 1 == 1 {
                let offset = at as u64 * PAGE_BYTES;
                self.buffers.write_page(run, page - span.first, |bytes| {
                    read_exactly(&range.handed.outbox, bytes, offset)
                })?;
            }
        }
        Ok(taken)
    }

    fn finish_taking(&mut self, run: RunId, span: Span, mut taken: TakenOut) -> Result<(), FarError> {
        for (at, _) in span.pages().enumerate() {
            let is_zeros = taken.moved >> at & 1 == 1 && is_zeros(&self.buffers.page(run, at as u64));
            taken.zeros |= u64::from(is_zeros) << at;
        }
        self.pages.taken_out(run, taken, self.started.elapsed());
        // The kernel moves no pages until these events are taken.
        if taken.is_changing { self.take_events(None) } else { Ok(()) }
    }

    /// Waits a limited time for the program's answer. Returns `None` if the answer is late, or the program has ended.
    fn await_answer(&mut self, tag: u64) -> Result<Option<Taken>, FarError> {
        let until = Instant::now() + ANSWERS_WITHIN;
        loop {
            if let Some(taken) = self.take_answer(tag)? {
                return Ok(Some(taken));
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.is_silent || self.has_ended() {
                self.range_is_gone();
                return Ok(None);
            }
            if left.is_zero() {
                self.pages.set_late(true);
                return Ok(None);
            }
            let Some(handover) = &self.handover else { return Ok(None) };
            let mut descriptors = Vec::with_capacity(2);
            descriptors.push(PollFd::new(&**handover, PollFlags::IN));
            if let Some(process) = &self.process {
                descriptors.push(PollFd::new(process, PollFlags::IN));
            }
            match poll(&mut descriptors, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(FarError::machine("wait for the program")(errno)),
            }
        }
    }

    fn take_answer(&mut self, tag: u64) -> Result<Option<Taken>, FarError> {
        while let Some(request) = self.next_request()? {
            match request {
                Request::Taken(taken) if taken.tag == tag => return Ok(Some(taken)),
                // An answer of a program that ran before.
                Request::Taken(_) => {}
                other => self.requests.push_back(other),
            }
        }
        Ok(None)
    }

    /// Returns the next message of the program, if one waits.
    pub(super) fn next_request(&mut self) -> Result<Option<Request>, FarError> {
        let Some(handover) = self.handover.as_ref().filter(|_| !self.is_silent) else { return Ok(None) };
        match handover.take() {
            Err(HandoverError::Socket(Errno::PIPE | Errno::CONNRESET)) => {
                // No process has the program's end any more.
                self.is_silent = true;
                Ok(None)
            }
            taken => Ok(taken?),
        }
    }

    /// Handles a late answer.
    pub(super) fn answered(&mut self, taken: Taken) -> Result<(), FarError> {
        if self.asked.as_ref().is_none_or(|asked| asked.tag != taken.tag) {
            return Ok(());
        }
        let Some(Asked { run, span, part, so_far, .. }) = self.asked.take() else { return Ok(()) };
        self.pages.set_late(false);
        let mut taken = self.merge(so_far, run, (span, part), taken)?;
        // The other parts have not been requested.
        taken.is_changing = true;
        self.finish_taking(run, span, taken)
    }

    /// Ends the request: the pages will not arrive, because the program has ended.
    pub(super) fn give_up_asking(&mut self) {
        if let Some(Asked { run, .. }) = self.asked.take() {
            self.pages.set_late(false);
            let taken = TakenOut { missing: u64::MAX, ..TakenOut::default() };
            self.pages.taken_out(run, taken, self.started.elapsed());
        }
    }
}

/// Returns a bit for each page of a span that is in a part of it.
fn mask(span: Span, part: Span) -> u64 {
    let all = if part.count >= u64::BITS { u64::MAX } else { (1 << part.count) - 1 };
    all << (part.first - span.first)
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.chunks_exact(size_of::<u128>()).all(|word| word == [0; size_of::<u128>()])
}

fn read_exactly(file: &rustix::fd::OwnedFd, mut into: &mut [u8], mut offset: u64) -> Result<(), FarError> {
    let error = FarError::machine("read the program's pages");
    debug_assert_eq!(into.len(), PAGE);
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, offset) {
            Ok(0) => return Err(error(Errno::NXIO)),
            Ok(read) => {
                into = &mut into[read..];
                offset += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(error(errno)),
        }
    }
    Ok(())
}

//! Carrying out what the pages' state machine decides.

use super::{Monitor, PAGE_BYTES};
use crate::FarError;
use crate::pages::{Effect, RunId, Span};
use portcullis_memory::userfault::{Fill, PAGE, UserfaultError};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

impl Monitor {
    pub(super) fn carry_out_all(&mut self) -> Result<(), FarError> {
        while let Some(effect) = self.pages.poll_effect() {
            match self.carry_out(effect) {
                Ok(()) => {}
                // The program ends, or executes another one. Its pages do not matter any more.
                Err(FarError::Faults(UserfaultError::Ended)) => {
                    if let Some(range) = &mut self.range {
                        range.is_gone = true;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), FarError> {
        match effect {
            Effect::Load(run, span) => {
                self.buffers.add(self.node.session(), run, span)?;
                self.node.load(&mut self.buffers, run)
            }
            Effect::Save(run, _) => self.node.save(&mut self.buffers, run),
            Effect::Discard(run) => {
                self.buffers.remove(run);
                Ok(())
            }
            Effect::AllocateChunk(segment) => self.node.allocate_chunk(segment),
            Effect::FreeChunk(segment) => self.node.free_chunk(segment),
            Effect::TakeOut { run, span, is_dirty } => self.take_out(run, span, is_dirty),
            Effect::Map { run, first, span, is_writable } => self.map(run, first, span, is_writable),
            Effect::Zero(span) => self.zero(span),
            Effect::Allow(span) => self.in_range(span, |range, address, length| {
                range.handed.userfault.allow(address, length).map_err(FarError::from)
            }),
            Effect::Wake(span) => self.in_range(span, |range, address, length| {
                range.handed.userfault.wake(address, length).map_err(FarError::from)
            }),
            Effect::Forget(span) => {
                let Some(range) = self.range.as_ref().filter(|range| !range.is_gone) else { return Ok(()) };
                punch(range, span)
            }
        }
    }

    /// Does something for pages of a range that is there, after which nobody waits for them.
    fn in_range(
        &mut self,
        span: Span,
        act: impl FnOnce(&super::Range, u64, u64) -> Result<(), FarError>,
    ) -> Result<(), FarError> {
        let Some(range) = self.range.as_ref().filter(|range| !range.is_gone) else { return Ok(()) };
        let address = range.handed.address + span.first * PAGE_BYTES;
        act(range, address, u64::from(span.count) * PAGE_BYTES)?;
        self.waits.end(span.first..span.end());
        Ok(())
    }

    fn zero(&mut self, span: Span) -> Result<(), FarError> {
        self.in_range(span, |range, address, length| {
            let wanted = span.count as usize * PAGE;
            let filled = range.handed.userfault.fill_zeros(address, wanted)?;
            if filled as u64 == length { Ok(()) } else { Err(FarError::Disturbed) }
        })
    }

    fn map(&mut self, run: RunId, first: u64, span: Span, is_writable: bool) -> Result<(), FarError> {
        let fill = if is_writable { Fill::Writable } else { Fill::Protected };
        let stored = self.buffers.get(run);
        let Some(range) = self.range.as_ref().filter(|range| !range.is_gone) else { return Ok(()) };
        for piece in &stored.pieces {
            let (from, to) = (first + u64::from(piece.at), first + u64::from(piece.at + piece.pages));
            let (from_here, to_here) = (from.max(span.first), to.min(span.end()));
            if from_here >= to_here {
                continue;
            }
            let buffer = piece.buffer.as_ref().expect("nothing is under way with a run that is mapped from");
            let bytes = buffer.bytes();
            let of = |page: u64| usize::try_from((page - from) * PAGE_BYTES).unwrap_or(usize::MAX);
            let bytes = &bytes[of(from_here)..of(to_here)];
            let address = range.handed.address + from_here * PAGE_BYTES;
            let filled = range.handed.userfault.fill(address, bytes, fill)?;
            if filled != bytes.len() {
                return Err(FarError::Disturbed);
            }
        }
        self.waits.end(span.first..span.end());
        Ok(())
    }

    /// Takes pages out of the program's memory. While their bytes are read nobody can write to them.
    fn take_out(&mut self, run: RunId, span: Span, is_dirty: bool) -> Result<(), FarError> {
        let is_gone = self.range.as_ref().is_none_or(|range| range.is_gone);
        let taken = if is_gone { Ok(()) } else { self.read_out(run, span, is_dirty) };
        match taken {
            Ok(()) if !is_gone => {
                let zeros = if is_dirty { self.zeros(run) } else { 0 };
                self.pages.taken_out(run, zeros);
                Ok(())
            }
            // Nobody needs them any more.
            Ok(()) | Err(FarError::Faults(UserfaultError::Ended)) => {
                if is_gone {
                    self.buffers.add(self.node.session(), run, span)?;
                }
                self.pages.taken_out(run, u64::MAX);
                taken
            }
            Err(error) => Err(error),
        }
    }

    fn read_out(&mut self, run: RunId, span: Span, is_dirty: bool) -> Result<(), FarError> {
        let stored = self.buffers.add(self.node.session(), run, span)?;
        let Some(range) = self.range.as_ref() else { return Ok(()) };
        if is_dirty {
            let address = range.handed.address + span.first * PAGE_BYTES;
            range.handed.userfault.protect(address, u64::from(span.count) * PAGE_BYTES)?;
        }
        for piece in &mut stored.pieces {
            let buffer = piece.buffer.as_mut().expect("the buffer is new");
            let offset = (span.first + u64::from(piece.at)) * PAGE_BYTES;
            read_exactly(range, &mut buffer.bytes_mut(), offset)?;
        }
        punch(range, span)
    }

    /// A bit for each page of a run that holds nothing but zeros.
    fn zeros(&self, run: RunId) -> u64 {
        let mut zeros = 0;
        for piece in &self.buffers.get(run).pieces {
            let buffer = piece.buffer.as_ref().expect("the buffer is new");
            for (page, bytes) in (piece.at..).zip(buffer.bytes().chunks_exact(PAGE)) {
                zeros |= u64::from(is_zeros(bytes)) << page;
            }
        }
        zeros
    }
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.chunks_exact(size_of::<u128>()).all(|word| word == [0; size_of::<u128>()])
}

fn read_exactly(range: &super::Range, mut into: &mut [u8], mut offset: u64) -> Result<(), FarError> {
    let error = FarError::machine("read the program's pages");
    while !into.is_empty() {
        match rustix::io::pread(&range.handed.file, &mut *into, offset) {
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

/// Frees the memory of pages: the next touch of them faults.
fn punch(range: &super::Range, span: Span) -> Result<(), FarError> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(
            &range.handed.file,
            flags,
            span.first * PAGE_BYTES,
            u64::from(span.count) * PAGE_BYTES,
        ) {
            Err(Errno::INTR) => {}
            punched => return punched.map_err(FarError::machine("free the program's pages")),
        }
    }
}

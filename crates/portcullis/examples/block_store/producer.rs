//! Writes blocks into remote memory and frees the oldest block for each new one.

use crate::catalogue::{Catalogue, Entry};
use crate::scene::{Report, Reporter, connect_until};
use crate::{BLOCK_BYTES, BLOCKS, content};
use portcullis::{Allocate, Error, ObjectRef, Session};
use std::path::Path;

/// Blocks are aligned like pages, so that a consumer could map them to a disk or a card.
const ALIGNMENT: u64 = 4096;

pub fn run(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut reporter = Reporter::start();
    // No number is used twice, not even after a restart of the node.
    let mut number = 0;
    while let Some(mut session) = connect_until(folder, || reporter.is_over()) {
        match produce(&mut session, folder, &mut number, &mut reporter) {
            Ok(()) => break,
            // Everything is gone with the node, so the producer starts again.
            Err(error) => reporter.report.told(&error.to_string()),
        }
    }
    reporter.end();
    Ok(())
}

fn produce(
    session: &mut Session,
    folder: &Path,
    number: &mut u64,
    reporter: &mut Reporter,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut catalogue = Catalogue::create(session, folder)?;
    let mut listed: Vec<Option<ObjectRef>> = vec![None; usize::try_from(BLOCKS)?];
    while !reporter.is_over() {
        let place = *number % BLOCKS;
        let slot = &mut listed[usize::try_from(place)?];
        if let Some(old) = slot.take() {
            session.free(old)?;
        }
        match store(session, *number) {
            Ok(object) => {
                catalogue.list(session, place, Entry { number: *number, object })?;
                *slot = Some(object);
                reporter.count(|report| report.written += 1);
                *number += 1;
            }
            // Readers still hold blocks that were freed. The pool has room again when they release them.
            Err(error) if error.is_retryable() => reporter.count(|report| report.told(&error.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Stores the block with this number in a new object.
fn store(session: &mut Session, number: u64) -> Result<ObjectRef, Error> {
    let block = session.allocate(Allocate::bytes(BLOCK_BYTES.into()).aligned(ALIGNMENT).keep())?;
    let mut buffer = session.buffer(BLOCK_BYTES)?;
    content::fill(number, &mut buffer.bytes_mut());
    session.write_buffer(&block, 0, buffer)?;
    let object = block.object();
    session.revoke(block)?;
    Ok(object)
}

impl Report {
    /// Counts an error or refusal that a process got.
    pub fn told(&mut self, what: &str) {
        *self.told.entry(what.to_owned()).or_default() += 1;
    }
}

//! Memory that the node's NIC allocates without the node's CPU, and small objects in it without a message for each
//! (OneSidedMW).
//!
//! ```text
//! cargo run --release --example chunks                                   a node of its own
//! cargo run --release --example chunks -- shm:portcullis.sock           a node that runs, with `serve --chunks 4096`
//! ```
//!
//! A *chunk* is memory of one session: no other session can read it, and it has no deadline. Use chunks for private
//! data of a program: a cache, an index, pages that do not fit into its own memory. For memory that other sessions are
//! to read, allocate an object of the node instead (`Session::allocate`).

use portcullis::host::{Host, HostConfig};
use portcullis::{
    ChunkLimits, ChunkOptions, NodeConfig, Occupancy, Session, SessionOptions, SmallObject, connect,
};
use std::time::Instant;

const CHUNKS: u64 = 4096;
const CHUNK_BYTES: u64 = 8 << 10;
/// Number of chunks that this example allocates and frees: once one by one, and once as a batch.
const MANY: usize = 1024;
const NOTES: usize = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut session, node) = session()?;

    // Here the node's CPU makes two workers on its NIC for this session. The CPU has no part in anything below.
    let mut chunks = session.chunks(ChunkOptions::default())?;
    let messages = node.as_ref().map(|node| node.counters().control_messages);
    println!("{} bytes a chunk, {} chunks at the most", chunks.terms().chunk_bytes, chunks.terms().quota);

    // A new chunk is full of zeros. Reads, writes and atomics take it like any permission.
    let chunk = chunks.allocate(&mut session)?;
    session.write(&chunk, 0, b"only this session can read this")?;
    assert_eq!(session.fetch_and_add(&chunk, 4096, 1)?, 0);
    // After the free, the chunk is zeroed, and this session's keys no longer open it.
    chunks.free(&mut session, chunk)?;

    // A batch has sixteen requests under way, and takes a sixteenth of the round trips.
    let started = Instant::now();
    for _ in 0..MANY {
        let chunk = chunks.allocate(&mut session)?;
        chunks.free(&mut session, chunk)?;
    }
    let one_by_one = started.elapsed();
    let started = Instant::now();
    let many = chunks.allocate_many(&mut session, MANY)?;
    chunks.free_many(&mut session, many)?;
    println!("{MANY} chunks one by one: {one_by_one:.0?}, as a batch: {:.0?}", started.elapsed());

    // Small objects share chunks by their size. A small object costs no message and no access, unless it needs a new
    // chunk.
    let mut notes = Vec::new();
    for number in 0..NOTES {
        let text = format!("note {number}: {}", "x".repeat(number % 200));
        let note = chunks.allocate_object(&mut session, text.len() as u64)?;
        session.write(&note, 0, text.as_bytes())?;
        notes.push(note);
    }
    print_occupancy("with all notes", &chunks.occupancy());

    // A note ends with its own bytes, although the chunk has bytes behind it: the library refuses this write and sends
    // nothing.
    let beyond = session.write(&notes[7], notes[7].length(), b"!").expect_err("the neighbour's byte");
    println!("beyond a note's end: {beyond}");
    assert!(text_of(&mut session, &notes[1234])?.starts_with("note 1234: xxx"));

    // Chunks without objects are given back to the node, except for a few that are kept for later objects.
    for note in notes.drain(..) {
        chunks.free_object(&mut session, note)?;
    }
    print_occupancy("without notes", &chunks.occupancy());
    println!("given back: {} more", chunks.give_back_free(&mut session)?);

    if let (Some(node), Some(before)) = (&node, messages) {
        println!("messages to the node's CPU meanwhile: {}", node.counters().control_messages - before);
    }
    Ok(())
}

fn text_of(session: &mut Session, note: &SmallObject) -> Result<String, Box<dyn std::error::Error>> {
    let mut bytes = vec![0; usize::try_from(note.length())?];
    session.read(note, 0, &mut bytes)?;
    Ok(String::from_utf8(bytes)?)
}

fn print_occupancy(when: &str, found: &Occupancy) {
    let Occupancy { chunks, free_chunks, objects, bytes_held, bytes_live, classes } = found;
    println!("{when}: {objects} objects in {chunks} chunks ({free_chunks} free)");
    println!("  {bytes_live} of {bytes_held} bytes live, in {} size classes", classes.len());
}

/// Returns a session with the node at the given address, or with a node of the example's own that has chunks.
fn session() -> Result<(Session, Option<Host>), Box<dyn std::error::Error>> {
    if let Some(address) = std::env::args().nth(1) {
        return Ok((connect(&address)?, None));
    }
    let limits = ChunkLimits { chunks: CHUNKS, chunk_bytes: CHUNK_BYTES, client_max: CHUNKS };
    let node = NodeConfig { chunks: Some(limits), ..NodeConfig::default() };
    let host = Host::start(HostConfig { node, ..HostConfig::default() })?;
    let session = host.connect("example", SessionOptions::default())?;
    Ok((session, Some(host)))
}

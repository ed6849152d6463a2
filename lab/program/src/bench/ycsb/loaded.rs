//! A table with its keys, on a node that has room for it.

use super::super::{BenchError, processors};
use super::BenchYcsbOptions;
use indicatif::{ProgressBar, ProgressStyle};
use portcullis::{ObjectRef, Session, SessionOptions, connect_with};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, BlockMemory, Grain, Statistics, Table, TableError, TableOptions};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;

/// Inserts in flight at once while the table is loaded.
const DEPTH: usize = 64;
/// Inserts between two updates of the progress bar.
const STRIDE: u32 = 1 << 12;
/// The session's arena: room for the buffers of all operations in flight.
const ARENA_BYTES: u64 = 64 << 20;
/// Bytes that a node lends in addition to the keys and to the memory that a structure needs for them.
const MEMORY_BESIDE: u64 = 64 << 20;
/// Chunks in addition to those that the keys fill: for blocks that are being replaced, and size classes that are not
/// full.
const CHUNKS_BESIDE: u64 = 128;

/// The properties of a table, in every row that measures it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub value_bytes: u32,
    pub grain: Grain,
    pub blocks: BlockMemory,
}

impl Shape {
    /// The properties as text, for titles.
    pub fn text(self) -> String {
        let Self { value_bytes, grain, blocks } = self;
        format!("{value_bytes} B by {} in {}", grain_text(grain), blocks_text(blocks))
    }
}

/// A loaded table. The session that made it keeps its memory.
pub struct Loaded {
    pub contents: Contents,
    pub statistics: Statistics,
    owner: Owner,
}

/// The session that made a table.
enum Owner {
    /// Other sessions read the table.
    Keeper(#[expect(dead_code, reason = "the table goes with it")] Box<Session>),
    /// Only this session can read the table: the blocks are in its chunks.
    Reader(Rc<Pipeline>, Box<Table>),
}

/// The place of a loaded table, and its content.
pub struct Contents {
    pub head: ObjectRef,
    pub shape: Shape,
    /// Keys so far: those that were loaded, and those that workload D has added.
    pub keys: AtomicU32,
}

/// The key with a number.
pub fn key(number: u32) -> [u8; 8] {
    u64::from(number).to_le_bytes()
}

/// Fills `value` for a key. The value begins with the key, so that a reader can check that it is the right one.
pub fn fill(value: &mut [u8], number: u32) {
    value[..8].copy_from_slice(&key(number));
}

/// Whether this is a value of that key.
pub fn is_value_of(value: &[u8], number: u32, shape: Shape) -> bool {
    value.len() == shape.value_bytes as usize && value.starts_with(&key(number))
}

/// The name of a grain, as on the command line.
pub fn grain_text(grain: Grain) -> &'static str {
    match grain {
        Grain::Block => "block",
        Grain::Extent => "extent",
    }
}

/// The name of the blocks' memory, as on the command line.
pub fn blocks_text(blocks: BlockMemory) -> &'static str {
    match blocks {
        BlockMemory::Objects => "objects",
        BlockMemory::Chunks => "chunks",
    }
}

/// Connects with room for many operations.
pub fn session(options: &BenchYcsbOptions, address: &str) -> Result<Session, BenchError> {
    let wanted = SessionOptions { arena_bytes: ARENA_BYTES, ..options.comparison.ends.session_options()? };
    Ok(connect_with(address, wanted)?)
}

/// Opens the table for one client.
pub fn open(session: Session, head: ObjectRef) -> Result<(Rc<Pipeline>, Table), BenchError> {
    let pipeline = Rc::new(Pipeline::new(session));
    let table = pipeline.block_on(Table::open(&pipeline, head, Access::Write))?;
    Ok((pipeline, table))
}

impl BenchYcsbOptions {
    /// Bytes that a node lends: twice what the keys take, for keys that are added, blocks that are replaced, and
    /// buckets.
    pub fn node_memory(&self, shape: Shape) -> u64 {
        let each = u64::from(shape.value_bytes) + u64::from(shape.value_bytes) / 8 + 128;
        self.memory.unwrap_or(MEMORY_BESIDE + 2 * each * u64::from(self.keys))
    }

    /// The options of a node that has values in chunks: a quarter more chunks than the keys fill.
    pub fn node_chunks(&self, shape: Shape) -> Vec<String> {
        if shape.blocks != BlockMemory::Chunks {
            return Vec::new();
        }
        let each = u64::from(shape.value_bytes) + u64::from(shape.value_bytes) / 8 + 64;
        let chunks = (each * u64::from(self.keys) * 5 / 4).div_ceil(self.chunk_bytes) + CHUNKS_BESIDE;
        let (chunks, bytes) = (chunks.to_string(), self.chunk_bytes.to_string());
        ["--chunks".to_owned(), chunks, "--chunk-bytes".to_owned(), bytes].to_vec()
    }

    fn table_options(&self, shape: Shape) -> TableOptions {
        let usual = TableOptions::default();
        TableOptions {
            blocks: shape.blocks,
            grain: shape.grain,
            lease: self.lease.unwrap_or(usual.lease),
            // All mechanisms do the same work.
            seed: Some(0),
            ..usual
        }
    }
}

impl Loaded {
    /// Makes a table with the keys from zero on.
    pub fn new(
        options: &BenchYcsbOptions,
        address: &str,
        shape: Shape,
        name: &str,
    ) -> Result<Self, BenchError> {
        processors::pin_client();
        let pipeline = Rc::new(Pipeline::new(session(options, address)?));
        let table = pipeline.block_on(Table::create(&pipeline, &options.table_options(shape)))?;
        insert_all(&pipeline, &table, options.keys, shape, name)?;
        let statistics = pipeline.block_on(table.statistics())?;
        let head = table.head();
        let owner = match shape.blocks {
            BlockMemory::Chunks => Owner::Reader(pipeline, Box::new(table)),
            BlockMemory::Objects => {
                drop(table);
                let keeper = Rc::into_inner(pipeline).map(Pipeline::into_session);
                let keeper = keeper.expect("the table was the only other user of the pipeline");
                Owner::Keeper(Box::new(keeper))
            }
        };
        let contents = Contents { head, shape, keys: AtomicU32::new(options.keys) };
        Ok(Self { contents, statistics, owner })
    }

    /// The session and the table of the only reader, if other sessions cannot open the table.
    pub fn own_table(&self) -> Option<(&Rc<Pipeline>, &Table)> {
        match &self.owner {
            Owner::Keeper(_) => None,
            Owner::Reader(pipeline, table) => Some((pipeline, table)),
        }
    }
}

fn insert_all(
    pipeline: &Pipeline,
    table: &Table,
    keys: u32,
    shape: Shape,
    name: &str,
) -> Result<(), BenchError> {
    let style = ProgressStyle::with_template("{bar:40} {percent} %  {msg}");
    let bar = ProgressBar::new(keys.into()).with_message(format!("loading {keys} keys: {name}"));
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let insert = async |number: u32| {
        let mut value = vec![0xA5; shape.value_bytes as usize];
        fill(&mut value, number);
        table.insert(&key(number), &value).await
    };
    let mut failed: Option<TableError> = None;
    let mut done = 0;
    pipeline.run(DEPTH, (0..keys).map(&insert), |result| {
        done += 1;
        if done % STRIDE == 0 {
            bar.set_position(done.into());
        }
        failed = failed.take().or(result.err());
    });
    bar.finish_and_clear();
    failed.map_or(Ok(()), |error| Err(error.into()))
}

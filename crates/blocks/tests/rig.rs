//! A node in this process, and clients of the node that have handles on its blocks.

use portcullis::host::{Host, HostConfig};
use portcullis::{DirectoryName, Lifetime, NodeConfig, Quota, SessionOptions};
use portcullis_blocks::{BlockError, Store, StoreOptions};
use portcullis_structures::Pipeline;
use std::pin::pin;
use std::rc::Rc;

/// Time after which an operation counts as one that never ends.
const HANGS_AFTER: Lifetime = Lifetime::seconds(60);

pub fn node_with(config: NodeConfig) -> Host {
    Host::start(HostConfig { node: config, ..HostConfig::default() }).expect("a node starts")
}

pub fn node() -> Host {
    node_with(NodeConfig { pool_bytes: 256 << 20, ..NodeConfig::default() })
}

/// Starts a node whose tenants have this many bytes.
pub fn node_with_quota(bytes_max: u64) -> Host {
    let quota = Quota { bytes_max, ..Quota::default() };
    node_with(NodeConfig { pool_bytes: 256 << 20, quota, ..NodeConfig::default() })
}

/// A client with a handle on the blocks of its tenant.
pub struct User {
    pub pipeline: Rc<Pipeline>,
    pub store: Store,
}

impl User {
    pub fn with(node: &Host, options: &StoreOptions) -> Result<Self, BlockError> {
        let session = node
            .connect("red", SessionOptions { arena_bytes: 16 << 20, ..SessionOptions::default() })
            .expect("a session");
        let pipeline = Rc::new(Pipeline::new(session));
        let name = DirectoryName::new("blocks").expect("a name");
        let store = pipeline.block_on(Store::open(&pipeline, name, options))?;
        Ok(Self { pipeline, store })
    }

    pub fn new(node: &Host) -> Self {
        // On a busy machine, shorter leases end between a look-up and a read.
        let lease = Lifetime::seconds(10);
        Self::with(node, &StoreOptions { lease, ..StoreOptions::default() }).expect("a store")
    }

    /// Carries out an operation, and panics if it fails or hangs.
    pub fn run<T>(&self, operation: impl Future<Output = Result<T, BlockError>>) -> T {
        let (mut operation, mut late) = (pin!(operation), pin!(self.pipeline.sleep(HANGS_AFTER)));
        let done = self.pipeline.block_on(std::future::poll_fn(|context| {
            assert!(late.as_mut().poll(context).is_pending(), "an operation hangs");
            operation.as_mut().poll(context)
        }));
        done.expect("the store is whole, and the node serves it")
    }

    /// Reads a block of this length. `None`: a miss.
    pub fn get(&self, key: &[u8], length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.run(self.store.get(key, &mut bytes)).is_hit().then_some(bytes)
    }

    /// Looks blocks up. Returns for each key whether it has one.
    pub fn found(&self, keys: &[&[u8]]) -> Vec<bool> {
        self.run(self.store.look_up(keys)).into_iter().map(|length| length.is_some()).collect()
    }

    /// Whether the node holds the whole block of a key.
    pub fn has(&self, number: u32, length: usize) -> bool {
        let found = self.get(&key(number), length);
        assert!(found.as_ref().is_none_or(|found| *found == content(number, length)), "other bytes");
        found.is_some()
    }
}

pub fn key(number: u32) -> Vec<u8> {
    format!("block {number}").into_bytes()
}

/// The bytes that the key determines.
pub fn content(number: u32, length: usize) -> Vec<u8> {
    (0..).flat_map(|word: u32| (word.wrapping_mul(0x9e37_79b9) ^ number).to_le_bytes()).take(length).collect()
}

//! A node in this process, and clients of the node that have handles on a table. The node is on the software NIC, or
//! with `PORTCULLIS_NIC=ibverbs` on the RDMA device of this machine.

#[path = "../../../portcullis/tests/device/rdma.rs"]
mod device;

use portcullis::host::{Host, HostConfig, ThreadCount};
use portcullis::{Lifetime, Mechanism, NodeConfig, ObjectRef, SessionOptions};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Table, TableError, TableOptions};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

/// Time after which an operation counts as one that never ends. Leases are far shorter.
const HANGS_AFTER: Lifetime = Lifetime::seconds(60);

/// Time for which an operation may make no progress. Clients that change one key stand in each other's way, for longer
/// than a session's usual 5 s where the machine is busy.
const WITHIN: Lifetime = Lifetime::seconds(20);

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn node(mechanism: Mechanism) -> Host {
    node_that_lends(mechanism, 256 << 20)
}

pub fn node_that_lends(mechanism: Mechanism, pool_bytes: u64) -> Host {
    node_with(NodeConfig { mechanism, pool_bytes, ..NodeConfig::default() })
}

pub fn node_with(node: NodeConfig) -> Host {
    let config = HostConfig { node, ..HostConfig::default() };
    Host::start(if device::is_wanted() { device::port(config) } else { config }).expect("a node starts")
}

/// Starts a node on the software NIC whose engines serve busy clients.
pub fn node_with_engines(engines: u32) -> Host {
    let node = NodeConfig { pool_bytes: 256 << 20, ..NodeConfig::default() };
    let engines = ThreadCount::Fixed(engines);
    Host::start(HostConfig { node, engines, ..HostConfig::default() }).expect("a node starts")
}

/// Carries out an operation, and panics if it hangs.
pub fn run<T>(pipeline: &Pipeline, operation: impl Future<Output = T>) -> T {
    let (mut operation, mut late) = (pin!(operation), pin!(pipeline.sleep(HANGS_AFTER)));
    pipeline.block_on(std::future::poll_fn(|context| {
        assert!(late.as_mut().poll(context).is_pending(), "an operation hangs");
        operation.as_mut().poll(context)
    }))
}

/// A client with a handle on a table.
pub struct User {
    pub pipeline: Rc<Pipeline>,
    pub table: Table,
}

pub fn pipeline(node: &Host, tenant: &str) -> Rc<Pipeline> {
    let options = SessionOptions { within: WITHIN, ..SessionOptions::default() };
    let session = node.connect(tenant, options).expect("a session");
    Rc::new(Pipeline::new(session))
}

impl User {
    /// Makes a table. The table is freed when the tenant's last client leaves.
    pub fn create(node: &Host, tenant: &str, options: &TableOptions) -> Self {
        let pipeline = pipeline(node, tenant);
        let table = pipeline.block_on(Table::create(&pipeline, options)).expect("a table");
        Self { pipeline, table }
    }

    /// Makes another client of the same table.
    pub fn open(node: &Host, tenant: &str, head: ObjectRef, access: Access) -> Self {
        let pipeline = pipeline(node, tenant);
        let table = pipeline.block_on(Table::open(&pipeline, head, access)).expect("the table");
        Self { pipeline, table }
    }

    pub fn run<T>(&self, operation: impl Future<Output = Result<T, TableError>>) -> T {
        run(&self.pipeline, operation).expect("the table is whole, and the node serves it")
    }

    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.run(self.table.get(key))
    }

    /// Reads all keys, and checks that each comes once.
    pub fn all(&self) -> Map {
        let mut found = Map::new();
        self.run(self.table.for_each(|key, value| {
            assert_eq!(found.insert(key.to_vec(), value.to_vec()), None, "the key comes twice");
        }));
        found
    }
}

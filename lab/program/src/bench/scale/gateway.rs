//! The gateway with memcached's protocol, in a process of its own beside its node.

use super::super::course::Length;
use super::super::ends::Ends;
use super::super::node_process::{NodeProcess, Setup};
use super::super::own_process::{OwnProcess, wait_for_the_end};
use super::super::rivals::{Measured, ROOM};
use super::super::side_by_side;
use super::super::{BenchError, processors};
use super::PROTECTION;
use super::load::{Load, Request};
use super::reads::NodeThreads;
use crate::output::say;
use portcullis::{DirectoryName, Keep, SessionOptions, connect_with};
use portcullis_memcached::{Gateway, GatewayOptions, Listen};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

/// Threads of the load.
pub const LOAD_THREADS: usize = 4;
/// The arena of each of the gateway's sessions, as in `portcullis memcached`.
const ARENA_BYTES: u64 = 16 << 20;
/// Bytes that the node lends for each byte of the values: for blocks that are being replaced, keys and buckets.
const MEMORY_PER_BYTE: u64 = 4;
/// Bytes that the node lends besides.
const MEMORY_BESIDE: u64 = 256 << 20;
/// The most keys of a row.
const KEYS_MAX: u64 = 100_000;

/// Number of keys whose values of `size` bytes fill an object.
pub fn keys(object_bytes: u64, size: u32) -> u64 {
    (object_bytes / u64::from(size)).clamp(1, KEYS_MAX)
}

/// A node with a gateway, whose table has keys with values of one length.
pub struct LoadedGateway {
    load: Load,
    /// Dropped before its node.
    _gateway: OwnProcess,
    _node: NodeProcess,
}

impl LoadedGateway {
    /// Starts a node and a gateway with this many threads, and stores the keys. The progress bar shows `name`.
    pub fn start(
        (threads, of_node): (usize, NodeThreads),
        (keys, size): (u64, u32),
        name: &str,
    ) -> Result<Self, BenchError> {
        let memory = MEMORY_BESIDE + MEMORY_PER_BYTE * keys * u64::from(size);
        let more = ROOM.iter().map(|&option| option.to_owned()).chain(of_node.options()).collect();
        let setup = Setup { memory: Some(memory), more, ..Ends::default().setup(PROTECTION) };
        let node = NodeProcess::start(&setup)?;
        processors::leave_node_alone();
        let threads = threads.to_string();
        let arguments = ["bench", "scale", "--serve-gateway", node.address(), "--clients", &threads];
        let gateway = OwnProcess::start("the gateway", arguments)?;
        let address: SocketAddr = gateway.first_line().parse().map_err(|_| {
            BenchError::Gateway(format!("its first line is no address: {}", gateway.first_line()))
        })?;
        let load = Load { address, request: Request::Set, keys, size: size as usize, all_once: true };
        // Each thread stores its share of the keys, and ends then.
        side_by_side::run(&load, LOAD_THREADS, Length::new(Some(keys), None), name)?;
        Ok(Self { load: Load { all_once: false, ..load }, _gateway: gateway, _node: node })
    }

    /// Measures one kind of request.
    pub fn measure(&self, request: Request, length: Length, name: &str) -> Result<Measured, BenchError> {
        side_by_side::run(&Load { request, ..self.load }, LOAD_THREADS, length, name)
    }
}

/// Serves memcached's protocol with this many threads from a node's memory, until standard input ends. Writes the
/// gateway's address as the first line.
pub fn serve(node: &str, threads: usize) -> Result<(), BenchError> {
    let session = SessionOptions { arena_bytes: ARENA_BYTES, ..Ends::default().session_options()? };
    let node = node.to_owned();
    let connect = Arc::new(move || connect_with(&node, session.clone()));
    let table = DirectoryName::new("memcached").expect("it is a name");
    let gateway = Gateway::start(GatewayOptions {
        listen: vec![Listen::Tcp("127.0.0.1:0".to_owned())],
        threads,
        keep: Keep::Attached,
        ..GatewayOptions::new(table, connect)
    });
    let gateway = gateway.map_err(|error| BenchError::Gateway(error.to_string()))?;
    let [address] = gateway.addresses() else {
        return Err(BenchError::Gateway("it listens at no address".to_owned()));
    };
    say(address);
    std::io::stdout().flush()?;
    wait_for_the_end()?;
    gateway.stop();
    Ok(())
}

//! The rates of puts and gets of blocks on three nodes, with one copy and with two, in turns.
//!
//! `cargo run --release -p portcullis-blocks --example copies [BLOCK_BYTES [ROUNDS]]` runs three nodes in this process.

use portcullis::host::{Host, HostConfig, Listen};
use portcullis::{DirectoryName, NodeConfig};
use portcullis_blocks::spread_store::{Bytes, BytesMut, Key, NodeSource, SpreadOptions, SpreadStore};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

const BLOCKS: usize = 24;

/// Keys of one round and one store.
fn keys() -> Vec<Key> {
    (0..BLOCKS).map(|number| format!("block {number}").into_bytes().into()).collect()
}

fn node(path: &Path) -> Host {
    let listen = vec![Listen { path: path.to_owned(), tenant: None }];
    let node = NodeConfig { pool_bytes: 512 << 20, ..NodeConfig::default() };
    Host::start(HostConfig { node, listen, overcommit: true, ..HostConfig::default() }).expect("a node")
}

/// Puts all blocks, reads them, and removes them. Returns the seconds of the puts and of the gets.
fn round(store: &SpreadStore, bytes: &Arc<Vec<u8>>, copies: usize) -> [f64; 2] {
    let blocks = keys().into_iter().map(|key| (key, Arc::clone(bytes) as Bytes)).collect();
    let began = Instant::now();
    let ends = store.put(blocks);
    let put = began.elapsed().as_secs_f64();
    assert!(ends.iter().all(|end| end.copies == copies), "{ends:?}");
    // The memory of the buffers is touched before the time counts.
    let buffer = || Box::new(vec![1_u8; bytes.len()]) as Box<dyn BytesMut>;
    let wanted = keys().into_iter().map(|key| (key, buffer())).collect();
    let (sender, receiver) = channel();
    let began = Instant::now();
    store.begin_get(wanted, move |ends| sender.send(ends).expect("the round waits"));
    let ends = receiver.recv().expect("each get ends");
    let got = began.elapsed().as_secs_f64();
    assert!(ends.iter().all(|end| end.got.is_hit()));
    assert!(store.remove(keys()).iter().all(|removed| *removed == Ok(copies)));
    [put, got]
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() / 4], values[values.len() * 3 / 4])
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let (length, rounds) = (arguments.next().unwrap_or(2 << 20), arguments.next().unwrap_or(30));
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<_> = (0..3).map(|number| folder.path().join(format!("node-{number}"))).collect();
    let _nodes: Vec<_> = paths.iter().map(|path| node(path)).collect();
    let addresses: Vec<_> = paths.iter().map(|path| format!("shm:{}", path.display())).collect();
    let open = |copies: usize| {
        let table = DirectoryName::new(&format!("copies-{copies}")).expect("a name");
        let options = SpreadOptions { copies, table, ..SpreadOptions::default() };
        SpreadStore::open(NodeSource::Addresses(addresses.clone()), options).expect("a store")
    };
    let (stores, bytes) = ([open(1), open(2)], Arc::new(vec![7_u8; length]));
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for number in 0..=rounds {
        for (copies, (store, times)) in stores.iter().zip(&mut times).enumerate() {
            let round = round(store, &bytes, copies + 1);
            // The first round makes the memory.
            if number > 0 {
                times.iter_mut().zip(round).for_each(|(times, time)| times.push(time));
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
    let gb = (length * BLOCKS) as f64 / 1e9;
    for (copies, [put, got]) in times.into_iter().enumerate() {
        let [put, got] = [put, got].map(median);
        let rate = |(median, low, high): (f64, f64, f64)| {
            format!("{:.2} GB/s ({:.2} to {:.2})", gb / median, gb / high, gb / low)
        };
        println!("{} copies: put {}, get {}", copies + 1, rate(put), rate(got));
    }
}

//! The rates of puts, gets and look-ups of blocks, beside bare writes and reads of the same bytes, in turns.
//!
//! `cargo run --release -p portcullis-blocks --example rates [BLOCK_BYTES [ROUNDS]]` runs a node in this process.

use portcullis::host::{Host, HostConfig};
use portcullis::{Allocate, DirectoryName, Lifetime, NodeConfig, Permission, Session, SessionOptions};
use portcullis_blocks::{Store, StoreOptions};
use portcullis_structures::Pipeline;
use std::rc::Rc;
use std::time::Instant;

const BLOCKS: usize = 32;
const LOOKED_UP: usize = 64;
const ARENA_BYTES: u64 = 64 << 20;
/// Longer than the measurement.
const BARE_LIFETIME: Lifetime = Lifetime::seconds(600);

/// A bare session beside a store, on one node.
struct Bench {
    bare: Session,
    place: Permission,
    pipeline: Rc<Pipeline>,
    /// With leases of look-ups, and without.
    stores: [Store; 2],
    block_bytes: usize,
}

fn store(pipeline: &Rc<Pipeline>, lease: Lifetime) -> Store {
    let name = DirectoryName::new("blocks").expect("a name");
    let options = StoreOptions { lease, ..StoreOptions::default() };
    pipeline.block_on(Store::open(pipeline, name, &options)).expect("a store")
}

fn keys(first: usize, count: usize) -> Vec<[u8; 32]> {
    let key = |number: usize| {
        std::array::from_fn(|at| number.to_le_bytes()[at % 8] ^ u8::try_from(at).expect("it is small"))
    };
    (first..first + count).map(key).collect()
}

impl Bench {
    fn new(node: &Host, block_bytes: usize) -> Self {
        let options = || SessionOptions { arena_bytes: ARENA_BYTES, ..SessionOptions::default() };
        let mut bare = node.connect("red", options()).expect("a session");
        let ask = Allocate::bytes((BLOCKS * block_bytes) as u64).lifetime(BARE_LIFETIME);
        let place = bare.allocate(ask).expect("memory");
        let pipeline = Rc::new(Pipeline::new(node.connect("red", options()).expect("a session")));
        let stores = [StoreOptions::default().lease, Lifetime(0)].map(|lease| store(&pipeline, lease));
        Self { bare, place, pipeline, stores, block_bytes }
    }

    /// Carries out each step once. Returns the time of each in seconds.
    fn round(&mut self, bytes: &[u8], into: &mut [u8]) -> [f64; 7] {
        let Self { bare, place, pipeline, stores: [store, leaseless], block_bytes } = self;
        let (keys, at) = (keys(0, BLOCKS), |number: usize| (number * *block_bytes) as u64);
        let bare_write = timed(|| {
            for number in 0..BLOCKS {
                bare.write(place, at(number), bytes).expect("a write");
            }
        });
        let blocks: Vec<_> = keys.iter().map(|key| (&key[..], bytes)).collect();
        let put = timed(|| {
            let ends = pipeline.block_on(store.put_many(&blocks)).expect("puts");
            assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        });
        let bare_read = timed(|| {
            for number in 0..BLOCKS {
                bare.read(place, at(number), into).expect("a read");
            }
        });
        let get = timed(|| {
            for key in &keys {
                assert!(pipeline.block_on(store.get(key, into)).expect("a get").is_hit());
            }
        });
        let view = timed(|| {
            for key in &keys {
                let block = pipeline.block_on(store.get_view(key)).expect("a view").expect("a block");
                assert_eq!(block.length(), bytes.len() as u64);
            }
        });
        let names: Vec<_> = self::keys(1_000, LOOKED_UP);
        let names: Vec<_> = names.iter().map(|key| &key[..]).collect();
        let look_up = |store: &Store| {
            timed(|| {
                let found = pipeline.block_on(store.look_up(&names)).expect("a look-up");
                assert!(found.iter().all(Option::is_some));
            })
        };
        let (leased, unleased) = (look_up(store), look_up(leaseless));
        let removed: Vec<_> = keys.iter().map(|key| &key[..]).collect();
        pipeline.block_on(store.remove_many(&removed)).expect("a removal");
        // The leases of the look-ups are used up.
        let mut small = [0; 64];
        for name in &names {
            assert!(pipeline.block_on(store.get(name, &mut small)).expect("a get").is_hit());
        }
        [bare_write, put, bare_read, get, view, leased, unleased]
    }
}

fn timed(act: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    act();
    begun.elapsed().as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|it| it.parse().expect("numbers: BLOCK_BYTES ROUNDS"));
    let block_bytes = arguments.next().unwrap_or(2 << 20);
    let rounds = arguments.next().unwrap_or(40);
    let pool_bytes = (3 * BLOCKS * block_bytes + (64 << 20)) as u64;
    let node = NodeConfig { pool_bytes, longest_lifetime: BARE_LIFETIME, ..NodeConfig::default() };
    let node = Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node");
    let mut bench = Bench::new(&node, block_bytes);
    for key in keys(1_000, LOOKED_UP) {
        bench.pipeline.block_on(bench.stores[0].put(&key, &[1; 64])).expect("a put");
    }
    let (bytes, mut into) = (vec![7; block_bytes], vec![0; block_bytes]);
    let times: Vec<_> = (0..rounds).map(|_| bench.round(&bytes, &mut into)).collect();
    let spread = |values: &mut Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        (values[0], values[values.len() / 2], values[values.len() - 1])
    };
    #[expect(clippy::cast_precision_loss, reason = "a benchmark's numbers are small")]
    let (all_bytes, looked_up) = ((BLOCKS * block_bytes) as f64, LOOKED_UP as f64);
    println!("{BLOCKS} blocks of {block_bytes} bytes, {rounds} rounds: median (least to most)");
    for (step, name, beside) in
        [(0, "bare write", 0), (1, "put", 0), (2, "bare read", 2), (3, "get", 2), (4, "get_view", 2)]
    {
        let mut ratios: Vec<_> = times.iter().map(|round| round[beside] / round[step]).collect();
        let mut rates: Vec<_> = times.iter().map(|round| all_bytes / round[step] / 1e9).collect();
        let ((least, median, most), (_, rate, _)) = (spread(&mut ratios), spread(&mut rates));
        println!("{name:>12}  {rate:6.2} GB/s  {median:.2} ({least:.2} to {most:.2}) of the bare one");
    }
    for (step, name) in [(5, "with leases"), (6, "without")] {
        let mut each: Vec<_> = times.iter().map(|round| round[step] / looked_up * 1e6).collect();
        let (least, median, most) = spread(&mut each);
        println!("look-up of {LOOKED_UP} keys, {name}: {median:.2} ({least:.2} to {most:.2}) µs a key");
    }
}

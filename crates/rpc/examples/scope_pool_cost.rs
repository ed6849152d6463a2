//! Measures the cost of a scope that the heap makes and frees, and of one that a pool keeps: with nothing put into it,
//! and with a word on each of its pages. `scope_pool_cost ROUNDS`. Prints medians of the time for one scope, and of the
//! ratios within a round.

use portcullis_rpc::heap::HEAP_ADDRESSES;
use portcullis_rpc::{Heap, HeapPlace, Owner, Room, Scope, ScopePool};
use std::time::Instant;

/// Number of scopes in a round.
const SCOPES: u32 = 2000;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|it| it.parse().ok()).unwrap_or(51);
    println!("{:>5}  {:>7}  {:>9}  {:>9}  {:>5}", "pages", "written", "heap, ns", "pool, ns", "ratio");
    for (number, pages) in (0..).zip([1, 16, 256]) {
        let place = HeapPlace::new(HEAP_ADDRESSES.start + (number << 32), 64 << 20).expect("a heap's place");
        let heap = Heap::create(place, Owner(1)).expect("memory for a heap");
        let mut pool = ScopePool::new(&heap, pages * 4096, 1, 1).expect("room for a scope");
        for is_written in [false, true] {
            let put = |scope: &Scope| {
                for page in 0..if is_written { pages } else { 0 } {
                    scope.put(scope.address() + page * 4096, &page.to_ne_bytes());
                }
            };
            let mut measured: Vec<[f64; 2]> = (0..rounds)
                .map(|_| {
                    let heap = each(|| put(&heap.scope(pages * 4096).expect("room in the heap")));
                    let pool = each(|| {
                        let scope = pool.take().expect("a scope of the pool");
                        put(&scope);
                        pool.give_back(scope);
                    });
                    [heap, pool]
                })
                .collect();
            // The first round touches pages for the first time, so it is not counted.
            measured.remove(0);
            let heap = median(measured.iter().map(|[heap, _]| *heap).collect());
            let pool = median(measured.iter().map(|[_, pool]| *pool).collect());
            let ratio = median(measured.iter().map(|[heap, pool]| heap / pool).collect());
            println!("{pages:>5}  {is_written:>7}  {heap:>9.1}  {pool:>9.1}  {ratio:>5.1}");
        }
    }
}

/// Measures an action many times. Returns the nanoseconds of one.
fn each(mut once: impl FnMut()) -> f64 {
    let began = Instant::now();
    (0..SCOPES).for_each(|_| once());
    began.elapsed().as_secs_f64() * 1e9 / f64::from(SCOPES)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

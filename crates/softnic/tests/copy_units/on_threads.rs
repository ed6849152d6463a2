//! The conformance suite with units on two threads, and pieces of a few bytes, so that nearly each transfer has many.

use super::{Arc, Mapping, PieceSizes, Pieces, SoftNic, ThreadRunner};

#[derive(Debug)]
struct Threads;

impl ThreadRunner for Threads {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        std::thread::yield_now();
    }
}

fn nic() -> SoftNic {
    with_units(SoftNic::self_driven(), PieceSizes { transfer_min: 9, piece_max: 5 })
}

/// Gives a NIC two units. Each thread ends when the NIC is dropped.
pub fn with_units(mut nic: SoftNic, sizes: PieceSizes) -> SoftNic {
    let queues: Vec<Arc<Pieces<Mapping>>> = (0..2).map(|_| Arc::default()).collect();
    for queue in queues.iter().map(Arc::clone) {
        std::thread::spawn(move || {
            while Arc::strong_count(&queue) > 1 {
                if queue.move_next().is_none() {
                    std::thread::yield_now();
                }
            }
        });
    }
    nic.core().set_copy_units(queues, Arc::new(Threads), sizes);
    nic
}

portcullis_conformance::conformance_tests!(nic());

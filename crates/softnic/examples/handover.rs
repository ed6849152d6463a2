//! The time that a transfer takes the NIC's thread: when this thread copies the bytes, and when it hands them over to a copy
//! unit. `PieceSizes::transfer_min` rests on it.
//!
//! `handover [ROUNDS]` reads objects at random places of 256 MiB, one on each of four queue pairs: a unit has places for four
//! pieces. The time while the NIC's thread waits for the unit does not count. The unit's thread needs a processor of its own.

use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, Lkey, LocalSpan, Nic, Operation, QpAttributes, QpChange, QpId, Region, RemoteAddress, RemoteSpan,
    Rkey, Status, WorkRequest,
};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::ThreadRunner;
use portcullis_softnic::core::copy_units::{PIECES_MAX, PieceSizes, Pieces};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MEMORY_BYTES: u64 = 256 << 20;
const LENGTHS: [u32; 7] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const BATCH: u64 = PIECES_MAX as u64;

/// A unit whose thread never sleeps.
#[derive(Debug)]
struct Awake;

impl ThreadRunner for Awake {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        std::hint::spin_loop();
    }
}

struct Rig {
    nic: SoftNic,
    cq: portcullis_nic::CqId,
    /// Queue pairs, of which each has a read under way.
    qps: Vec<QpId>,
    rkey: Rkey,
    lkey: Lkey,
    /// The state of a generator of pseudo-random numbers.
    random: u64,
}

impl Rig {
    fn new(mut nic: SoftNic) -> Result<Self, Box<dyn Error>> {
        let pd = nic.allocate_pd()?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE;
        let mut region = |bytes: u64| -> Result<Region, Box<dyn Error>> {
            let memory = nic.allocate_memory(bytes)?;
            portcullis_memory::Memory::write(&memory, 0, &vec![1; usize::try_from(bytes)?]);
            Ok(nic.register_region(pd, &memory, 0..bytes, RemoteAddress(0), rights)?)
        };
        let (there, here) = (region(MEMORY_BYTES)?, region(BATCH * u64::from(LENGTHS[LENGTHS.len() - 1]))?);
        let cq = nic.create_cq(256)?;
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 128, receive_depth: 0 };
        let mut qps = Vec::new();
        for _ in 0..BATCH {
            let pair = [nic.create_qp(pd, attributes)?, nic.create_qp(pd, attributes)?];
            for (qp, peer) in [(pair[0], pair[1]), (pair[1], pair[0])] {
                let peer = nic.qp_address(peer)?;
                nic.modify_qp(qp, QpChange::Init { access: Access::REMOTE })?;
                nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
                nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: 0 })?;
            }
            qps.push(pair[0]);
        }
        Ok(Self { nic, cq, qps, rkey: there.rkey, lkey: here.lkey, random: 1 })
    }

    /// Returns a read of `length` bytes at a random place.
    fn read(&mut self, id: u64, length: u32) -> WorkRequest {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (self.random >> 33) % (MEMORY_BYTES / u64::from(length)) * u64::from(length);
        let local = LocalSpan { address: id * u64::from(length), length, lkey: self.lkey };
        let remote = RemoteSpan { address: RemoteAddress(place), rkey: self.rkey };
        WorkRequest { id, signalled: true, operation: Operation::Read { local, remote } }
    }

    /// Reads once on each queue pair, and returns the time that the NIC's thread was at work. `is_waiting`: whether a unit has pieces.
    fn batch(&mut self, length: u32, is_waiting: &dyn Fn() -> bool) -> Result<Duration, Box<dyn Error>> {
        let reads: Vec<_> = (0..BATCH).map(|id| self.read(id, length)).collect();
        let mut completions = Vec::new();
        let mut started = Instant::now();
        for (&qp, &read) in self.qps.iter().zip(&reads) {
            self.nic.post_send(qp, &[read])?;
        }
        let mut at_work = Duration::ZERO;
        while completions.len() < reads.len() {
            self.nic.turn();
            at_work += started.elapsed();
            while is_waiting() {
                std::hint::spin_loop();
            }
            started = Instant::now();
            self.nic.poll(self.cq, reads.len(), &mut completions)?;
        }
        at_work += started.elapsed();
        let failed = completions.iter().find(|it| it.status != Status::Success);
        failed.map_or(Ok(at_work), |it| Err(format!("a read ended with {}", it.status).into()))
    }

    /// Returns the median time of a read of each length, in ns.
    fn medians(&mut self, rounds: usize, is_waiting: &dyn Fn() -> bool) -> Result<Vec<u64>, Box<dyn Error>> {
        let median = |length: u32| {
            let times: Result<Vec<Duration>, _> =
                (0..rounds).map(|_| self.batch(length, is_waiting)).collect();
            let mut times = times?;
            times.sort_unstable();
            Ok(u64::try_from(times[rounds / 2].as_nanos())? / BATCH)
        };
        LENGTHS.into_iter().map(median).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(2000), |count| count.parse())?;
    let copied = Rig::new(SoftNic::new())?.medians(rounds, &|| false)?;
    let pieces = Arc::<Pieces<Mapping>>::default();
    let mut nic = SoftNic::new();
    // Each transfer is one piece, so that four fit.
    let sizes = PieceSizes { transfer_min: 1, piece_max: LENGTHS[LENGTHS.len() - 1] };
    nic.core().set_copy_units(vec![Arc::clone(&pieces)], Arc::new(Awake), sizes);
    let mut rig = Rig::new(nic)?;
    let is_over = AtomicBool::new(false);
    let handed_over = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if pieces.move_next().is_none() {
                    std::hint::spin_loop();
                }
            }
        });
        let times = rig.medians(rounds, &|| pieces.is_waiting());
        is_over.store(true, Ordering::Relaxed);
        times
    })?;
    println!("bytes   copied by the NIC's thread [ns]   handed over [ns]");
    for ((length, copied), handed_over) in LENGTHS.into_iter().zip(copied).zip(handed_over) {
        println!("{length:<7} {copied:<33} {handed_over}");
    }
    Ok(())
}

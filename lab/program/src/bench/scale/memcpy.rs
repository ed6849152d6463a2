//! The bound of a row: memcpy by as many threads, from random places of a working set of the same size.

use super::super::course::{Course, Length};
use super::super::rivals::Measured;
use super::super::side_by_side::{self, Clients};
use super::super::{BenchError, processors};
use crate::samples::Samples;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Memory that is copied from. It has been written, so that every page exists.
pub struct WorkingSet(Vec<u8>);

impl WorkingSet {
    /// Fills this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(vec![0x5A; bytes])
    }

    /// Copies blocks of `size` bytes with this many threads, each into a small buffer of its own.
    pub fn copies(
        &self,
        size: usize,
        threads: usize,
        length: Length,
        name: &str,
    ) -> Result<Measured, BenchError> {
        side_by_side::run(&Copies { from: &self.0, size }, threads, length, name)
    }
}

/// Threads that copy.
struct Copies<'a> {
    from: &'a [u8],
    size: usize,
}

impl Clients for Copies<'_> {
    type Ready = (Vec<u8>, Pcg64Mcg);

    fn prepare(&self, number: usize) -> Result<Self::Ready, BenchError> {
        processors::pin_one_of_all(number);
        Ok((vec![0; self.size], Pcg64Mcg::seed_from_u64(number as u64)))
    }

    fn measure(
        &self,
        (mut buffer, mut random): Self::Ready,
        mut course: Course,
    ) -> Result<Measured, BenchError> {
        let blocks = (self.from.len() / self.size).max(1);
        let mut done = 0;
        while !course.over(done) {
            let at = random.random_range(0..blocks) * self.size;
            buffer.copy_from_slice(&self.from[at..at + self.size]);
            std::hint::black_box(&buffer);
            done += 1;
        }
        Ok(Measured::new(done, course.elapsed(), Samples::new()))
    }
}

//! The workloads of a cache: it is loaded, and then used according to YCSB, and every value that is read is checked.
//! This module does not depend on how the cache is reached.

use crate::workload::{Choice, Drawn, Kind, Workload, draw};
use serde::Serialize;
use std::time::{Duration, Instant};

/// An error of the cache or of the workload.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a value: ten fields of a hundred, as YCSB's records have.
const VALUE_BYTES: usize = 1000;
/// Seed of the operations: all caches get the same ones.
const SEED: u64 = 1;

/// A connection to a cache.
pub trait Cache {
    /// Returns the value of a key. `None`: the cache has no such key.
    ///
    /// # Errors
    /// The cache did not answer.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, BoxError>;

    /// Sets the value of a key.
    ///
    /// # Errors
    /// The cache did not set it.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), BoxError>;

    /// Deletes a key. Returns whether it was there.
    ///
    /// # Errors
    /// The cache did not delete it.
    fn delete(&mut self, key: &[u8]) -> Result<bool, BoxError>;
}

/// Times of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the workload.
    pub workload: String,
    /// Number of operations.
    pub operations: u64,
    /// Seconds for all operations.
    pub seconds: f64,
    /// Median of the time of one operation, in microseconds.
    pub p50: f64,
}

/// The keys of a cache, with the versions of their values.
pub struct Loaded {
    /// How often the value of each key was set.
    versions: Vec<u64>,
}

fn key(number: usize) -> String {
    format!("user{number:016}")
}

/// Makes the value of a key, which differs from those of all other keys and versions.
fn value(number: usize, version: u64) -> Vec<u8> {
    let words = (0_u64..).map(|at| (number as u64) << 24 ^ version ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut value: Vec<u8> = words.take(VALUE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    value.resize(VALUE_BYTES, 0);
    value
}

impl Loaded {
    /// Loads a cache with `keys` keys. `done` is called with the number of keys that were added since the last call.
    ///
    /// # Errors
    /// The cache did not set a value.
    pub fn new(cache: &mut impl Cache, keys: u32, mut done: impl FnMut(u64)) -> Result<Self, BoxError> {
        let mut loaded = Self { versions: Vec::new() };
        for number in 0..keys as usize {
            cache.set(key(number).as_bytes(), &value(number, 0))?;
            loaded.versions.push(0);
            done(1);
        }
        Ok(loaded)
    }

    /// Runs a workload.
    ///
    /// # Errors
    /// The cache did not perform an operation, or returned a wrong value.
    pub fn run(
        &mut self,
        cache: &mut impl Cache,
        workload: Workload,
        operations: u64,
        mut done: impl FnMut(u64),
    ) -> Result<Report, BoxError> {
        let keys = u32::try_from(self.versions.len())?;
        let drawn = draw(workload, keys, operations, SEED);
        let mut times = Vec::with_capacity(usize::try_from(operations)?);
        for drawn in drawn.iter().cycle().take(usize::try_from(operations)?) {
            times.push(self.one(cache, *drawn)?);
            done(1);
        }
        let seconds = times.iter().sum::<Duration>().as_secs_f64();
        times.sort_unstable();
        let p50 = times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6);
        Ok(Report { workload: workload.text(), operations, seconds, p50 })
    }

    /// Performs one operation. Returns its duration, without the time to generate values and to check them.
    fn one(&mut self, cache: &mut impl Cache, Drawn { kind, choice }: Drawn) -> Result<Duration, BoxError> {
        let number = match choice {
            _ if kind == Kind::Insert => self.versions.len(),
            Choice::Loaded(number) => number as usize,
            Choice::BeforeLatest(rank) => {
                self.versions.len() - 1 - (rank as usize).min(self.versions.len() - 1)
            }
        };
        let key = key(number);
        let mut took = Duration::ZERO;
        if matches!(kind, Kind::Read | Kind::ReadModifyWrite) {
            let before = Instant::now();
            let read = cache.get(key.as_bytes())?;
            took += before.elapsed();
            if read.as_deref() != Some(&*value(number, self.versions[number])) {
                return Err(format!("{key} came back as {read:x?}").into());
            }
        }
        if kind != Kind::Read {
            if kind == Kind::Insert {
                self.versions.push(0);
            } else {
                self.versions[number] += 1;
            }
            let value = value(number, self.versions[number]);
            let before = Instant::now();
            cache.set(key.as_bytes(), &value)?;
            took += before.elapsed();
        }
        Ok(took)
    }

    /// Deletes some keys, and checks that each of them is gone.
    ///
    /// # Errors
    /// A key was missing before, or still exists.
    pub fn delete(self, cache: &mut impl Cache) -> Result<(), BoxError> {
        for number in 0..self.versions.len().min(100) {
            let key = key(number);
            let (was_there, is_there) = (cache.delete(key.as_bytes())?, cache.get(key.as_bytes())?.is_some());
            if !was_there || is_there || cache.delete(key.as_bytes())? {
                return Err(format!("{key} was deleted, and was there: {was_there}, {is_there}").into());
            }
        }
        Ok(())
    }
}

//! Whether more threads are runnable than the machine has processors.
//!
//! A thread that spins alone on a processor does not notice that others share one: its yields return at once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// File with the kernel's count of runnable threads.
const COUNTED_AT: &str = "/proc/loadavg";
/// File with the list of processors that are online.
const PROCESSORS_AT: &str = "/sys/devices/system/cpu/online";
/// Bytes of the kernel's line: five short words.
const LINE_BYTES: usize = 128;

/// The kernel's count of runnable threads. A polling thread keeps one of these for as long as it polls.
#[derive(Debug)]
pub struct Crowd {
    counted: Option<File>,
    processors: u32,
    /// The kernel's count could not be read or parsed, and is not read again.
    is_silent: AtomicBool,
}

impl Crowd {
    /// Creates a crowd that is never there ([`Self::is_there`]), for a thread that has a processor to itself.
    #[must_use]
    pub fn none() -> Self {
        Self { counted: None, processors: u32::MAX, is_silent: AtomicBool::new(true) }
    }

    /// Opens the kernel's count. If the kernel reports none, [`Self::is_there`] is always false.
    #[must_use]
    pub fn new() -> Self {
        let online = std::fs::read_to_string(PROCESSORS_AT).ok();
        let processors = online.as_deref().and_then(processors_in);
        let counted = processors.and_then(|_| File::open(COUNTED_AT).ok());
        Self {
            is_silent: AtomicBool::new(counted.is_none()),
            counted,
            processors: processors.unwrap_or(u32::MAX),
        }
    }

    /// Whether more threads are runnable, the caller included, than there are processors. It takes some microseconds.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.is_there_with(0)
    }

    /// Number of processors that the kernel's count is of: those of the machine. `u32::MAX`: they are not known.
    #[must_use]
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Whether more threads are runnable than there are processors, or would be with `more` others.
    #[must_use]
    pub fn is_there_with(&self, more: u32) -> bool {
        let Some(counted) = self.counted.as_ref().filter(|_| !self.is_silent.load(Ordering::Relaxed)) else {
            return false;
        };
        let mut line = [0; LINE_BYTES];
        let threads = counted.read_at(&mut line, 0).ok().and_then(|bytes| threads_in(&line[..bytes]));
        self.is_silent.store(threads.is_none(), Ordering::Relaxed);
        threads.is_some_and(|threads| threads.saturating_add(more) > self.processors)
    }
}

impl Default for Crowd {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of runnable threads, from a line such as `0.20 0.18 0.12 1/80 11206`.
fn threads_in(line: &[u8]) -> Option<u32> {
    let word = std::str::from_utf8(line).ok()?.split_whitespace().nth(3)?;
    word.split_once('/')?.0.parse().ok()
}

/// The number of processors in a list such as `0-3,8`.
fn processors_in(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const FOUND_WITHIN: Duration = Duration::from_secs(60);

    #[test]
    fn the_kernels_lines_are_read() {
        assert_eq!(threads_in(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(threads_in(b"0.20 0.18"), None);
        assert_eq!(threads_in(b""), None);
        assert_eq!(processors_in("0-1\n"), Some(2));
        assert_eq!(processors_in("0-3,8,10-11"), Some(7));
        assert_eq!(processors_in("5-3"), None);
        assert_eq!(processors_in("\n"), None);
    }

    #[test]
    fn there_is_a_crowd_when_more_threads_spin_than_there_are_processors() {
        let crowd = Crowd::new();
        assert!(!crowd.is_silent.load(Ordering::Relaxed), "Linux says it");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..crowd.processors {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let began = Instant::now();
            while !crowd.is_there() && began.elapsed() < FOUND_WITHIN {}
            ended.store(true, Ordering::Relaxed);
            assert!(began.elapsed() < FOUND_WITHIN, "{} threads spin beside this one", crowd.processors);
        });
    }
}

//! Swap spaces of several applications: static partitions, and segments that are mapped when they are first written. A
//! function of the trace alone: nothing here takes time.

use super::index;
use portcullis_sim::Dice;

/// An application: how many MiB it has swapped out, at equal distances in time. All of it is assumed: the slides name
/// no application and no amount. The applications differ in the times of their peaks, in the share of the time that the
/// peaks last, and in whether they give anything up at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Application {
    pub name: &'static str,
    pub mebibytes: &'static [u64],
}

pub(super) const APPLICATIONS: [Application; 6] = [
    Application { name: "grows to its end", mebibytes: &[4, 12, 20, 28, 36, 44, 52, 60, 64] },
    Application { name: "fills up at once", mebibytes: &[40, 48, 48, 48, 48, 48, 48, 48, 48] },
    Application { name: "in stages", mebibytes: &[8, 64, 24, 16, 64, 24, 16, 64, 24] },
    Application { name: "one early peak", mebibytes: &[32, 96, 64, 24, 24, 24, 24, 24, 24] },
    Application { name: "one late peak", mebibytes: &[16, 16, 16, 16, 16, 24, 48, 96, 32] },
    Application { name: "rises and falls", mebibytes: &[8, 24, 40, 56, 64, 56, 40, 24, 8] },
];

/// The sizes of segments, pages and runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub segment_bytes: u64,
    pub page_bytes: u64,
    /// Pages that are given up together.
    pub run_pages: u64,
}

impl Sizes {
    pub fn pages_of_a_segment(&self) -> u64 {
        (self.segment_bytes / self.page_bytes).max(1)
    }
}

/// The pages that were used, and the pages that were held for them, summed over the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub used: u64,
    /// Pages in segments that were mapped when first written.
    pub mapped: u64,
    /// Pages in a partition that has the application's peak size all the time.
    pub partition: u64,
}

impl Usage {
    pub fn add(&mut self, other: Self) {
        self.used += other.used;
        self.mapped += other.mapped;
        self.partition += other.partition;
    }

    /// Returns how many times as large a part of the held memory is used with segments as with a partition.
    pub fn gain(self) -> f64 {
        self.partition as f64 / self.mapped.max(1) as f64
    }

    /// Returns the percentage of the mapped memory that is used.
    pub fn used_percent(self) -> f64 {
        100.0 * self.used as f64 / self.mapped.max(1) as f64
    }
}

/// A swap space, with its used pages. A page is written to the lowest free place, as kernels do.
struct Space {
    places: Vec<bool>,
    used: u64,
    lowest_free: usize,
}

impl Space {
    fn new(pages: u64) -> Self {
        Self { places: vec![false; index(pages)], used: 0, lowest_free: 0 }
    }

    fn write(&mut self) {
        while self.places[self.lowest_free] {
            self.lowest_free += 1;
        }
        self.places[self.lowest_free] = true;
        self.used += 1;
    }

    /// Gives up a run that begins at a random multiple of its length.
    fn give_up(&mut self, run: usize, most: u64, dice: &mut Dice) {
        let first = dice.index(self.places.len().div_ceil(run)) * run;
        let last = (first + run).min(self.places.len());
        let mut left = most;
        for place in first..last {
            if self.places[place] && left > 0 {
                self.places[place] = false;
                left -= 1;
                self.used -= 1;
                self.lowest_free = self.lowest_free.min(place);
            }
        }
    }

    fn segments(&self, pages: u64) -> u64 {
        self.places.chunks(index(pages)).filter(|segment| segment.contains(&true)).count() as u64
    }
}

impl Application {
    /// Returns the pages that the application uses and holds over its time.
    pub fn run(&self, sizes: Sizes, seed: u64) -> Usage {
        let pages = |mebibytes: u64| mebibytes * (1 << 20) / sizes.page_bytes;
        let peak = self.mebibytes.iter().copied().map(pages).max().unwrap_or(0);
        let mut space = Space::new(peak);
        let mut dice = Dice::new(seed, 0);
        let mut usage = Usage::default();
        for &mebibytes in self.mebibytes {
            let wanted = pages(mebibytes);
            while space.used < wanted {
                space.write();
            }
            while space.used > wanted {
                space.give_up(index(sizes.run_pages.max(1)), space.used - wanted, &mut dice);
            }
            let segment = sizes.pages_of_a_segment();
            let mapped = space.segments(segment) * segment;
            usage.add(Usage { used: wanted, mapped, partition: peak.next_multiple_of(segment) });
        }
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { segment_bytes: 1 << 20, page_bytes: 4 << 10, run_pages: 64 };

    #[test]
    fn what_never_shrinks_is_used_but_for_its_last_segment() {
        let grows = Application { name: "", mebibytes: &[1, 2, 3, 4] };
        let usage = grows.run(SIZES, 1);
        assert_eq!(usage.used, usage.mapped, "whole segments");
        assert_eq!(usage, Usage { used: 10 * 256, mapped: 10 * 256, partition: 16 * 256 });
    }

    #[test]
    fn segments_hold_no_less_than_is_used_and_no_more_than_a_partition() {
        for application in APPLICATIONS {
            let usage = application.run(SIZES, 7);
            assert!(usage.used <= usage.mapped, "{}: {usage:?}", application.name);
            assert!(usage.mapped <= usage.partition, "{}: {usage:?}", application.name);
        }
    }

    #[test]
    fn smaller_segments_never_hold_more() {
        let sizes = |segment_bytes| Sizes { segment_bytes, ..SIZES };
        for application in APPLICATIONS {
            let [small, large] = [256 << 10, 4 << 20].map(|bytes| application.run(sizes(bytes), 7).mapped);
            assert!(small <= large, "{}: {small} and {large}", application.name);
        }
    }

    #[test]
    fn what_is_given_up_in_whole_segments_is_given_back_at_once() {
        let falls = Application { name: "", mebibytes: &[8, 4] };
        let usage = falls.run(Sizes { run_pages: 256, ..SIZES }, 3);
        assert_eq!(usage.used, usage.mapped);
        let scattered = falls.run(Sizes { run_pages: 1, ..SIZES }, 3);
        assert!(scattered.mapped > usage.mapped, "{scattered:?}");
    }
}

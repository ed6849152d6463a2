//! Hardware that serves requests one after the other, at a fixed rate.

use crate::time::Nanos;

/// A unit of a NIC. It serves requests in their order, each in the time that its rate gives.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    /// Time for one request, in ps: at 70 M/s a ns is too coarse.
    each_ps: u64,
    free_ps: u64,
}

impl Pipe {
    /// Creates a unit that serves `thousands` thousand requests per second.
    pub fn new(thousands: u64) -> Self {
        Self { each_ps: 1_000_000_000 / thousands.max(1), free_ps: 0 }
    }

    /// Returns the time at which a request that arrives at `now` has been served.
    pub fn pass(&mut self, now: Nanos) -> Nanos {
        self.free_ps = self.free_ps.max(now * 1000) + self.each_ps;
        self.free_ps.div_ceil(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_passes_as_many_as_its_rate_says() {
        let mut pipe = Pipe::new(70_000);
        let last = (0..70_000).map(|_| pipe.pass(0)).last();
        assert!(last.is_some_and(|last| last.abs_diff(1_000_000) < 100), "{last:?}");
        assert_eq!(pipe.pass(5_000_000), 5_000_015, "an idle unit owes nobody anything");
    }
}

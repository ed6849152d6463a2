//! The time that chains take on mlx5: the requests that they execute, at the inputs' prices.

use super::super::inputs::Inputs;
use super::lap::{Lap, Request, as_written};
use super::segments::{replies, segments};
use crate::time::Nanos;
use portcullis_offload::chain::{Line, Listing};
use std::ops::Range;

/// Returns how long a request takes until the data that it moves has landed, beyond its turn in its queue.
fn landing(inputs: &Inputs, request: Request) -> Nanos {
    let prices = &inputs.one_sided;
    let moved = |bytes: u64| bytes * 1_000 / prices.link_bytes.max(1);
    match request {
        Request::Nothing | Request::Wait | Request::Enable => 0,
        Request::Read(bytes) => prices.loopback_read_ns + moved(bytes),
        Request::Write(bytes) => prices.loopback_write_ns + moved(bytes),
        Request::Atomic => prices.loopback_read_ns,
        Request::Window => inputs.bind_ns,
        Request::Send(bytes) => prices.send_ns + moved(bytes),
    }
}

/// Returns the time of requests that are admitted together, until all of them have landed.
fn admitted(inputs: &Inputs, requests: &[Request]) -> Nanos {
    let slowest = requests.iter().map(|&request| landing(inputs, request)).max().unwrap_or(0);
    inputs.one_sided.fetch_ns + in_order(inputs, requests) + slowest
}

fn in_order(inputs: &Inputs, requests: &[Request]) -> Nanos {
    requests.len() as u64 * inputs.one_sided.in_order_ns
}

/// A chain with the times of its requests.
#[derive(Clone, Debug)]
pub(super) struct Timed<'a> {
    inputs: &'a Inputs,
    listing: &'a Listing,
    requests: Vec<Request>,
    binds: Vec<Request>,
    reply: Request,
    segments: Vec<Range<usize>>,
}

impl<'a> Timed<'a> {
    /// Creates the times of a lap that a worker has executed.
    pub fn lap(inputs: &'a Inputs, listing: &'a Listing, lap: &Lap) -> Self {
        assert!(lap.chain.len() >= listing.rows().len(), "each row is executed once a lap");
        let reply = lap.replies.first().copied().unwrap_or(Request::Nothing);
        Self {
            inputs,
            listing,
            requests: lap.chain.clone(),
            binds: lap.binds.clone(),
            reply,
            segments: segments(listing),
        }
    }

    /// Creates the times of a listing that no worker runs, as it is written, with a reply of this many bytes.
    pub fn listing(inputs: &'a Inputs, listing: &'a Listing, reply_bytes: u64) -> Self {
        let requests = as_written(listing);
        let reply = Request::Send(reply_bytes);
        Self { inputs, listing, requests, binds: Vec::new(), reply, segments: segments(listing) }
    }

    pub fn segments(&self) -> u64 {
        self.segments.len() as u64
    }

    fn line(&self, line: Line) -> Option<usize> {
        self.listing.position(line.first())
    }

    /// Returns the time of a segment, from its row `from` on and up to its row `to`. The other rows are under way
    /// beside that.
    fn part(&self, segment: &Range<usize>, from: usize, to: usize) -> Nanos {
        let rows = segment.start.max(from)..segment.end.min(to + 1);
        if rows.is_empty() {
            return 0;
        }
        let waits = self.line(Line::AwaitBinds).is_some_and(|line| rows.contains(&line));
        let binds = if waits { admitted(self.inputs, &self.binds) + self.queued_binds() } else { 0 };
        let requests = &self.requests[rows];
        let all = admitted(self.inputs, requests) + binds;
        // A row in the middle of its segment was fetched with the rows before it.
        if segment.start < from { all - self.inputs.one_sided.fetch_ns } else { all }
    }

    /// Returns the time of binds that are queued behind others. The NIC executes them one after the other, at its
    /// rate.
    fn queued_binds(&self) -> Nanos {
        let behind = self.binds.iter().filter(|&&request| request == Request::Window).count() as u64;
        behind.saturating_sub(1) * 1_000_000 / self.inputs.binds_of_a_nic.max(1)
    }

    /// Returns the time from a row's turn until another one has landed.
    fn between(&self, from: usize, to: usize) -> Nanos {
        self.segments.iter().map(|segment| self.part(segment, from, to)).sum()
    }

    /// Returns the time from the request's arrival until the reply has left.
    pub fn answer_ns(&self) -> Nanos {
        let reply = self.listing.rows().iter().position(|row| replies(row.operation));
        let reply = reply.unwrap_or(self.listing.rows().len() - 1);
        self.between(0, reply) + admitted(self.inputs, &[self.reply])
    }

    /// Returns the time of a whole lap. A worker executes one lap after the other.
    pub fn lap_ns(&self) -> Nanos {
        let rows = self.listing.rows().len();
        // Padding is executed, but nothing waits for it to land.
        self.between(0, rows - 1) + in_order(self.inputs, &self.requests[rows..])
    }

    /// Returns how long the lock is held.
    pub fn held_ns(&self) -> Nanos {
        let released = self.listing.rows().iter().position(|row| row.releases);
        match (self.line(Line::AwaitTurn), released) {
            // A worker that waits for the lock has already fetched its wait, and the requests that are admitted with
            // it.
            (Some(taken), Some(released)) => {
                self.inputs.one_sided.in_order_ns + self.between(taken + 1, released)
            }
            _ => 0,
        }
    }
}

/// Returns the rate per second, in thousands, of operations that take this long.
pub(super) fn thousands_a_second(time: Nanos) -> f64 {
    1e6 / time.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::lap::laps;
    use super::*;

    #[test]
    fn the_lock_is_held_for_a_part_of_the_lap_and_the_reply_leaves_before_its_end() {
        let inputs = Inputs::default();
        let laps = laps(4, 8 << 10);
        for (listing, lap) in [(&laps.chains.alloc, &laps.alloc), (&laps.chains.free, &laps.free)] {
            let timed = Timed::lap(&inputs, listing, lap);
            assert!(timed.held_ns() > 0 && timed.held_ns() < timed.answer_ns());
            assert!(timed.answer_ns() < timed.lap_ns(), "{} of {}", timed.answer_ns(), timed.lap_ns());
        }
    }

    #[test]
    fn the_lock_of_an_allocation_is_held_for_two_reads_and_one_fetch() {
        let inputs = Inputs::default();
        let prices = &inputs.one_sided;
        let laps = laps(1, 8 << 10);
        let held = Timed::lap(&inputs, &laps.chains.alloc, &laps.alloc).held_ns();
        // A wait, the top, a fetch, and the next one.
        let parts = 3 * prices.in_order_ns + 2 * prices.loopback_read_ns + prices.fetch_ns;
        assert!(held.abs_diff(parts) <= 2, "{held} of {parts}");
    }
}

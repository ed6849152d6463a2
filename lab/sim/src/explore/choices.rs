//! A depth-first search over decisions. It runs the same race again and again; only the decisions are kept between two
//! runs.
//!
//! Two moves that touch nothing in common lead to the same state in either order. Sleep sets (Godefroid) skip the
//! second order: once all runs that begin with `a` are done, `a` sleeps in the runs that begin with its neighbour `b`,
//! until a move follows that does not commute with `a`. At least one run of every class of equivalent runs is left, so no
//! failure is missed.

use std::fmt;

/// The decision at one point of a run, and the moves that are left to try there.
struct Frame<M> {
    /// Moves to try, in order.
    awake: Vec<M>,
    /// Moves whose runs are covered by other runs.
    asleep: Vec<M>,
    at: usize,
}

/// The decisions of one run, and the means to find the next run.
pub(super) struct Choices<M> {
    frames: Vec<Frame<M>>,
    depth: usize,
    /// Whether two moves commute and neither of them enables or disables the other.
    commute: fn(M, M) -> bool,
}

impl<M> fmt::Debug for Choices<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choices").field("frames", &self.frames.len()).field("depth", &self.depth).finish()
    }
}

impl<M: Copy + PartialEq + fmt::Debug> Choices<M> {
    /// Creates the choices of the first run, which always takes the first move.
    pub fn new(commute: fn(M, M) -> bool) -> Self {
        Self { frames: Vec::new(), depth: 0, commute }
    }

    /// Decides between moves. `None`: there is no move, or the rest of the run was covered in another order.
    ///
    /// # Panics
    /// The run differs from the previous run before this point. Then it depends on something that is not a decision.
    pub fn choose(&mut self, moves: &[M]) -> Option<M> {
        if self.depth == self.frames.len() {
            let asleep = self.asleep_next();
            let awake: Vec<M> = moves.iter().copied().filter(|it| !asleep.contains(it)).collect();
            if awake.is_empty() {
                return None;
            }
            self.frames.push(Frame { awake, asleep, at: 0 });
        }
        let frame = &self.frames[self.depth];
        let chosen = frame.awake[frame.at];
        assert!(moves.contains(&chosen), "{chosen:?} was possible in the last run, and now only {moves:?}");
        self.depth += 1;
        Some(chosen)
    }

    /// Returns the moves that sleep after the last decision.
    fn asleep_next(&self) -> Vec<M> {
        let Some(last) = self.frames.last() else { return Vec::new() };
        let chosen = last.awake[last.at];
        let known = last.asleep.iter().chain(&last.awake[..last.at]);
        known.copied().filter(|&it| (self.commute)(it, chosen)).collect()
    }

    /// Number of decisions in this run so far.
    pub fn taken(&self) -> usize {
        self.depth
    }

    /// Returns the decisions of this run.
    pub fn schedule(&self) -> Vec<M> {
        self.frames[..self.depth].iter().map(|frame| frame.awake[frame.at]).collect()
    }

    /// Goes to the next run. `false`: all runs are done.
    pub fn next(&mut self) -> bool {
        self.depth = 0;
        while let Some(last) = self.frames.last_mut() {
            last.at += 1;
            if last.at < last.awake.len() {
                return true;
            }
            self.frames.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Runs three counters with this many steps in all orders. Returns the number of complete runs, and of their
    /// different ends.
    fn orders(steps: [usize; 3], commute: fn(usize, usize) -> bool) -> (u64, usize) {
        let mut choices = Choices::new(commute);
        let (mut runs, mut ends) = (0, HashSet::new());
        loop {
            let mut done = [0; 3];
            // The writes of the first two counters, in order. These two share the list, and the third counter shares
            // nothing.
            let mut shared = Vec::new();
            let complete = loop {
                let moves: Vec<usize> = (0..3).filter(|&it| done[it] < steps[it]).collect();
                if moves.is_empty() {
                    break true;
                }
                let Some(one) = choices.choose(&moves) else { break false };
                done[one] += 1;
                if one < 2 {
                    shared.push(one);
                }
            };
            if complete {
                runs += 1;
                ends.insert(shared);
            }
            if !choices.next() {
                return (runs, ends.len());
            }
        }
    }

    #[test]
    fn every_order_is_run_once() {
        assert_eq!(orders([2, 2, 0], |_, _| false), (6, 6));
        assert_eq!(orders([3, 3, 2], |_, _| false), (560, 20));
    }

    #[test]
    fn moves_that_commute_are_run_in_one_order_and_every_end_is_still_reached() {
        assert_eq!(orders([3, 3, 2], |one, other| one.max(other) == 2 && one != other), (20, 20));
        assert_eq!(orders([4, 3, 5], |one, other| one != other), (1, 1));
    }
}

//! Replies that wait until several things have gone.

use super::effects::OwedReply;
use portcullis_slots::{Reuse, Slots};

/// Names some things that go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FarewellKey(u32);

portcullis_slots::number_key!(FarewellKey);

#[derive(Debug, Default)]
struct Farewell {
    /// How many of the things are still there.
    left: usize,
    /// Replies that are due when none is.
    owed: Vec<OwedReply>,
}

/// Things that go together, and the replies that are due when the last one has gone.
#[derive(Debug)]
pub(crate) struct Farewells(Slots<FarewellKey, Farewell>);

impl Default for Farewells {
    fn default() -> Self {
        Self(Slots::new(Reuse::LatestFirst, u32::MAX))
    }
}

impl Farewells {
    /// So many things go together. More may be added until the last of them has gone.
    pub fn begin(&mut self, left: usize) -> FarewellKey {
        self.0.insert(Farewell { left, owed: Vec::new() })
    }

    /// One thing more goes with those.
    pub fn add(&mut self, farewell: FarewellKey) {
        self.0[farewell].left += 1;
    }

    /// A reply is due when all of them have gone.
    pub fn owe(&mut self, farewell: FarewellKey, owed: OwedReply) {
        self.0[farewell].owed.push(owed);
    }

    /// One of them has gone. Returns the replies that are due now.
    pub fn one_gone(&mut self, farewell: FarewellKey) -> Vec<OwedReply> {
        let it = &mut self.0[farewell];
        it.left -= 1;
        if it.left > 0 {
            return Vec::new();
        }
        self.0.remove(farewell).expect("it was just there").owed
    }
}

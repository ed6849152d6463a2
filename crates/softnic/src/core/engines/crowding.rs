//! Whether the machine has processors for engines.
//!
//! An engine that loses its processor within a turn keeps the NIC's thread waiting, and its clients with it. So clients go home
//! when more threads want to run than there are processors, for as long as that lasts.

/// Looks in a row that find the machine crowded, after which clients go home. A single look finds threads that run for
/// microseconds.
const CROWDED_LOOKS: u32 = 4;
/// Looks in a row that find processors for the engines too, after which clients are lent again.
const FREE_LOOKS: u32 = 64;

/// The last looks at the machine's processors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowding {
    is_crowded: bool,
    /// Number of the last looks in a row that have found the opposite.
    looks: u32,
}

impl Crowding {
    /// Whether engines serve no clients.
    pub fn is_crowded(self) -> bool {
        self.is_crowded
    }

    /// Notes that a look has found the machine crowded, or free.
    pub fn note(&mut self, is_crowded: bool) {
        self.looks = if is_crowded == self.is_crowded { 0 } else { self.looks + 1 };
        if self.looks == if is_crowded { CROWDED_LOOKS } else { FREE_LOOKS } {
            *self = Self { is_crowded, looks: 0 };
        }
    }
}

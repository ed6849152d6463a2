//! The next turn of a machine, of which at most one is wanted.

use crate::clock::Nanos;

/// The time of a future event, of which at most one counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alarm {
    at: Option<Nanos>,
}

impl Alarm {
    /// Sets the alarm, unless it is set for this time or an earlier one. Returns whether a new event is needed.
    pub fn set(&mut self, at: Nanos) -> bool {
        let sooner = self.at.is_none_or(|set| at < set);
        if sooner {
            self.at = Some(at);
        }
        sooner
    }

    /// To be called by each event. Returns whether the event is the one that counts.
    pub fn ring(&mut self, at: Nanos) -> bool {
        let rings = self.at == Some(at);
        if rings {
            self.at = None;
        }
        rings
    }
}

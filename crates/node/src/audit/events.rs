//! The set of events that the audit log records.

use super::AuditEvent;
use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::str::FromStr;

/// A set of events. The node makes no record of an event that is not in its set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditEvents(u32);

impl AuditEvents {
    /// All events.
    #[must_use]
    pub const fn all() -> Self {
        Self(u32::MAX)
    }

    /// No events.
    #[must_use]
    pub const fn none() -> Self {
        Self(0)
    }

    /// Returns this set with `event`.
    #[must_use]
    pub const fn with(self, event: AuditEvent) -> Self {
        Self(self.0 | 1 << event as u32)
    }

    /// Returns the union of this set and `others`.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether `event` is in the set.
    #[must_use]
    pub const fn contains(self, event: AuditEvent) -> bool {
        self.0 & 1 << event as u32 != 0
    }
}

impl Default for AuditEvents {
    fn default() -> Self {
        Self::all()
    }
}

impl FromIterator<AuditEvent> for AuditEvents {
    fn from_iter<I: IntoIterator<Item = AuditEvent>>(events: I) -> Self {
        events.into_iter().fold(Self::none(), Self::with)
    }
}

/// Error: no event has that name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name:?} is not an event of the audit log: the events are {Names}")]
pub struct UnknownAuditEvent {
    name: String,
}

impl Coded for UnknownAuditEvent {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownAuditEvent
    }
}

/// The names of all events. They are written one by one: joining so many constants keeps the compiler busy for minutes.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, event) in AuditEvent::ALL.iter().enumerate() {
            f.write_str(if place > 0 { ", " } else { "" })?;
            f.write_str(event.name())?;
        }
        Ok(())
    }
}

impl FromStr for AuditEvent {
    type Err = UnknownAuditEvent;

    fn from_str(name: &str) -> Result<Self, UnknownAuditEvent> {
        let known = Self::ALL.into_iter().find(|event| event.name() == name);
        known.ok_or_else(|| UnknownAuditEvent { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_nothing_else() {
        for one in AuditEvent::ALL {
            let set: AuditEvents = [one].into_iter().collect();
            let held = AuditEvent::ALL.into_iter().filter(|&event| set.contains(event));
            assert_eq!(held.collect::<Vec<_>>(), [one]);
            assert!(AuditEvents::all().contains(one) && !AuditEvents::none().contains(one));
        }
    }

    #[test]
    fn a_union_of_sets_holds_what_either_holds() {
        let [one, other, third] = [AuditEvent::ALL[0], AuditEvent::ALL[1], AuditEvent::ALL[2]];
        let set = AuditEvents::none().with(one).and(AuditEvents::none().with(other));
        assert!(set.contains(one) && set.contains(other) && !set.contains(third));
    }

    #[test]
    fn events_go_by_their_names() {
        for event in AuditEvent::ALL {
            assert_eq!(event.name().parse(), Ok(event));
        }
        let told = "grants".parse::<AuditEvent>().expect_err("no event").to_string();
        assert!(
            told.contains("\"grants\"") && told.contains("grant, ") && told.contains("violation"),
            "{told}"
        );
    }
}

//! The machine's clock beside the node's time. People want to know when something happened; the node counts from its
//! start.

use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::Moment;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};
use time::format_description::StaticFormatDescription;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

/// The text format: RFC 3339, always of the same length, so that the texts sort as the times do.
const FORMAT: StaticFormatDescription =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
/// The largest difference between the machine's clock and its earlier readings before those readings are dropped. The
/// drift of a clock that is kept right is smaller.
const SLACK_US: i64 = 5_000;
/// The longest reading that is used. During a longer one the thread was held up, so the reading is meaningless.
const READING_US_MAX: u64 = 1_000;

/// A time of the machine's clock, in UTC, to the microsecond. Its text is RFC 3339: `2026-03-01T12:30:00.000250Z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WallTime {
    unix_us: i64,
}

impl From<SystemTime> for WallTime {
    fn from(time: SystemTime) -> Self {
        let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        let unix_us = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => micros(after),
            Err(before) => -micros(before.duration()),
        };
        Self { unix_us }
    }
}

impl From<WallTime> for SystemTime {
    fn from(time: WallTime) -> Self {
        let distance = Duration::from_micros(time.unix_us.unsigned_abs());
        let reached = if time.unix_us < 0 {
            Self::UNIX_EPOCH.checked_sub(distance)
        } else {
            Self::UNIX_EPOCH.checked_add(distance)
        };
        reached.unwrap_or(Self::UNIX_EPOCH)
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.unix_us) * 1_000);
        let text = time.map_err(|_| fmt::Error)?.format(FORMAT).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

/// The text is not an RFC 3339 time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time: write for example 2026-03-01T12:30:00Z")]
pub struct NoWallTime {
    text: String,
}

impl Coded for NoWallTime {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownTime
    }
}

impl FromStr for WallTime {
    type Err = NoWallTime;

    fn from_str(text: &str) -> Result<Self, NoWallTime> {
        let own = PrimitiveDateTime::parse(text, FORMAT).map(PrimitiveDateTime::assume_utc);
        let time = own.or_else(|_| OffsetDateTime::parse(text, &Rfc3339));
        time.map(|time| SystemTime::from(time).into()).map_err(|_| NoWallTime { text: text.to_owned() })
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A conversion from moments of the node's time to the machine's clock. It follows the machine's clock when that is
/// set, and does not change with each reading. Of two records the later one has the later time, unless the clock was
/// set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    /// The machine's clock at moment 0.
    unix_us: i64,
}

impl WallClock {
    /// Makes a clock from one reading: the machine's clock showed `wall` at `moment`.
    pub fn new(moment: Moment, wall: WallTime) -> Self {
        Self { unix_us: wall.unix_us.saturating_sub(signed(moment)) }
    }

    /// Adds a reading: the machine's clock showed `wall` between the moments `before` and `after`.
    pub fn observe(&mut self, before: Moment, wall: WallTime, after: Moment) {
        if after.since(before).0 > READING_US_MAX {
            return;
        }
        let seen = Self::new(before, wall);
        if seen.unix_us.abs_diff(self.unix_us) > SLACK_US.unsigned_abs() {
            *self = seen;
        }
    }

    /// The machine's clock at `moment`.
    pub fn at(&self, moment: Moment) -> WallTime {
        WallTime { unix_us: self.unix_us.saturating_add(signed(moment)) }
    }
}

fn signed(moment: Moment) -> i64 {
    i64::try_from(moment.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(text: &str) -> WallTime {
        text.parse().expect("a time")
    }

    #[test]
    fn times_are_written_as_rfc_3339_in_utc_and_read_back() {
        for text in
            ["2026-03-01T12:30:00.000250Z", "1970-01-01T00:00:00.000000Z", "1969-12-31T23:59:59.999999Z"]
        {
            let time = wall(text);
            assert_eq!(time.to_string(), text);
            assert_eq!(WallTime::from(SystemTime::from(time)), time);
            let json = serde_json::to_string(&time).expect("text");
            assert_eq!(serde_json::from_str::<WallTime>(&json).expect("a time"), time);
        }
        assert_eq!(wall("2026-03-01T13:30:00+01:00").to_string(), "2026-03-01T12:30:00.000000Z");
        assert!("yesterday".parse::<WallTime>().is_err());
    }

    #[test]
    fn moments_follow_the_machines_clock_when_it_is_set_forth_and_back() {
        let mut clock = WallClock::new(Moment(500), wall("2026-01-01T00:00:00.000500Z"));
        assert_eq!(clock.at(Moment(1_000_000)), wall("2026-01-01T00:00:01Z"));
        clock.observe(Moment(2_000_000), wall("2026-01-01T01:00:02Z"), Moment(2_000_010));
        assert_eq!(clock.at(Moment(3_000_000)), wall("2026-01-01T01:00:03Z"));
        clock.observe(Moment(4_000_000), wall("2025-12-31T23:59:04Z"), Moment(4_000_010));
        assert_eq!(clock.at(Moment(5_000_000)), wall("2025-12-31T23:59:05Z"));
    }

    #[test]
    fn a_reading_a_little_off_turns_no_order_round() {
        let mut clock = WallClock::new(Moment(0), wall("2026-01-01T00:00:00Z"));
        let earlier = clock.at(Moment(1_000));
        clock.observe(Moment(1_001), wall("2026-01-01T00:00:00Z"), Moment(1_100));
        assert!(clock.at(Moment(1_001)) > earlier);
    }

    #[test]
    fn a_reading_that_was_held_up_is_not_believed() {
        let mut clock = WallClock::new(Moment(0), wall("2026-01-01T00:00:00Z"));
        clock.observe(Moment(1_000), wall("2026-01-01T00:00:09Z"), Moment(9_000_000));
        assert_eq!(clock.at(Moment(0)), wall("2026-01-01T00:00:00Z"));
    }
}

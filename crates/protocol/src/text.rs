//! Times and incarnations as text, and the serde formats of types with a text.

use crate::{Incarnation, Lifetime};
use portcullis_errors::{Coded, ErrorCode};
use std::str::FromStr;

/// The text is not a time.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoLifetime {
    /// The text is not a number with a unit.
    #[error("{0:?} is no time: write for example 500us, 50ms or 10s")]
    Malformed(String),
    /// The text is a number without a unit.
    #[error("{0:?} has no unit: write for example 500us, 50ms or 10s")]
    NoUnit(String),
    /// The unit is unknown.
    #[error("{0:?} is no unit of time: use us, ms, s, min, h or d")]
    UnknownUnit(String),
    /// The time has a fraction finer than a microsecond.
    #[error("{0} is finer than a microsecond: give a whole number of them")]
    TooFine(String),
    /// The time is too long to be counted in microseconds.
    #[error("{0} is too long")]
    TooLong(String),
}

impl Coded for NoLifetime {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed(_) => ErrorCode::LifetimeMalformed,
            Self::NoUnit(_) => ErrorCode::LifetimeWithoutUnit,
            Self::UnknownUnit(_) => ErrorCode::LifetimeUnit,
            Self::TooFine(_) => ErrorCode::LifetimeTooFine,
            Self::TooLong(_) => ErrorCode::LifetimeTooLarge,
        }
    }
}

impl FromStr for Lifetime {
    type Err = NoLifetime;

    /// Reads a number with its unit, as in `500us`, `50 ms`, `1.5 s` or `2h`.
    fn from_str(text: &str) -> Result<Self, NoLifetime> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let micros: u64 = match unit.trim() {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            "" => return Err(NoLifetime::NoUnit(text.to_owned())),
            unknown => return Err(NoLifetime::UnknownUnit(unknown.to_owned())),
        };
        let malformed = || NoLifetime::Malformed(text.to_owned());
        let (whole, fraction) = match number.split_once('.') {
            Some((whole, fraction)) => (whole, decimals(fraction, micros, text)?),
            None => (number, 0),
        };
        if whole.is_empty() {
            return Err(malformed());
        }
        let too_long = || NoLifetime::TooLong(text.to_owned());
        let whole: u64 = whole.parse().map_err(|_| too_long())?;
        let whole = whole.checked_mul(micros).ok_or_else(too_long)?;
        whole.checked_add(fraction).map(Self).ok_or_else(too_long)
    }
}

/// Returns the digits behind the point, in microseconds. The unit has `micros` of them.
fn decimals(digits: &str, micros: u64, text: &str) -> Result<u64, NoLifetime> {
    if digits.is_empty() {
        return Err(NoLifetime::Malformed(text.to_owned()));
    }
    let mut sum = 0;
    let mut place = micros;
    for digit in digits.trim_end_matches('0').chars() {
        let digit = digit.to_digit(10).ok_or_else(|| NoLifetime::Malformed(text.to_owned()))?;
        if !place.is_multiple_of(10) {
            return Err(NoLifetime::TooFine(text.to_owned()));
        }
        place /= 10;
        sum += u64::from(digit) * place;
    }
    Ok(sum)
}

/// The text does not name a run of a node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no incarnation of a node: it is a hexadecimal number, as in 00c0ffee00c0ffee")]
pub struct UnknownIncarnation(String);

impl Coded for UnknownIncarnation {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownIncarnation
    }
}

impl FromStr for Incarnation {
    type Err = UnknownIncarnation;

    fn from_str(text: &str) -> Result<Self, UnknownIncarnation> {
        hexadecimal(text).map(Self).ok_or_else(|| UnknownIncarnation(text.to_owned()))
    }
}

/// Reads digits only: the standard parser would also accept a sign.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits)
}

#[cfg(feature = "serde")]
mod as_serde {
    use crate::{DirectoryName, Incarnation, Lifetime, Mechanism, Rights, Sharing, TenantName};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// Serializes as text in formats that people read, as a number in others.
    macro_rules! text_or_number {
        ($type:ty, $number:ty, $to:expr, $from:expr) => {
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    if serializer.is_human_readable() {
                        serializer.collect_str(self)
                    } else {
                        let to: fn(Self) -> $number = $to;
                        to(*self).serialize(serializer)
                    }
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    if deserializer.is_human_readable() {
                        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
                    } else {
                        let from: fn($number) -> Option<Self> = $from;
                        let number = <$number>::deserialize(deserializer)?;
                        from(number).ok_or_else(|| D::Error::custom(format!("{number} names none")))
                    }
                }
            }
        };
    }

    /// Serializes as text in every format.
    macro_rules! text {
        ($type:ty) => {
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str(self.as_str())
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
                }
            }
        };
    }

    text!(DirectoryName);
    text!(TenantName);
    text_or_number!(Incarnation, u64, |incarnation| incarnation.0, |number| Some(Self(number)));
    text_or_number!(Lifetime, u64, |lifetime| lifetime.0, |number| Some(Self(number)));
    text_or_number!(Mechanism, u8, Self::wire, Self::from_wire);
    text_or_number!(Rights, u8, |rights| rights.bits(), Self::from_bits);
    text_or_number!(Sharing, bool, |sharing| sharing == Self::Shared, |shared| {
        Some(if shared { Self::Shared } else { Self::Exclusive })
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mechanism, Rights, Sharing};
    use proptest::prelude::*;

    #[test]
    fn times_read_as_people_write_them() {
        for (text, micros) in [
            ("500us", 500),
            ("7 µs", 7),
            ("50 ms", 50_000),
            ("0.5ms", 500),
            ("10s", 10_000_000),
            ("1.5 s", 1_500_000),
            ("1.0 s", 1_000_000),
            ("1min", 60_000_000),
            ("1.5h", 5_400_000_000),
            ("7d", 604_800_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Lifetime(micros)), "{text}");
        }
        for wrong in [
            "",
            "10",
            "s",
            ".5s",
            "5.s",
            "1.2.3s",
            "1.5us",
            "3 fortnights",
            "-1s",
            "99999999999999999999s",
            "99999999999999min",
        ] {
            assert!(wrong.parse::<Lifetime>().is_err(), "{wrong}");
        }
    }

    fn reads_back<T: FromStr<Err: std::fmt::Debug> + ToString + PartialEq + std::fmt::Debug>(value: &T) {
        assert_eq!(&value.to_string().parse::<T>().expect("its own text"), value);
    }

    #[test]
    fn what_has_a_name_reads_back_from_it_and_other_names_say_what_there_is() {
        Mechanism::ALL.iter().for_each(reads_back);
        [Sharing::Exclusive, Sharing::Shared].iter().for_each(reads_back);
        (0..8).map(Rights::from_bits_retain).for_each(|rights| reads_back(&rights));
        assert_eq!("rw".parse(), Ok(Rights::READ | Rights::WRITE));
        for wrong in ["rr", "x", "r w"] {
            let error = wrong.parse::<Rights>().expect_err(wrong).to_string();
            assert!(error.contains("for example rw"), "{error}");
        }
        let error = "both".parse::<Sharing>().expect_err("none").to_string();
        assert!(error.contains("exclusive or shared"), "{error}");
        assert!("+1".parse::<Incarnation>().is_err() && "".parse::<Incarnation>().is_err());
    }

    proptest! {
        #[test]
        fn times_and_incarnations_read_back_from_their_text(number: u64, exact in 0u64..100_000) {
            for number in [number, exact, exact * 100, exact * 100_000] {
                reads_back(&Lifetime(number));
            }
            reads_back(&Incarnation(number));
        }

        #[test]
        fn any_text_is_a_time_or_an_error(text in "[0-9.]{0,24} ?[a-zµ]{0,3}") {
            let _ = text.parse::<Lifetime>();
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn what_programs_pass_on_reads_back_from_json_and_from_postcard() {
        use crate::Keep;
        type All = (Incarnation, Lifetime, Mechanism, Rights, Sharing, Keep);
        let all: All = (
            Incarnation(0xc0ffee),
            Lifetime::millis(50),
            Mechanism::NodeCopy,
            Rights::READ | Rights::ATOMIC,
            Sharing::Shared,
            Keep::For(Lifetime::seconds(10)),
        );
        let json = serde_json::to_string(&all).expect("text");
        assert_eq!(json, r#"["0000000000c0ffee","50.0 ms","node-copy","ra","shared",{"for":"10.0 s"}]"#);
        assert_eq!(serde_json::from_str::<All>(&json).expect("the same"), all);
        let bytes = postcard::to_allocvec(&all).expect("bytes");
        assert_eq!(postcard::from_bytes::<All>(&bytes).expect("the same"), all);
        assert!(postcard::from_bytes::<Mechanism>(&[9]).is_err(), "no such mechanism");
        let tenant: crate::TenantName = "orange".parse().expect("a name");
        let bytes = postcard::to_allocvec(&tenant).expect("bytes");
        assert_eq!(postcard::from_bytes::<crate::TenantName>(&bytes).expect("the same"), tenant);
        assert!(postcard::from_bytes::<crate::TenantName>(&[2, b'a', 0]).is_err(), "a control character");
    }
}

//! References to objects, which clients pass on to each other between processes, machines and restarts.

use crate::text::hexadecimal;
use crate::{Incarnation, RemoteAddress};
use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::str::FromStr;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Names one object for ever.
///
/// An address names only a place: after the object there was freed, or the node has started again, another object can
/// lie there. A reference also names the run of the node that it is from, and the object of that run. The node refuses
/// a reference to an object that has ended, and never opens another object for it.
///
/// As text, it is three hexadecimal numbers with hyphens between them. As bytes, it is 24 bytes, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectRef {
    /// The run of the node.
    pub incarnation: Incarnation,
    /// The address at which the object's bytes start.
    pub address: RemoteAddress,
    /// The number of the object in that run: the node numbers its objects from 1 and never uses a number twice.
    pub birth: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Wire {
    incarnation: U64,
    address: U64,
    birth: U64,
}

impl ObjectRef {
    /// Number of bytes of a reference.
    pub const BYTES: usize = size_of::<Wire>();

    /// Returns the reference as bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let Self { incarnation, address, birth } = self;
        let wire = Wire {
            incarnation: U64::new(incarnation.0),
            address: U64::new(address.0),
            birth: U64::new(birth),
        };
        zerocopy::transmute!(wire)
    }

    /// Returns the reference in `bytes`. Any bytes are a reference; the node knows whether it names an object.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let Wire { incarnation, address, birth } = zerocopy::transmute!(bytes);
        Self {
            incarnation: Incarnation(incarnation.get()),
            address: RemoteAddress(address.get()),
            birth: birth.get(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}-{:x}", self.incarnation, self.address.0, self.birth)
    }
}

/// The text is not an object reference.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no object reference: it is three hexadecimal numbers, as in 00c0ffee00c0ffee-100000210020-2a"
)]
pub struct UnknownObjectRef(String);

impl Coded for UnknownObjectRef {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownObjectRef
    }
}

impl FromStr for ObjectRef {
    type Err = UnknownObjectRef;

    fn from_str(text: &str) -> Result<Self, UnknownObjectRef> {
        let mut parts = text.split('-').map(hexadecimal);
        let numbers = [parts.next(), parts.next(), parts.next()].map(Option::flatten);
        match (numbers, parts.next()) {
            ([Some(incarnation), Some(address), Some(birth)], None) => {
                Ok(Self { incarnation: Incarnation(incarnation), address: RemoteAddress(address), birth })
            }
            _ => Err(UnknownObjectRef(text.to_owned())),
        }
    }
}

#[cfg(feature = "serde")]
mod as_serde {
    use super::ObjectRef;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// Serialized as text in formats that people read, as 24 bytes in others.
    impl Serialize for ObjectRef {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if serializer.is_human_readable() {
                serializer.collect_str(self)
            } else {
                self.to_bytes().serialize(serializer)
            }
        }
    }

    impl<'de> Deserialize<'de> for ObjectRef {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            if deserializer.is_human_readable() {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            } else {
                <[u8; ObjectRef::BYTES]>::deserialize(deserializer).map(Self::from_bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference() -> impl Strategy<Value = ObjectRef> {
        any::<(u64, u64, u64)>().prop_map(|(incarnation, address, birth)| ObjectRef {
            incarnation: Incarnation(incarnation),
            address: RemoteAddress(address),
            birth,
        })
    }

    proptest! {
        #[test]
        fn a_reference_reads_back_from_text_and_from_bytes(reference in reference()) {
            prop_assert_eq!(reference.to_string().parse(), Ok(reference));
            prop_assert_eq!(ObjectRef::from_bytes(reference.to_bytes()), reference);
        }

        #[cfg(feature = "serde")]
        #[test]
        fn a_reference_reads_back_from_json_and_from_postcard(reference in reference()) {
            let json = serde_json::to_string(&reference).expect("a string");
            prop_assert_eq!(serde_json::from_str::<ObjectRef>(&json).expect("the same"), reference);
            let bytes = postcard::to_allocvec(&reference).expect("bytes");
            prop_assert_eq!(postcard::from_bytes::<ObjectRef>(&bytes).expect("the same"), reference);
        }

        #[test]
        fn any_text_is_a_reference_or_an_error(text in "[0-9a-fA-F+x-]{0,60}") {
            if let Ok(reference) = text.parse::<ObjectRef>() {
                prop_assert_eq!(reference.to_string().parse(), Ok(reference));
            }
        }
    }

    #[test]
    fn what_is_no_reference_is_told_what_one_looks_like() {
        for wrong in ["", "1-2", "1-2-3-4", "1-+2-3", "1--3", "g-1-1", "11111111111111111-1-1", "0x1-1-1"] {
            let error = wrong.parse::<ObjectRef>().expect_err(wrong).to_string();
            assert!(error.contains("00c0ffee00c0ffee-100000210020-2a"), "{error}");
        }
    }
}

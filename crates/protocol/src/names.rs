//! Names in the directory: names of objects in their tenant, and names of tenants. A name fits into a control message.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::str::FromStr;

/// The kind of thing that a name names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// An object.
    Object,
    /// A tenant.
    Tenant,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "an object's name",
            Self::Tenant => "a tenant's name",
        })
    }
}

/// The text is not a valid name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadName {
    /// The text is empty or too long.
    #[error("{of} in the directory has 1 to {most} bytes of UTF-8, not {bytes}: choose another")]
    Length {
        /// The kind of thing that the text was to name.
        of: Named,
        /// The number of bytes of the text.
        bytes: usize,
        /// The most bytes that a name of this kind may have.
        most: usize,
    },
    /// The text has a control character, such as a line break.
    #[error("byte {at} of the text is a control character, which {of} in the directory must not have")]
    Control {
        /// The kind of thing that the text was to name.
        of: Named,
        /// The position of the first such byte.
        at: usize,
    },
}

impl Coded for BadName {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Length { of: Named::Object, .. } => ErrorCode::ObjectNameLength,
            Self::Control { of: Named::Object, .. } => ErrorCode::ObjectNameLetters,
            Self::Length { of: Named::Tenant, .. } => ErrorCode::TenantNameLength,
            Self::Control { of: Named::Tenant, .. } => ErrorCode::TenantNameLetters,
        }
    }
}

/// A text of 1 to `MOST` bytes of UTF-8 without control characters.
// The bytes come first and are padded with zeros, which no such text has: names are in the order of their texts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Letters<const MOST: usize> {
    bytes: [u8; MOST],
    length: u8,
}

impl<const MOST: usize> Letters<MOST> {
    fn new(text: &str, of: Named) -> Result<Self, BadName> {
        if !(1..=MOST).contains(&text.len()) {
            return Err(BadName::Length { of, bytes: text.len(), most: MOST });
        }
        if let Some((at, _)) = text.char_indices().find(|(_, letter)| letter.is_control()) {
            return Err(BadName::Control { of, at });
        }
        let mut bytes = [0; MOST];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).expect("no name is longer than a byte can count");
        Ok(Self { bytes, length })
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("it was made of a text")
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $most:literal, $of:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Letters<$most>);

        impl $name {
            /// The most bytes that such a name may have.
            pub const BYTES_MAX: usize = $most;

            /// Makes the name with this text.
            ///
            /// # Errors
            /// The text is empty or too long, or has a control character.
            pub fn new(text: &str) -> Result<Self, BadName> {
                Letters::new(text, $of).map(Self)
            }

            /// The text of the name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }

            /// Returns the text's bytes, padded with zeros, and the number of bytes of the text.
            pub(crate) fn padded(&self) -> ([u8; $most], u8) {
                (self.0.bytes, self.0.length)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                Self::new(text)
            }
        }
    };
}

name! {
    /// The name of an object in its tenant: 1 to 48 bytes of UTF-8 without control characters. Names are in the order
    /// of their bytes.
    DirectoryName, 48, Named::Object
}

name! {
    /// The name of a tenant with which something can be shared: 1 to 64 bytes of UTF-8 without control characters. All
    /// names that a certificate can give fit.
    TenantName, 64, Named::Tenant
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_has_1_to_48_bytes_and_no_control_characters() {
        for text in ["a", "table/7", "große Tabelle", &"x".repeat(48)] {
            assert_eq!(DirectoryName::new(text).map(|name| name.to_string()).as_deref(), Ok(text));
        }
        for (text, bytes) in [("", 0), (&*"x".repeat(49), 49), (&*"ß".repeat(25), 50)] {
            let told = DirectoryName::new(text).expect_err("of that length");
            assert_eq!(told, BadName::Length { of: Named::Object, bytes, most: 48 });
            assert_eq!(told.code(), ErrorCode::ObjectNameLength);
        }
        for (text, at) in [("a\nb", 1), ("\0", 0), ("ß\u{7f}", 2), ("ab\u{85}", 2)] {
            let told = DirectoryName::new(text).expect_err("such a character");
            assert_eq!(told, BadName::Control { of: Named::Object, at });
            assert_eq!(told.code(), ErrorCode::ObjectNameLetters);
        }
    }

    #[test]
    fn a_tenants_name_has_room_for_what_a_certificate_can_say() {
        assert!(TenantName::new(&"x".repeat(64)).is_ok());
        let told = TenantName::new(&"x".repeat(65)).expect_err("too long");
        assert_eq!(told.code(), ErrorCode::TenantNameLength);
        assert!(told.to_string().contains("a tenant's name in the directory has 1 to 64 bytes"), "{told}");
        assert_eq!(TenantName::new("a\tb").expect_err("a tab").code(), ErrorCode::TenantNameLetters);
    }

    proptest! {
        #[test]
        fn names_are_in_the_order_of_their_texts(one in "\\PC{1,12}", other in "\\PC{1,12}") {
            let names = [&one, &other].map(|text| DirectoryName::new(text));
            if let [Ok(first), Ok(second)] = names {
                prop_assert_eq!(first.cmp(&second), one.as_bytes().cmp(other.as_bytes()));
                prop_assert_eq!((first.as_str(), first == second), (&*one, one == other));
            }
        }
    }
}

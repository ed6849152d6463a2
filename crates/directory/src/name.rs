//! Names in the directory. A text is parsed into a name here, or into an error.

use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;
use std::fmt;
use std::str::FromStr;

/// A hierarchical name, such as `bank/payments/eu` (RPCool §4.2): one to [`Name::SEGMENTS_MAX`] segments with slashes
/// between them.
///
/// A segment has 1 to [`Name::SEGMENT_BYTES_MAX`] ASCII letters, digits and characters of `-_.:@+=`, and is neither `.`
/// nor `..`, so a name is also a path and a part of a URL. The first segment is the tenant that owns the name. A tenant
/// whose own name has other characters has no names in the directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(Box<str>);

/// The text is no name in the directory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty or too long.
    #[error("a name in the directory has 1 to {} bytes, not {bytes}", Name::BYTES_MAX)]
    Length {
        /// Number of bytes in the name.
        bytes: usize,
    },
    /// The name has too many segments.
    #[error("a name in the directory has at most {} segments, not {segments}", Name::SEGMENTS_MAX)]
    Segments {
        /// Number of segments in the name.
        segments: usize,
    },
    /// A segment is empty or too long.
    #[error(
        "segment {at} of the name has {bytes} bytes: between two slashes stand 1 to {}",
        Name::SEGMENT_BYTES_MAX
    )]
    SegmentLength {
        /// The segment's index, from 0.
        at: usize,
        /// Number of bytes in the segment.
        bytes: usize,
    },
    /// The name has a character that names may not have.
    #[error(
        "byte {at} of the name is {letter:?}: names have ASCII letters, digits and the characters -_.:@+=, with / between them"
    )]
    Letter {
        /// The index of the first such byte.
        at: usize,
        /// The character.
        letter: char,
    },
    /// A segment is `.` or `..`.
    #[error("segment {at} of the name is only dots, as if it were a path: choose another")]
    Dots {
        /// The segment's index, from 0.
        at: usize,
    },
}

impl Coded for NameError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Length { .. } | Self::Segments { .. } | Self::SegmentLength { .. } => {
                ErrorCode::EntryNameLength
            }
            Self::Letter { .. } | Self::Dots { .. } => ErrorCode::EntryNameLetters,
        }
    }
}

impl Name {
    /// Maximum size of a name in bytes.
    pub const BYTES_MAX: usize = 255;
    /// Maximum number of segments in a name.
    pub const SEGMENTS_MAX: usize = 16;
    /// Maximum size of a segment in bytes.
    pub const SEGMENT_BYTES_MAX: usize = 64;

    /// Parses a name.
    ///
    /// # Errors
    /// The text is not a name: see [`Name`].
    pub fn new(text: &str) -> Result<Self, NameError> {
        if !(1..=Self::BYTES_MAX).contains(&text.len()) {
            return Err(NameError::Length { bytes: text.len() });
        }
        if let Some((at, letter)) = text.char_indices().find(|&(_, letter)| !is_allowed(letter)) {
            return Err(NameError::Letter { at, letter });
        }
        let segments = text.split('/').count();
        if segments > Self::SEGMENTS_MAX {
            return Err(NameError::Segments { segments });
        }
        for (at, segment) in text.split('/').enumerate() {
            match segment.len() {
                0 => return Err(NameError::SegmentLength { at, bytes: 0 }),
                bytes if bytes > Self::SEGMENT_BYTES_MAX => {
                    return Err(NameError::SegmentLength { at, bytes });
                }
                _ if matches!(segment, "." | "..") => return Err(NameError::Dots { at }),
                _ => {}
            }
        }
        Ok(Self(text.into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the tenant that owns the name: its first segment.
    ///
    /// # Panics
    /// Never: a segment has no more bytes than a tenant's name, and no control characters.
    #[must_use]
    pub fn tenant(&self) -> TenantName {
        let first = self.0.split('/').next().unwrap_or_default();
        TenantName::new(first).expect("a segment is a tenant's name")
    }

    /// Whether the name belongs to this tenant: its first segment is the tenant.
    #[must_use]
    pub fn is_of(&self, tenant: &TenantName) -> bool {
        self.0.split('/').next() == Some(tenant.as_str())
    }

    /// Whether the name lies below another one: `a/b/c` lies below `a/b` and `a`, and no name below itself.
    #[must_use]
    pub fn is_below(&self, above: &Self) -> bool {
        self.0.strip_prefix(&*above.0).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Returns the names above this one, the nearest first. For `a/b/c` these are `a/b` and `a`.
    pub fn above(&self) -> impl Iterator<Item = Self> + '_ {
        self.0.rmatch_indices('/').map(|(at, _)| Self(self.0[..at].into()))
    }
}

fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "/-_.:@+=".contains(letter)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_told_why() {
        let long = "x".repeat(65);
        let deep = ["a"; 17].join("/");
        let endless = ["x".repeat(64), "y".repeat(64), "z".repeat(64), "w".repeat(63)].join("/");
        let cases = [
            ("", NameError::Length { bytes: 0 }),
            (&*endless, NameError::Length { bytes: 258 }),
            (&*long, NameError::SegmentLength { at: 0, bytes: 65 }),
            (&*deep, NameError::Segments { segments: 17 }),
            ("/a", NameError::SegmentLength { at: 0, bytes: 0 }),
            ("a/", NameError::SegmentLength { at: 1, bytes: 0 }),
            ("a//b", NameError::SegmentLength { at: 1, bytes: 0 }),
            ("a/../b", NameError::Dots { at: 1 }),
            (".", NameError::Dots { at: 0 }),
            ("a b", NameError::Letter { at: 1, letter: ' ' }),
            ("a\0", NameError::Letter { at: 1, letter: '\0' }),
            ("aß", NameError::Letter { at: 1, letter: 'ß' }),
            ("a%2f", NameError::Letter { at: 1, letter: '%' }),
        ];
        for (text, error) in cases {
            assert_eq!(Name::new(text), Err(error), "{text:?}");
        }
        for text in ["a", "bank/payments/eu", "user:1000/x@y", "a/...", &["a"; 16].join("/"), &"x".repeat(64)]
        {
            assert_eq!(Name::new(text).expect("a name").as_str(), text);
        }
    }

    #[test]
    fn a_name_belongs_to_its_first_segment_and_lies_below_others() {
        let name = Name::new("bank/payments/eu").expect("a name");
        assert_eq!(name.tenant().as_str(), "bank");
        let longest = Name::new(&"x".repeat(Name::SEGMENT_BYTES_MAX)).expect("a name");
        assert_eq!(longest.tenant().as_str(), longest.as_str());
        let above: Vec<_> = name.above().map(|name| name.to_string()).collect();
        assert_eq!(above, ["bank/payments", "bank"]);
        let others = ["bank/payments", "bank", "ban", "bank/pay", "bank/payments/eu", "bank/payments/eu/x"];
        let below: Vec<_> =
            others.into_iter().filter(|it| name.is_below(&Name::new(it).expect("a name"))).collect();
        assert_eq!(below, ["bank/payments", "bank"]);
        assert!(name.is_of(&TenantName::new("bank").expect("a tenant")));
        assert!(!name.is_of(&TenantName::new("ban").expect("a tenant")));
        assert!(!name.is_of(&TenantName::new("bank/payments").expect("a tenant")));
    }
}

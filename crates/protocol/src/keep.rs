//! How long objects are kept.

use crate::Lifetime;

/// How long an object stays after its last permission has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Keep {
    /// Not at all: the object ends with its last permission.
    #[default]
    No,
    /// Until it is freed, or the last client of its tenant has gone.
    Attached,
    /// Until it is freed, or the last client of its tenant has been gone for this long: a producer may restart.
    For(Lifetime),
    /// Until it is freed, or the node ends.
    Pinned,
}

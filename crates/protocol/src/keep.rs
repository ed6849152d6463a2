//! The time for which objects are kept.

use crate::Lifetime;

/// The time for which an object stays after its last permission has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Keep {
    /// The object ends with its last permission.
    #[default]
    No,
    /// The object stays until it is freed, or until the last client of its tenant has left.
    Attached,
    /// The object stays until it is freed, or until the last client of its tenant has left this long ago: a producer
    /// may restart.
    For(Lifetime),
    /// The object stays until it is freed, or until the node ends.
    Pinned,
}

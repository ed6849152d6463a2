//! The treatment of the permissions over an object that is freed.

/// The treatment of the permissions over an object that is freed, and the event that the answer to the request waits
/// for.
///
/// The variants are in the order of how much they require of the holders. With each of them, no permission over the
/// object, no name and no share of the object is granted any more after the answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Holders {
    /// The permissions stay, and can be extended. The memory is freed with the last one. The answer waits for none of
    /// them.
    #[default]
    Stay,
    /// The permissions stay, and can be extended. The answer is sent when the last one has ended and the memory is
    /// free.
    Await,
    /// The node ends the permissions. The answer is sent when no access reaches the memory any more, and the memory is
    /// free.
    End,
}

//! What becomes of the permissions over an object that is freed.

/// What becomes of the permissions over an object that is freed, and what the answer to the request waits for.
///
/// In the order of how much it asks of the holders. Whichever it is: after the answer no permission over the object, no name and no share of the object is granted any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Holders {
    /// They stay, and can be extended. The memory goes with the last one. The answer waits for none of them.
    #[default]
    Stay,
    /// They stay, and can be extended. The answer comes when the last one has ended and the memory is free.
    Await,
    /// The node ends them. The answer comes when no access reaches the memory any more, and the memory is free.
    End,
}

//! What a permission allows, and beside whom.

bitflags::bitflags! {
    /// What the holder of a permission may do with its bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Rights: u8 {
        /// READ.
        const READ = 1;
        /// WRITE.
        const WRITE = 2;
        /// COMPARE_AND_SWAP and FETCH_AND_ADD.
        const ATOMIC = 4;
    }
}

impl Rights {
    /// `r`, `w` and `a` for the rights held, as the audit log and the error texts spell them.
    #[must_use]
    pub fn letters(self) -> String {
        [(Self::READ, 'r'), (Self::WRITE, 'w'), (Self::ATOMIC, 'a')]
            .into_iter()
            .filter(|(right, _)| self.contains(*right))
            .map(|(_, letter)| letter)
            .collect()
    }
}

/// Whether others may hold a permission over the same object at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Sharing {
    /// Nobody else holds one.
    #[default]
    Exclusive,
    /// Any number of holders, all of them shared.
    Shared,
}

//! Counts of what became of keys.

/// Declares the counts, each with its documentation.
macro_rules! counters {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Counts since the handle was made.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Counters {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns the sums of these counts and others.
            #[must_use]
            pub fn and(self, other: Self) -> Self {
                Self { $($name: self.$name + other.$name,)* }
            }

            /// Returns each count with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Blocks that were read as a whole.
    hits,
    /// Keys without a block.
    absent,
    /// Blocks of another length than the caller's buffer.
    other_length,
    /// Blocks that were freed when the handle wanted to read them: evicted, or lost with their node.
    gone,
    /// Blocks that another client held exclusively, to store or to evict them.
    busy,
    /// Reads that the node refused since their permission had ended.
    late,
    /// Look-ups and reads that failed for another reason.
    failed,
    /// Blocks that were stored.
    stored,
    /// Blocks that were there already, and were not stored again.
    there_already,
    /// Blocks that were not stored since there is no room.
    refused,
    /// Blocks that this handle has evicted.
    evicted,
    /// Bytes of blocks that this handle has evicted.
    evicted_bytes,
    /// Blocks that the handle has removed.
    removed,
}

//! Structures of counts that only grow: what has come since an earlier reading, and sums.

/// Gives a structure of numbers `add` and `since`.
macro_rules! counts {
    ($type:ty: $($field:ident),+ $(,)?) => {
        impl $type {
            /// Adds what another has counted.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }

            /// What has come since an earlier reading.
            pub fn since(&self, before: &Self) -> Self {
                Self { $($field: self.$field - before.$field),+ }
            }
        }
    };
}

pub(super) use counts;

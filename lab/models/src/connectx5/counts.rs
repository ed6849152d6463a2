//! Structures of counts that only grow: their sums, and their differences since an earlier reading.

/// Gives a structure of numbers the functions `add` and `since`.
macro_rules! counts {
    ($type:ty: $($field:ident),+ $(,)?) => {
        impl $type {
            /// Adds another structure's counts.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }

            /// The difference since an earlier reading.
            pub fn since(&self, before: &Self) -> Self {
                Self { $($field: self.$field - before.$field),+ }
            }
        }
    };
}

pub(super) use counts;

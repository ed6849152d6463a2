//! The set of an operation's bytes that have arrived, in any order and any number of times (1RMA §3.1).

/// The bytes that have arrived, as spans in order that do not touch each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals(Vec<(u32, u32)>);

impl Arrivals {
    /// Adds the bytes from `start` up to `end`.
    pub fn add(&mut self, start: u32, end: u32) {
        let (mut first, mut last) = (start, end);
        self.0.retain(|&(from, to)| {
            let touches = from <= last && first <= to;
            if touches {
                (first, last) = (first.min(from), last.max(to));
            }
            !touches
        });
        let place = self.0.partition_point(|&(from, _)| from < first);
        self.0.insert(place, (first, last));
    }

    /// Whether all bytes of an operation of this length have arrived.
    pub fn is_all(&self, length: u32) -> bool {
        length == 0 || self.0 == [(0, length)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_all_when_each_byte_has_come(parts in prop::collection::vec((0u32..64, 1u32..16), 0..30)) {
            let mut arrivals = Arrivals::default();
            let mut bytes = [false; 64];
            for (start, length) in parts {
                let end = (start + length).min(64);
                arrivals.add(start, end);
                bytes[start as usize..end as usize].fill(true);
                prop_assert_eq!(arrivals.is_all(64), bytes.iter().all(|&it| it));
            }
        }
    }
}

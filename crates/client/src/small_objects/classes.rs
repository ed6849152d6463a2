//! Size classes of small objects.

/// Bytes of the smallest object.
const OBJECT_BYTES_MIN: u64 = 16;
/// Sizes are multiples of this, so that each object takes atomics.
const WORD: u64 = 8;
/// Number of classes from one power of two to the next.
const STEPS: u64 = 4;
/// The greatest number of objects in a chunk up to which each number has a class of its own.
const FEW: u64 = 8;

/// The size classes of a chunk: multiples of a quarter of a power of two, each widened so that its objects fill the
/// chunk; then an eighth of the chunk, a seventh, and so on up to the whole. So an object of more than 64 bytes wastes
/// at most a quarter of its place, and an object of more than an eighth of a chunk shares the chunk with as many
/// objects of its size as fit.
#[derive(Clone, Debug)]
pub(super) struct SizeClasses {
    /// Bytes of an object of each class, ascending. The last class is the whole chunk.
    sizes: Vec<u64>,
}

impl SizeClasses {
    /// Computes the classes of a chunk of `chunk_bytes` bytes.
    pub fn of_chunk(chunk_bytes: u64) -> Self {
        let place_of = |objects: u64| chunk_bytes / objects / WORD * WORD;
        let mut sizes = Vec::new();
        let mut size = OBJECT_BYTES_MIN;
        while size < place_of(FEW) {
            sizes.push(place_of(chunk_bytes / size));
            let power = 1 << size.ilog2();
            size += (power / STEPS).max(WORD);
        }
        sizes.extend(
            (1..=FEW).rev().map(place_of).filter(|place| *place >= OBJECT_BYTES_MIN.min(chunk_bytes)),
        );
        sizes.dedup();
        Self { sizes }
    }

    /// The smallest class with room for `bytes` bytes. `None`: a chunk has fewer bytes.
    pub fn class_of(&self, bytes: u64) -> Option<usize> {
        let class = self.sizes.partition_point(|size| *size < bytes);
        (class < self.sizes.len()).then_some(class)
    }

    /// Bytes of an object of a class.
    pub fn object_bytes(&self, class: usize) -> u64 {
        self.sizes[class]
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        *self.sizes.last().expect("the chunk itself is a class")
    }

    /// Number of objects of a class that a chunk has room for.
    pub fn objects(&self, class: usize) -> u32 {
        u32::try_from(self.chunk_bytes() / self.sizes[class]).expect("a chunk has fewer")
    }

    /// Number of classes.
    pub fn count(&self) -> usize {
        self.sizes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_has_room_for_what_it_was_chosen_for_and_is_the_smallest(
            words in 1u64..=1 << 17, bytes in 1u64..=1 << 20,
        ) {
            let classes = SizeClasses::of_chunk(words * WORD);
            match classes.class_of(bytes) {
                None => prop_assert!(bytes > words * WORD),
                Some(class) => {
                    prop_assert!(classes.object_bytes(class) >= bytes);
                    prop_assert!(class == 0 || classes.object_bytes(class - 1) < bytes);
                }
            }
        }

        #[test]
        fn objects_of_a_class_fit_into_a_chunk_and_take_atomics(words in 1u64..=1 << 17) {
            let classes = SizeClasses::of_chunk(words * WORD);
            prop_assert!(classes.sizes.is_sorted_by(|one, next| one < next));
            for class in 0..classes.count() {
                let (size, objects) = (classes.object_bytes(class), u64::from(classes.objects(class)));
                prop_assert!(size.is_multiple_of(WORD) && objects >= 1);
                prop_assert!(size * objects <= classes.chunk_bytes());
            }
        }

        #[test]
        fn objects_that_are_neither_tiny_nor_large_waste_a_quarter_at_the_most(
            chunk in prop::sample::select(vec![4096u64, 8192, 65536, 1 << 20]), per_mille in 0u64..1000,
        ) {
            let classes = SizeClasses::of_chunk(chunk);
            let bytes = 65 + (chunk / 8 - 65) * per_mille / 1000;
            let class = classes.class_of(bytes).expect("it is less than a chunk");
            // The bytes that a chunk leaves over are shared by its objects.
            let place = chunk as f64 / f64::from(classes.objects(class));
            prop_assert!(bytes as f64 >= place * 0.75, "{bytes} in {place}");
        }

        #[test]
        fn large_objects_share_a_chunk_with_as_many_as_fit(chunk in 64u64..1 << 17, per_mille in 125u64..1000) {
            let classes = SizeClasses::of_chunk(chunk * WORD);
            let bytes = chunk * WORD * per_mille / 1000;
            let class = classes.class_of(bytes).expect("it is less than a chunk");
            prop_assert_eq!(u64::from(classes.objects(class)), chunk * WORD / bytes.next_multiple_of(WORD));
        }
    }
}

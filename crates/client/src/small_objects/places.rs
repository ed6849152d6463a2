//! The places of one chunk, and which of them are taken.

/// Number of places in a word of the bit map.
const BITS: usize = 64;

/// The places of a chunk, all of one size.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// One bit for each place, which is set while the place is free.
    free: Vec<u64>,
    /// For each place, how often it was taken or freed: odd while the place is taken. The number wraps after two
    /// thousand million uses of one place.
    births: Vec<u32>,
    taken: u32,
}

impl Places {
    /// Makes `count` places, all free.
    pub fn new(count: u32) -> Self {
        let count = count as usize;
        let bits = |word: usize| (count - word * BITS).min(BITS);
        let full = |bits: usize| if bits == BITS { u64::MAX } else { (1 << bits) - 1 };
        let free = (0..count.div_ceil(BITS)).map(|word| full(bits(word))).collect();
        Self { free, births: vec![0; count], taken: 0 }
    }

    /// Takes the first free place. Returns it with its birth.
    pub fn take(&mut self) -> Option<(u32, u32)> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let place = word * BITS + self.free[word].trailing_zeros() as usize;
        self.free[word] &= self.free[word] - 1;
        self.births[place] = self.births[place].wrapping_add(1);
        self.taken += 1;
        Some((u32::try_from(place).expect("a chunk has fewer"), self.births[place]))
    }

    /// Returns whether the object that took the place with this birth is still there.
    pub fn has(&self, place: u32, birth: u32) -> bool {
        birth % 2 == 1 && self.births.get(place as usize) == Some(&birth)
    }

    /// Frees a place.
    pub fn give_back(&mut self, place: u32) {
        let place = place as usize;
        self.free[place / BITS] |= 1 << (place % BITS);
        self.births[place] = self.births[place].wrapping_add(1);
        self.taken -= 1;
    }

    pub fn is_full(&self) -> bool {
        self.taken as usize == self.births.len()
    }

    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }
}

//! The fuzzer's bytes, read piece by piece. After the end all bytes are zero.

/// The unread rest of an input.
pub struct Input<'a> {
    left: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, left) = self.left.split_at(most.min(self.left.len()));
        self.left = left;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn half(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `count`.
    pub fn choice(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// A number. More often than not it is one of `known`.
    pub fn number(&mut self, known: &[u64]) -> u64 {
        match self.choice(8) {
            0 => self.word(),
            1 => u64::from(self.byte()),
            2 => u64::from(self.short()),
            3 => u64::MAX - u64::from(self.byte()),
            4 => known[self.choice(known.len())].wrapping_add(u64::from(self.byte())),
            5 => known[self.choice(known.len())].wrapping_sub(u64::from(self.byte())),
            _ => known[self.choice(known.len())],
        }
    }
}

/// A word that an input contains only by chance: a hash of the input.
pub fn secret(bytes: &[u8]) -> u64 {
    let fold =
        |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold) | 0x8000_0000_0000_0001
}

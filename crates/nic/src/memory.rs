//! Memory that a NIC may change at any moment.

/// Memory that can be registered with a NIC. Bytes are copied in and out: no reference into it exists, since peers
/// write it whenever they may.
///
/// Offsets count from the memory's start. Like slices, every method panics when the span it is given lies outside
/// the memory: offsets that a peer chose are checked by whoever takes them in.
pub trait Memory: Clone {
    /// Bytes.
    fn length(&self) -> u64;

    /// Copies bytes out, from `offset` on.
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies bytes in, from `offset` on.
    fn write(&self, offset: u64, from: &[u8]);

    /// Overwrites a span with zeros.
    fn zero(&self, offset: u64, length: u64);

    /// The aligned 8-byte word at `offset`, in the machine's byte order; with acquire ordering.
    fn load(&self, offset: u64) -> u64;

    /// Stores an aligned 8-byte word, with release ordering.
    fn store(&self, offset: u64, value: u64);
}

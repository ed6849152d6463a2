//! The memory of a run: the objects of all clients have room on the machine. The working set of memcpy takes as much, but
//! in the rows of reads not at the same time: their node has ended then.

use super::super::BenchError;
use super::reads::Reads;
use super::{BenchScaleOptions, VALUE_BYTES};
use portcullis::host::available_memory;

/// Bytes of each client's object, if there is room.
const OBJECT_BYTES: u64 = 64 << 20;
/// Bytes of an object below which a row would measure caches only.
const OBJECT_BYTES_MIN: u64 = 1 << 20;
/// Bytes of the session of a client that uses a structure, with its queues: its arena is lent whole.
const SESSION_BYTES: u64 = 72 << 20;
/// Bytes that a run takes besides: node, table, gateway.
const BESIDE: u64 = 192 << 20;
/// Keys of the table at most.
const TABLE_KEYS_MAX: u64 = 200_000;

/// The memory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    pub object_bytes: u64,
    /// Whether the objects are smaller than usual, because the machine has too little memory.
    pub reduced: bool,
}

impl Sizing {
    /// The sizes that these options give on this machine.
    ///
    /// # Errors
    /// A block does not fit into an object, or there is too little memory.
    pub fn new(options: &BenchScaleOptions, clients: &[u32]) -> Result<Self, BenchError> {
        let block = options.largest_block();
        if let Some(bytes) = options.object_bytes.filter(|&bytes| bytes < u64::from(block).max(1)) {
            return Err(BenchError::Options(format!(
                "--object-bytes {bytes} is less than a block of {block} bytes: give more, or smaller --sizes"
            )));
        }
        let most = clients.iter().copied().max().unwrap_or(1);
        Self::within(options.object_bytes, (most, block), available_memory().unwrap_or(u64::MAX))
    }

    /// The sizes for this many clients with `there` bytes of memory. A quarter of the memory stays free.
    fn within(wanted: Option<u64>, (clients, block): (u32, u32), there: u64) -> Result<Self, BenchError> {
        let fits = |object_bytes| taken(object_bytes, (clients, block)) <= there - there / 4;
        let object_bytes = wanted.unwrap_or(OBJECT_BYTES);
        if fits(object_bytes) {
            return Ok(Self { object_bytes, reduced: false });
        }
        let least = OBJECT_BYTES_MIN.max(u64::from(block).next_power_of_two());
        let halves = (1..).map(|shift| object_bytes >> shift).take_while(|&bytes| bytes >= least);
        match halves.into_iter().find(|&bytes| wanted.is_none() && fits(bytes)) {
            Some(object_bytes) => Ok(Self { object_bytes, reduced: true }),
            None => Err(BenchError::Memory(format!(
                "{clients} clients with objects of {object_bytes} bytes take {} bytes, and three quarters of the {there} \
                 bytes that are available may be used: give less --object-bytes or fewer --clients",
                taken(object_bytes, (clients, block))
            ))),
        }
    }

    /// Number of keys of the table.
    pub fn table_keys(self) -> u32 {
        let keys = (self.object_bytes / u64::from(VALUE_BYTES)).clamp(1, TABLE_KEYS_MAX);
        u32::try_from(keys).expect("they are few")
    }
}

/// Bytes that a run takes at most.
fn taken(object_bytes: u64, (clients, block): (u32, u32)) -> u64 {
    let session = SESSION_BYTES.max(Reads::arena_bytes(block.max(1).into()));
    object_bytes.saturating_add(session).saturating_mul(clients.into()).saturating_add(BESIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn objects_are_halved_until_they_fit_unless_their_size_was_given() {
        let usual = Sizing { object_bytes: OBJECT_BYTES, reduced: false };
        assert_eq!(Sizing::within(None, (2, 64), 4 * GIB).expect("room"), usual);
        let less = Sizing::within(None, (8, 64), GIB + GIB / 4).expect("room for less");
        assert!(less.reduced && less.object_bytes < OBJECT_BYTES, "{less:?}");
        assert!(taken(less.object_bytes, (8, 64)) <= GIB);
        for (wanted, there) in [(Some(OBJECT_BYTES), GIB), (None, GIB / 4), (Some(u64::MAX), GIB)] {
            let error = Sizing::within(wanted, (8, 64), there).expect_err("too little memory").to_string();
            assert!(error.contains("--object-bytes") && error.contains("--clients"), "{error}");
        }
    }

    #[test]
    fn a_halved_object_still_has_room_for_a_block() {
        let block = 16 << 20;
        let less = Sizing::within(None, (8, block), GIB + GIB / 4).expect("room for less");
        assert!(less.object_bytes >= u64::from(block), "{less:?}");
    }
}

//! The value that a request carries through the device, so that its completion can be matched to it.
//!
//! A failed request's completion defines only `wr_id`, so that number holds everything: the queue pair's slot, which of
//! the two queues, the position in it, and the epoch. The epoch distinguishes a queue pair from itself before a reset
//! and from earlier queue pairs in its slot, whose completions not every provider removes.

const POSITION_BITS: u32 = 24;
const EPOCH_BITS: u32 = 16;
const SLOT_BITS: u32 = 23;

/// The most queue pairs that a NIC can have.
pub(crate) const SLOTS_MAX: u32 = 1 << SLOT_BITS;

/// The contents of a `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub slot: u32,
    pub epoch: u16,
    pub position: u32,
    /// Whether the request is in the receive queue.
    pub receive: bool,
}

impl Ticket {
    #[inline]
    pub fn number(self) -> u64 {
        u64::from(self.position)
            | u64::from(self.epoch) << POSITION_BITS
            | u64::from(self.slot) << (POSITION_BITS + EPOCH_BITS)
            | u64::from(self.receive) << 63
    }

    #[inline]
    pub fn of_number(number: u64) -> Self {
        let bits = |from: u32, count: u32| (number >> from) & ((1 << count) - 1);
        Self {
            slot: u32::try_from(bits(POSITION_BITS + EPOCH_BITS, SLOT_BITS)).unwrap_or(0),
            epoch: u16::try_from(bits(POSITION_BITS, EPOCH_BITS)).unwrap_or(0),
            position: u32::try_from(bits(0, POSITION_BITS)).unwrap_or(0),
            receive: number >> 63 == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_ticket_reads_back(
            slot in 0..SLOTS_MAX, epoch: u16, position in 0_u32..1 << POSITION_BITS, receive: bool,
        ) {
            let ticket = Ticket { slot, epoch, position, receive };
            prop_assert_eq!(Ticket::of_number(ticket.number()), ticket);
        }
    }
}

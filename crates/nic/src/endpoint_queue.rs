//! The queues of a client's end, as its completions name them.

use crate::QpId;

const CONTROL: QpId = QpId(u32::MAX);
const ASKING: [QpId; 2] = [QpId(u32::MAX - 1), QpId(u32::MAX - 2)];
const ONE_SHOT: QpId = QpId(u32::MAX - 3);

/// The queue of a client's end that a completion belongs to ([`Completion::queue_pair`](crate::Completion)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointQueue {
    /// The control queue pair.
    Control,
    /// The queue pair of this place among those on which the client requests chunks.
    Asking(usize),
    /// No queue pair: the operation was posted by
    /// [`OneShotOperations::post_one_shot`](crate::OneShotOperations::post_one_shot).
    OneShot,
    /// The data queue pair of this number.
    Data(u32),
}

impl EndpointQueue {
    /// Returns the number of the queue in completions.
    ///
    /// # Panics
    /// There are two queue pairs for requests about chunks, and no third.
    #[must_use]
    pub const fn label(self) -> QpId {
        match self {
            Self::Control => CONTROL,
            Self::Asking(place) => ASKING[place],
            Self::OneShot => ONE_SHOT,
            Self::Data(number) => QpId(number),
        }
    }

    /// Returns the queue that has this number in completions.
    #[must_use]
    #[inline]
    pub fn of(label: QpId) -> Self {
        match label {
            CONTROL => Self::Control,
            ONE_SHOT => Self::OneShot,
            label if label == ASKING[0] => Self::Asking(0),
            label if label == ASKING[1] => Self::Asking(1),
            QpId(number) => Self::Data(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::EndpointQueue;

    #[test]
    fn a_queue_is_read_back_from_its_number() {
        use EndpointQueue::{Asking, Control, Data, OneShot};
        for queue in [Control, OneShot, Asking(0), Asking(1), Data(0), Data(31)] {
            assert_eq!(EndpointQueue::of(queue.label()), queue);
        }
    }
}

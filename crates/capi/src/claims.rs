//! Claims: an entry of a queue is delivered again unless its consumer acknowledges it.

use crate::border::{Target, call, given};
use crate::handles::{self, Inside, QueueHandle, QueueState};
use portcullis::Lifetime;
use portcullis_foreign::{Failure, Misuse};
use portcullis_structures::queue::{Claim as Claimed, ClaimId, QueueError};
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

/// Options with which an entry is claimed. All zeros: the lease is 30 s, the call does not wait for an entry, and an
/// entry is delivered however often it was delivered before.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ClaimOptions {
    /// Time after which the entry is delivered again unless it is acknowledged, in microseconds: 1 ms to 4,194 s. Zero:
    /// 30 s.
    pub lease: u64,
    /// Longest time that the call waits for an entry, in microseconds. Zero: the call does not wait.
    pub wait: u64,
    /// Queue that receives the entries that were delivered `deliveries_max` times. Zeros: no queue receives them, and
    /// all entries are delivered.
    pub dead_letters: QueueHandle,
    /// Number of deliveries after which an entry is a dead letter: 1 to 1,022. Zero if `dead_letters` is zeros.
    pub deliveries_max: u32,
    /// Reserved: zero.
    pub reserved: u32,
}

/// A consumer's claim on an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Claim {
    /// Words that identify the claim. Calls with other words return an error.
    pub words: [u64; 3],
    /// Number of times that the entry was delivered, including this delivery. Deliveries beyond 1,023 are not counted.
    pub deliveries: u32,
    /// Reserved: zero.
    pub reserved: u32,
}

impl From<ClaimId> for Claim {
    fn from(claim: ClaimId) -> Self {
        Self { words: claim.to_words(), deliveries: claim.deliveries(), reserved: 0 }
    }
}

impl Claim {
    fn id(self) -> ClaimId {
        ClaimId::from_words(self.words)
    }
}

// The message below and the header contain this number.
const _: () = assert!(*ClaimId::DELIVERIES_MAX.end() == 1022);
const USUAL_LEASE: Lifetime = Lifetime::seconds(30);

impl ClaimOptions {
    fn lease(&self) -> Lifetime {
        if self.lease == 0 { USUAL_LEASE } else { Lifetime(self.lease) }
    }

    /// Enters the queue of dead letters, if the options name one.
    fn dead_letters(&self, queue: QueueHandle) -> Result<Option<Inside<'static, QueueState>>, Misuse> {
        let wrong = |argument, wrong| Err(Misuse::Argument { argument, wrong });
        match (self.dead_letters.id, self.deliveries_max) {
            (0, 0) => Ok(None),
            (0, _) => wrong("dead_letters", "is not a queue, although deliveries_max is given"),
            (_, most) if !ClaimId::DELIVERIES_MAX.contains(&most) => {
                wrong("deliveries_max", "is not 1 to 1022, although dead_letters is given")
            }
            (id, _) if id == queue.id => wrong("dead_letters", "is the queue itself: open another one"),
            (id, _) => handles::enter::<QueueState>(id).map(Some),
        }
    }
}

impl QueueState {
    /// Claims an entry. If the handle keeps a claimed entry that did not fit into the caller's memory, and no other
    /// consumer has that entry meanwhile, extends its claim and returns that entry instead.
    fn claim(&mut self, lease: Lifetime, until: Instant) -> Result<Option<Claimed>, QueueError> {
        if let Some(left) = self.left_claim.take() {
            match self.queue.run(async |queue| queue.extend_claim(left.id, lease).await) {
                Ok(id) => return Ok(Some(Claimed { id, ..left })),
                Err(QueueError::ClaimEnded) => {}
                Err(error) => {
                    self.left_claim = Some(left);
                    return Err(error);
                }
            }
        }
        let wait = until.saturating_duration_since(Instant::now()).as_micros();
        let wait = Lifetime(u64::try_from(wait).unwrap_or(u64::MAX));
        self.queue.run(async |queue| queue.claim_within(lease, wait).await)
    }

    /// Pushes an entry to the queue of dead letters, and acknowledges it.
    fn bury(&mut self, claimed: &Claimed, dead_letters: &mut Self) -> Result<(), QueueError> {
        dead_letters.queue.run(async |queue| queue.push(&claimed.entry).await)?;
        match self.queue.run(async |queue| queue.acknowledge(claimed.id).await) {
            // Another consumer has the entry now, and may push it to its queue of dead letters once more.
            Err(QueueError::ClaimEnded) => Ok(()),
            done => done,
        }
    }
}

/// Claims an entry: the first one that no consumer has taken, or one whose last claim has ended. `is_found` becomes
/// true if there was such an entry. The queue must have been made with the option `claims`. Unless the claim is
/// acknowledged, the entry is delivered again after the lease, to any consumer. `options` may be null. `length` becomes
/// the length of the entry. If `room` is too short for the entry, which is an error, the handle keeps the claim for the
/// next call, which extends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_queue_claim(
    queue: QueueHandle,
    options: Option<&ClaimOptions>,
    entry: *mut c_void,
    room: usize,
    length: Option<&mut usize>,
    claim: Option<&mut Claim>,
    is_found: Option<&mut bool>,
) -> c_int {
    call(|| {
        let (length, is_found) = (given("length", length)?, given("is_found", is_found)?);
        let claim = given("claim", claim)?;
        (*length, *is_found, *claim) = (0, false, Claim::default());
        let options = options.copied().unwrap_or_default();
        let mut dead_letters = options.dead_letters(queue)?;
        let mut state = handles::enter::<QueueState>(queue.id)?;
        // The clock counts seconds in 64 bits, so the longest time that the options can request is in its range.
        let until = Instant::now() + Duration::from_micros(options.wait);
        while let Some(claimed) = state.claim(options.lease(), until)? {
            if let Some(dead_letters) =
                dead_letters.as_mut().filter(|_| claimed.id.deliveries() > options.deliveries_max)
            {
                state.bury(&claimed, dead_letters)?;
                continue;
            }
            *is_found = true;
            if let Err(too_short) = Target(entry).put(&claimed.entry, room, length) {
                state.left_claim = Some(claimed);
                return Err(too_short.into());
            }
            *claim = claimed.id.into();
            break;
        }
        Ok(())
    })
}

/// Ends a claim: the entry is done, and is not delivered again. The error `PORTCULLIS_ERROR_CLAIM_ENDED` means that the
/// lease was over, and that another consumer got the entry.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_acknowledge(queue: QueueHandle, claim: Option<&Claim>) -> c_int {
    of_claim(queue, claim, |state, claim| state.queue.run(async |queue| queue.acknowledge(claim).await))
}

/// Ends a claim although the entry is not done: the entry can be delivered again at once. The errors are those of
/// `portcullis_queue_acknowledge`.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_give_back(queue: QueueHandle, claim: Option<&Claim>) -> c_int {
    of_claim(queue, claim, |state, claim| state.queue.run(async |queue| queue.give_back(claim).await))
}

/// Makes a claim last for `lease` microseconds from now on. `claim` becomes the extended claim. The errors are those of
/// `portcullis_queue_acknowledge`.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_extend_claim(
    queue: QueueHandle,
    claim: Option<&mut Claim>,
    lease: u64,
) -> c_int {
    call(|| {
        let claim = given("claim", claim)?;
        let (id, lease) = (claim.id(), Lifetime(lease));
        let mut state = handles::enter::<QueueState>(queue.id)?;
        *claim = state.queue.run(async |queue| queue.extend_claim(id, lease).await)?.into();
        Ok(())
    })
}

fn of_claim(
    queue: QueueHandle,
    claim: Option<&Claim>,
    end: impl FnOnce(&mut QueueState, ClaimId) -> Result<(), QueueError>,
) -> c_int {
    call(|| {
        let claim = given("claim", claim)?.id();
        end(&mut *handles::enter::<QueueState>(queue.id)?, claim).map_err(Failure::from)
    })
}

//! Claims: entries of a queue that come again unless their consumer acknowledges them.

use crate::border::{Target, call, given};
use crate::handles::{self, Inside, QueueHandle, QueueState};
use portcullis::Lifetime;
use portcullis_foreign::{Failure, Misuse};
use portcullis_structures::queue::{Claim as Claimed, ClaimId, QueueError};
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

/// How an entry is claimed. All zeros: for 30 s, if there is one now, however often it was delivered.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ClaimOptions {
    /// How soon the entry comes again unless it is acknowledged, in microseconds: 1 ms to 4,194 s. Zero: 30 s.
    pub lease: u64,
    /// How long the call waits for an entry, in microseconds. Zero: not at all.
    pub wait: u64,
    /// The queue that takes entries which were delivered `deliveries_max` times. Zeros: none does, and all are delivered.
    pub dead_letters: QueueHandle,
    /// How often an entry is delivered before it is a dead letter: 1 to 1,022. Zero without `dead_letters`.
    pub deliveries_max: u32,
    /// Zero.
    pub reserved: u32,
}

/// An entry's claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Claim {
    /// Which claim it is. Other words lead to an error.
    pub words: [u64; 3],
    /// How often the entry was delivered, with this time. Beyond 1,023 it is not counted any more.
    pub deliveries: u32,
    /// Zero.
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

// The message below and the header name the number.
const _: () = assert!(*ClaimId::DELIVERIES_MAX.end() == 1022);
const USUAL_LEASE: Lifetime = Lifetime::seconds(30);

impl ClaimOptions {
    fn lease(&self) -> Lifetime {
        if self.lease == 0 { USUAL_LEASE } else { Lifetime(self.lease) }
    }

    /// Enters the queue of dead letters, if there is one.
    fn dead_letters(&self, queue: QueueHandle) -> Result<Option<Inside<'static, QueueState>>, Misuse> {
        let wrong = |argument, wrong| Err(Misuse::Argument { argument, wrong });
        match (self.dead_letters.id, self.deliveries_max) {
            (0, 0) => Ok(None),
            (0, _) => wrong("dead_letters", "is no queue, although deliveries_max is given"),
            (_, most) if !ClaimId::DELIVERIES_MAX.contains(&most) => {
                wrong("deliveries_max", "is not 1 to 1022, although dead_letters is given")
            }
            (id, _) if id == queue.id => wrong("dead_letters", "is the queue itself: open another one"),
            (id, _) => handles::enter::<QueueState>(id).map(Some),
        }
    }
}

impl QueueState {
    /// Claims an entry, or returns the claimed one that had no room at its caller, if no other consumer has it meanwhile.
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
            // Another consumer has it, and buries it once more.
            Err(QueueError::ClaimEnded) => Ok(()),
            done => done,
        }
    }
}

/// Claims an entry: the first that no consumer has taken, or one whose last claim has ended. `is_found` says whether there was one.
/// The queue has to be made with `claims`. Until the claim is acknowledged, the entry comes again after the lease, to any consumer.
/// `options` may be null. If `room` is too short for the entry, which is an error, `length` says how long it is, and the handle keeps
/// the claim for the next call, which extends it.
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
        // The clock counts seconds in 64 bits, so the longest time that can be asked for is in its range.
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

/// Ends a claim: the entry is done, and does not come again. The error `PORTCULLIS_ERROR_CLAIM_ENDED`: the lease was over, and another
/// consumer got the entry.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_acknowledge(queue: QueueHandle, claim: Option<&Claim>) -> c_int {
    of_claim(queue, claim, |state, claim| state.queue.run(async |queue| queue.acknowledge(claim).await))
}

/// Ends a claim without the entry being done: it comes again at once. Errors as of `portcullis_queue_acknowledge`.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_queue_give_back(queue: QueueHandle, claim: Option<&Claim>) -> c_int {
    of_claim(queue, claim, |state, claim| state.queue.run(async |queue| queue.give_back(claim).await))
}

/// Makes a claim last for `lease` microseconds from now on. `claim` names the extended one afterwards. Errors as of
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

//! A program that pushes to a queue of claims, claims its entries and acknowledges them. All programs of its run share the queue.

use super::SimSession;
use super::queue::{SimQueue, bytes_of, number_of, work_on_queue};
use super::structure::{SimPipeline, User};
use crate::oracle::Promise;
use portcullis_histories::claims::Event;
use portcullis_protocol::Lifetime;
use portcullis_structures::queue::{Claim, QueueError};

/// The most operations that a program has in flight.
const TASKS_MAX: usize = 3;
/// Leases of claims, in µs.
const LEASES: std::ops::Range<u64> = 1_000..6_000;
/// Number of leases, of claims and of the queue, that the founder waits at the end for entries that others have
/// claimed.
const LAST_WAIT_LEASES: u64 = 4;

/// User of the queue of claims, running on the program's fiber.
pub(super) struct ClaimUser(pub User);

impl ClaimUser {
    pub fn run(self, session: SimSession) {
        work_on_queue(
            &self.0,
            session,
            (TASKS_MAX, true),
            async |pipeline, queue| self.work(pipeline, queue).await,
            async |queue| self.look(queue).await,
        );
    }

    /// Executes one operation after another, until the run winds down. An entry that is claimed then is delivered
    /// again.
    async fn work(&self, pipeline: &SimPipeline, queue: &SimQueue) {
        while self.0.goes_on(pipeline) {
            if self.0.dice.borrow_mut().per_mille(450) {
                self.push(queue).await;
            } else if let Some(Some(claim)) = self.0.note("a claim", self.claim(queue).await) {
                self.use_claim(pipeline, queue, claim).await;
            }
            let pause = self.0.dice.borrow_mut().magnitude(1..40);
            // If the session is over, the loop ends.
            let _ = pipeline.sleep(Lifetime(pause)).await;
        }
    }

    /// Uses a claim in one of several ways: acknowledges it quickly or late, extends it, gives it back or forgets it.
    async fn use_claim(&self, pipeline: &SimPipeline, queue: &SimQueue, mut claim: Claim) {
        let (way, pause, lease) = {
            let mut dice = self.0.dice.borrow_mut();
            (dice.of(0..10), dice.magnitude(1..8_000), Lifetime(dice.of(LEASES)))
        };
        match way {
            0 => return,
            1 => {
                let back = queue.give_back(claim.id).await;
                self.note_of_claim("the return of a claim", back);
                return;
            }
            2 => match queue.extend_claim(claim.id, lease).await {
                Ok(id) => claim.id = id,
                other => return self.note_of_claim("the extension of a claim", other.map(|_| ())),
            },
            3 | 4 => {
                let _ = pipeline.sleep(Lifetime(pause)).await;
            }
            _ => {}
        }
        self.acknowledge(queue, &claim).await;
    }

    fn note_of_claim(&self, what: &str, done: Result<(), QueueError>) {
        if done != Err(QueueError::ClaimEnded) {
            self.0.note(what, done);
        }
    }

    async fn push(&self, queue: &SimQueue) {
        let number = self.0.commons.new_value();
        let place = self.0.commons.begin_on_claims(Event::Push(number));
        match queue.push(&bytes_of(number)).await {
            Ok(()) => self.0.commons.end_on_claims(place, Some(Event::Push(number))),
            // It was not pushed.
            Err(QueueError::Full | QueueError::Closed) => self.0.commons.end_on_claims(place, None),
            Err(error) => {
                self.0.note("a push", Err::<(), _>(error));
            }
        }
    }

    async fn claim(&self, queue: &SimQueue) -> Result<Option<Claim>, QueueError> {
        let lease = Lifetime(self.0.dice.borrow_mut().of(LEASES));
        let place = self.0.commons.begin_on_claims(Event::Claim(None));
        let claimed = match queue.claim(lease).await {
            // Every entry of a closed queue was acknowledged.
            Err(QueueError::Closed) => None,
            claimed => claimed?,
        };
        let told = claimed.as_ref().map(|claim| (number_of(&claim.entry), claim.id.deliveries()));
        self.0.commons.end_on_claims(place, Some(Event::Claim(told)));
        Ok(claimed)
    }

    async fn acknowledge(&self, queue: &SimQueue, claim: &Claim) {
        let event = Event::Acknowledge(number_of(&claim.entry), claim.id.deliveries());
        let place = self.0.commons.begin_on_claims(event);
        match queue.acknowledge(claim.id).await {
            Ok(()) => self.0.commons.end_on_claims(place, Some(event)),
            Err(QueueError::ClaimEnded) => self.0.commons.end_on_claims(place, None),
            Err(error) => {
                self.0.note("an acknowledgement", Err::<(), _>(error));
            }
        }
    }

    /// Drains the closed queue. Each entry is delivered, again if its consumer is gone, until it is acknowledged.
    /// Then one segment is left.
    async fn look(&self, queue: &SimQueue) -> Result<(), QueueError> {
        queue.close().await?;
        self.0.commons.note_closed();
        let wait = Lifetime(LAST_WAIT_LEASES * (LEASES.end + queue.options().lease.0));
        loop {
            let lease = Lifetime(LEASES.end);
            let place = self.0.commons.begin_on_claims(Event::Claim(None));
            let claim = match queue.claim_within(lease, wait).await {
                Ok(Some(claim)) => claim,
                Ok(None) => {
                    self.0.wrong(
                        Promise::Order,
                        "an entry whose claim has ended is not delivered again".to_owned(),
                    );
                    return Ok(());
                }
                Err(QueueError::Closed) => break,
                Err(error) => return Err(error),
            };
            let told = Some((number_of(&claim.entry), claim.id.deliveries()));
            self.0.commons.end_on_claims(place, Some(Event::Claim(told)));
            self.acknowledge(queue, &claim).await;
        }
        self.0.commons.note_drained();
        queue.sweep().await?;
        let found = queue.statistics().await?;
        if (found.slots, found.claimed, found.segments) != (0, 0, 1) {
            self.0.wrong(Promise::Rest, format!("slots, claims or segments are leaked: {found:?}"));
        }
        Ok(())
    }
}

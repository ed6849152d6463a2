//! Clients that work side by side, each on a thread of its own.

use super::BenchError;
use super::course::{Course, Length};
use super::rivals::Measured;
use std::sync::Barrier;

/// The work of clients that are measured together.
pub trait Clients: Sync {
    /// A client that is ready to be measured. It stays on its thread.
    type Ready;

    /// Prepares a client on its thread, whose processor this may choose.
    fn prepare(&self, number: usize) -> Result<Self::Ready, BenchError>;

    /// Measures a client.
    fn measure(&self, ready: Self::Ready, course: Course) -> Result<Measured, BenchError>;
}

/// Runs `count` clients. All clients begin to count together, each for its share of `length`. The first one has the
/// progress bar, which shows `name`.
///
/// # Errors
/// The first error of a client.
pub fn run(clients: &impl Clients, count: usize, length: Length, name: &str) -> Result<Measured, BenchError> {
    let (length, together) = (length.share(count), &Barrier::new(count));
    let run = |number| {
        let ready = clients.prepare(number);
        // A client that could not be prepared also reaches the barrier, so that no other waits there for ever.
        together.wait();
        let ready = ready?;
        let course = if number == 0 { Course::of(length, name) } else { Course::unseen(length) };
        clients.measure(ready, course)
    };
    let run = &run;
    let measured: Result<Vec<Measured>, BenchError> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || run(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client returns its errors")).collect()
    });
    Ok(Measured::together(measured?))
}

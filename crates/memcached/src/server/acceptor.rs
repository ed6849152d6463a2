//! Acceptance of connections, and their distribution to the threads that serve.

use super::Common;
use super::listener::Listener;
use super::stream::Stream;
use super::wake::Wake;
use super::worker::WorkerHandle;
use crate::GatewayError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Answer to a client beyond the limit of connections, as from memcached.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// Time without accepting after the operating system had no descriptor left.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

pub struct Acceptor {
    common: Arc<Common>,
    listeners: Vec<Listener>,
    wake: Arc<Wake>,
}

impl Acceptor {
    pub fn bind(common: &Arc<Common>) -> Result<Self, GatewayError> {
        let listeners = common.options.listen.iter().map(Listener::bind).collect::<Result<_, _>>()?;
        Ok(Self { common: Arc::clone(common), listeners, wake: Arc::new(Wake::new()?) })
    }

    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().filter_map(Listener::address).collect()
    }

    pub fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.wake)
    }

    /// Accepts connections until the gateway stops.
    pub fn run(&self, workers: &[WorkerHandle]) {
        let mut turn = 0;
        while !self.common.is_stopping() {
            let mut polled: Vec<_> =
                self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
            polled.push(PollFd::new(&self.wake, PollFlags::IN));
            if poll(&mut polled, None).is_err() {
                continue;
            }
            for listener in &self.listeners {
                self.accept_from(listener, workers, &mut turn);
            }
        }
    }

    fn accept_from(&self, listener: &Listener, workers: &[WorkerHandle], turn: &mut usize) {
        loop {
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_the_client(&error) => continue,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    let mut wake = [PollFd::new(&self.wake, PollFlags::IN)];
                    let _ = poll(&mut wake, Some(&PAUSE));
                    return;
                }
            };
            if let Some(stream) = self.admit(stream) {
                let handed = workers.iter().try_fold(stream, |stream, _| {
                    *turn += 1;
                    // `Err` ends the search: a worker has the connection.
                    workers[*turn % workers.len()].hand(stream).map_or_else(Ok, Err)
                });
                if handed.is_ok() {
                    tracing::error!("no thread of the gateway serves any more");
                    self.common.shared.counters.connections.subtract();
                }
            }
        }
    }

    /// Counts a connection, or answers that the gateway has too many.
    fn admit(&self, stream: Stream) -> Option<Stream> {
        let counters = &self.common.shared.counters;
        if counters.connections.get() >= self.common.options.connections_max {
            counters.rejected_connections.add();
            // A small write to a new connection does not block.
            let _ = stream.write(TOO_MANY);
            return None;
        }
        counters.connections.add();
        counters.all_connections.add();
        Some(stream)
    }
}

/// Whether the client has closed its connection before it was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected};
    // The last kinds result from setting options of a broken connection.
    matches!(error.kind(), ConnectionAborted | Interrupted | ConnectionReset | NotConnected | InvalidInput)
}

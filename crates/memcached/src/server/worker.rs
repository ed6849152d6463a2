//! A thread that serves: with its table, or without while the node is gone.

use super::Common;
use super::clients::{Clients, Patience};
use super::keeper::{close, open};
use super::round::Round;
use super::serving::serve;
use super::stream::Stream;
use super::table::TableStore;
use super::wake::Wake;
use crate::GatewayError;
use crate::cache::Cache;
use std::sync::Arc;
use std::sync::mpsc::{SendError, Sender, channel};
use std::time::{Duration, Instant};

/// How often a thread tries to reach a node that is gone.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// What a worker says when it has begun, or cannot.
pub type Started = Result<Door, GatewayError>;

/// The way to a worker.
#[derive(Debug)]
pub struct Door {
    wake: Arc<Wake>,
    streams: Sender<Stream>,
}

impl Door {
    pub fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.wake)
    }

    /// Hands the worker a connection.
    ///
    /// # Errors
    /// The worker has panicked: the connection.
    pub fn hand(&self, stream: Stream) -> Result<(), Stream> {
        self.streams.send(stream).map_err(|SendError(stream)| stream)?;
        self.wake.ring();
        Ok(())
    }
}

pub struct Worker {
    common: Arc<Common>,
    clients: Clients,
}

impl Worker {
    /// Opens the table, says what came of it, and serves until the gateway stops.
    pub fn start(common: Arc<Common>, started: &Sender<Started>) {
        match Self::prepare(common) {
            Err(error) => {
                let _ = started.send(Err(error));
            }
            Ok((mut worker, cache, door)) => {
                let _ = started.send(Ok(door));
                worker.run(cache);
            }
        }
    }

    fn prepare(common: Arc<Common>) -> Result<(Self, Cache<TableStore>, Door), GatewayError> {
        let cache = open(&common)?;
        let wake = Arc::new(Wake::new()?);
        let (sender, streams) = channel();
        let clients = Clients::new(Arc::clone(&common), Arc::clone(&wake), streams)?;
        Ok((Self { common, clients }, cache, Door { wake, streams: sender }))
    }

    fn run(&mut self, first: Cache<TableStore>) {
        let mut cache = Some(first);
        while !self.common.is_stopping() {
            match cache.take() {
                Some(table) => {
                    serve(&self.common, &mut self.clients, &table);
                    close(table);
                }
                None => cache = self.refuse(),
            }
        }
    }

    /// Says to clients that the node is gone, until it can be reached again or the gateway stops.
    fn refuse(&mut self) -> Option<Cache<TableStore>> {
        let mut round = Round::default();
        let mut tried = Instant::now();
        while !self.common.is_stopping() {
            self.clients.gather(&mut round, Patience::Second);
            let refused = round.refuse();
            self.common.shared.counters.node_failures.add_many(refused);
            self.clients.answer(&mut round);
            if tried.elapsed() >= TRIED_EVERY {
                if let Ok(cache) = open(&self.common) {
                    return Some(cache);
                }
                tried = Instant::now();
            }
        }
        None
    }
}

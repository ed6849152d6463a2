//! A thread that serves: with its table, or without it while the node is lost.

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

/// Interval between two attempts to reach a lost node.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// Message of a worker when it has begun, or cannot begin.
pub type Started = Result<WorkerHandle, GatewayError>;

/// Handle for passing connections to a worker.
#[derive(Debug)]
pub struct WorkerHandle {
    wake: Arc<Wake>,
    streams: Sender<Stream>,
}

impl WorkerHandle {
    pub fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.wake)
    }

    /// Passes a connection to the worker.
    ///
    /// # Errors
    /// The worker has panicked. The error contains the connection.
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
    /// Opens the table, reports the result, and serves until the gateway stops.
    pub fn start(common: Arc<Common>, started: &Sender<Started>) {
        match Self::prepare(common) {
            Err(error) => {
                let _ = started.send(Err(error));
            }
            Ok((mut worker, cache, worker_handle)) => {
                let _ = started.send(Ok(worker_handle));
                worker.run(cache);
            }
        }
    }

    fn prepare(common: Arc<Common>) -> Result<(Self, Cache<TableStore>, WorkerHandle), GatewayError> {
        let cache = open(&common)?;
        let wake = Arc::new(Wake::new()?);
        let (sender, streams) = channel();
        let clients = Clients::new(Arc::clone(&common), Arc::clone(&wake), streams)?;
        Ok((Self { common, clients }, cache, WorkerHandle { wake, streams: sender }))
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

    /// Answers to clients that the node is lost, until the node can be reached again or the gateway stops.
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

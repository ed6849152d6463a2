//! A client's socket and its control connection, which its machine and its client library share.

use portcullis_nic::OneShotRequest;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The contents of a socket.
#[derive(Debug, Default)]
pub(crate) struct Socket {
    /// The machine's time.
    pub now: Duration,
    /// Datagrams that have arrived.
    pub arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Bytes of the longest datagram that the machine's system sends, if it refuses some.
    pub longest: Option<usize>,
    /// Datagrams that leave.
    pub leaving: Vec<(SocketAddr, Vec<u8>)>,
    /// Control messages that have arrived.
    pub heard: VecDeque<Vec<u8>>,
    /// Control messages that leave.
    pub said: Vec<Vec<u8>>,
    /// Time at which the client's end wants to be called.
    pub due: Option<Duration>,
    /// Operations that the client's end has begun: their numbers and their requests.
    pub begun: Vec<(u64, OneShotRequest)>,
    /// Operations that took longer than their time-outs.
    pub overdue: Vec<String>,
}

/// A socket. Only one of the parties that share it uses it at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedSocket(Arc<Mutex<Socket>>);

impl SharedSocket {
    pub fn borrow(&self) -> MutexGuard<'_, Socket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

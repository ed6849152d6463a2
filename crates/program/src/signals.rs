//! Signals of a program that serves until it is stopped: a node or a gateway.
//!
//! All such programs use this module, so that a signal that requests something else ends none of them. Only a program
//! installs it: a node inside another program leaves that program's signals as they are.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request to a service from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// An orderly stop: SIGTERM and SIGINT.
    Stop,
    /// A request to print the counters: SIGUSR1. A service without counters ignores it.
    Count,
    /// A request to open again the files that were renamed or renewed: SIGHUP. A service without such files ignores it.
    Reopen,
}

impl Request {
    fn of(signal: i32) -> Self {
        match signal {
            SIGUSR1 => Self::Count,
            SIGHUP => Self::Reopen,
            _ => Self::Stop,
        }
    }
}

/// Takes over the signals of a service. From now on each of these signals is sent as a [`Request`] to the receiver, and
/// does not end the process by itself. The sender is for requests from other sources.
///
/// # Errors
/// The kernel refuses a handler or a thread.
pub fn requests() -> std::io::Result<(Sender<Request>, Receiver<Request>)> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])?;
    let (sender, receiver) = channel();
    let to_service = sender.clone();
    std::thread::Builder::new().name("portcullis-signals".to_owned()).spawn(move || {
        // The thread ends when the receiver is dropped.
        let _ = signals.forever().try_for_each(|signal| to_service.send(Request::of(signal)));
    })?;
    Ok((sender, receiver))
}

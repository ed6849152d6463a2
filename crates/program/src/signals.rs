//! The signals of a program that serves until it is stopped: a node, a gateway.
//!
//! One piece for all of them, so that none ends by a signal that asks for something else. It is installed by the
//! program alone: a node inside another program leaves that program's signals as they are.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a service is asked for from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The end, in order: SIGTERM and SIGINT.
    Stop,
    /// The counters: SIGUSR1. A service without counters ignores it.
    Count,
    /// Files that were renamed or renewed are opened anew: SIGHUP. A service without such files ignores it.
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

/// Takes over the signals of a service. From now on each of them is a [`Request`] at the receiver, and ends nothing by
/// itself. The sender is for requests from elsewhere.
///
/// # Errors
/// The kernel refuses a handler or a thread.
pub fn requests() -> std::io::Result<(Sender<Request>, Receiver<Request>)> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])?;
    let (sender, receiver) = channel();
    let to_service = sender.clone();
    std::thread::Builder::new().name("portcullis-signals".to_owned()).spawn(move || {
        // Ends when nobody receives any more.
        let _ = signals.forever().try_for_each(|signal| to_service.send(Request::of(signal)));
    })?;
    Ok((sender, receiver))
}

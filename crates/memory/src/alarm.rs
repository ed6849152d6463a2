//! Wake-up of a client whose program waits for a descriptor in an event loop of its own.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Makes a client's descriptor ([`Watched`]) readable: when the alarm rings, and for good when the alarm is dropped.
///
/// The two ends are a pair of sockets, and the client holds only one of them. No flag that the client sets there can
/// make the node wait, and nothing that the client sends there is kept. An event descriptor would be one open file for
/// both ends.
///
/// A process that writes to a socket, or closes it, wakes every waiter at the other end, and a client can have hundreds
/// of thousands of epolls wait there. So a [`Ringer`] does both.
#[derive(Debug)]
pub struct Alarm {
    /// `None` only during the drop of the alarm.
    end: Option<Arc<End>>,
    ringer: Arc<Ringer>,
}

#[derive(Debug)]
struct End {
    socket: OwnedFd,
    /// A ring was requested from the ringer, and the ringer has not begun it.
    is_pending: AtomicBool,
}

/// A thread that rings and closes alarms. The clients may delay it for any time. Clients that distrust each other have
/// ringers of their own.
#[derive(Debug)]
pub struct Ringer(Sender<Arc<End>>);

impl Ringer {
    /// Starts the thread. The thread ends after the last alarm is dropped.
    ///
    /// # Errors
    /// The machine refuses a thread.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let (ringer, ends) = channel::<Arc<End>>();
        std::thread::Builder::new().name("portcullis-ringer".to_owned()).spawn(move || {
            for end in ends {
                // Cleared before the ring: a request from now on rings once more.
                if end.is_pending.swap(false, Ordering::SeqCst) {
                    // If there is no room, the client has not read the last wake-up, so its end is readable already. If
                    // there is no peer, there is no client to wake.
                    let _ = rustix::net::send(&end.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
            }
        })?;
        Ok(Arc::new(Self(ringer)))
    }
}

/// The client's end of an alarm. It is readable after the [`Alarm`] has rung, and after the alarm was dropped.
#[derive(Debug)]
pub struct Watched(OwnedFd);

impl Alarm {
    /// Creates the alarm and the client's end.
    ///
    /// # Errors
    /// The machine has no more descriptors.
    pub fn pair(ringer: &Arc<Ringer>) -> std::io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = ends()?;
        let end = Some(Arc::new(End { socket, is_pending: AtomicBool::new(false) }));
        Ok((Self { end, ringer: Arc::clone(ringer) }, theirs))
    }

    /// Requests that the ringer make the client's end readable. Never waits.
    pub fn ring(&self) {
        let end = self.end.as_ref().expect("it is there until it is dropped");
        if !end.is_pending.swap(true, Ordering::SeqCst) {
            // The thread accepts requests for as long as an alarm exists.
            let _ = self.ringer.0.send(Arc::clone(end));
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // The thread holds the last reference to the socket, and closes it.
        let _ = self.end.take().map(|end| self.ringer.0.send(end));
    }
}

/// Creates the node's end and the client's end. The client's end is readable for good once the node's end is closed.
///
/// # Errors
/// The machine has no more descriptors.
pub fn ends() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // This end never reads. Once it cannot receive, the client cannot leave anything here, such as descriptors.
    shutdown(&ours, Shutdown::Read)?;
    // The kernel's smallest buffer: a client that does not read occupies only a few wake-ups of the node's memory.
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 0)?;
    Ok((ours, theirs))
}

impl Watched {
    /// Wraps the client's end of a pair.
    #[must_use]
    pub fn new(theirs: OwnedFd) -> Self {
        Self(theirs)
    }

    /// Reads all wake-ups that have arrived. Returns whether the alarm still exists.
    pub fn quiet(&self) -> bool {
        let mut rung = [0; 64];
        loop {
            match rustix::net::recv(&self.0, &mut rung, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::net::send;

    fn is_readable_within(watched: &Watched, seconds: i64) -> bool {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(watched, PollFlags::IN)], Some(&timeout)).expect("a poll") > 0
    }

    fn is_readable(watched: &Watched) -> bool {
        is_readable_within(watched, 0)
    }

    #[test]
    fn an_end_is_readable_from_a_ring_until_it_is_quieted_and_for_ever_once_the_alarm_is_gone() {
        let (alarm, theirs) = Alarm::pair(&Ringer::start().expect("a thread")).expect("a pair");
        let watched = Watched::new(theirs);
        assert!(!is_readable(&watched));
        alarm.ring();
        assert!(is_readable_within(&watched, 10));
        assert!(watched.quiet());
        assert!(!is_readable(&watched));
        drop(alarm);
        assert!(is_readable_within(&watched, 10));
        while watched.quiet() {
            std::thread::yield_now();
        }
        assert!(is_readable(&watched));
    }

    #[test]
    fn nothing_that_the_client_does_with_its_end_makes_a_ring_wait_or_reaches_the_node() {
        let (alarm, theirs) = Alarm::pair(&Ringer::start().expect("a thread")).expect("a pair");
        fcntl_setfl(&theirs, OFlags::empty()).expect("it is the client's own");
        for _ in 0..100_000 {
            alarm.ring();
        }
        assert_eq!(send(&theirs, b"hello", SendFlags::NOSIGNAL), Err(Errno::PIPE));
        let watched = Watched::new(theirs);
        assert!(is_readable_within(&watched, 10) && watched.quiet());
        drop(watched);
        alarm.ring();
    }
}

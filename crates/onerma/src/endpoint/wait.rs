//! The events that a client's end waits for: datagrams, control messages, and time.

use super::control::{Control, ControlLink};
use crate::UdpSocket;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Descriptors for a program's own event loop.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
    /// Timer that expires when work is due that no arrival announces.
    timer: OwnedFd,
}

impl Watch {
    pub fn new(socket: &UdpSocket, link: &dyn ControlLink) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        for descriptor in [socket.as_fd(), link.descriptor(), timer.as_fd()] {
            epoll::add(&epoll, descriptor, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self { epoll, timer })
    }

    /// Waits for datagrams and control messages, or until `at_most` is over.
    pub fn wait(&self, socket: &UdpSocket, control: &Control, at_most: Duration) {
        let mut link = PollFlags::IN;
        link.set(PollFlags::OUT, control.is_behind());
        let mut descriptors = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(control.descriptor(), link),
        ];
        // Woken, timed out or interrupted: the caller checks all sources in any case.
        let _ = poll(&mut descriptors, Timespec::try_from(at_most).ok().as_ref());
    }

    /// Returns a descriptor that becomes readable when data has arrived or work is due.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes the descriptor become readable in `due`, and when the link has room if messages wait for that.
    pub fn arm(&self, control: &Control, due: Option<Duration>) {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, control.is_behind());
        // The link's descriptor was added earlier, and is only changed here.
        let _ = epoll::modify(&self.epoll, control.descriptor(), EventData::new_u64(0), flags);
        // A timer of zero would never expire.
        let due = due.map_or(Duration::ZERO, |due| due.max(Duration::from_nanos(1)));
        let at = Timespec::try_from(due).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

//! What a client's end waits for: datagrams, control messages, and time.

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
    /// Rings when something is due that no arrival announces.
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
        // Woken, timed out or interrupted: the caller looks everywhere in any case.
        let _ = poll(&mut descriptors, Timespec::try_from(at_most).ok().as_ref());
    }

    /// Becomes readable when something has come or is due.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Has the descriptor become readable in `due`, and when the link has room if something waits for that.
    pub fn arm(&self, control: &Control, due: Option<Duration>) {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, control.is_behind());
        // It was added, and is only changed here.
        let _ = epoll::modify(&self.epoll, control.descriptor(), EventData::new_u64(0), flags);
        // A timer of zero would never ring.
        let due = due.map_or(Duration::ZERO, |due| due.max(Duration::from_nanos(1)));
        let at = Timespec::try_from(due).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

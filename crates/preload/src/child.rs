//! A forked child: its memory is a copy of its parent's, and the monitor fills the pages that are missing.
//!
//! The kernel gives the monitor a descriptor of the child's faults, but does not identify the child. So the child sends
//! the monitor a number over the parent's socket, and then requests the kernel to drop pages at a place of the range
//! that stands for the number: the kernel reports that through the descriptor.
//!
//! The child keeps a descriptor of its own faults. If the monitor dies, accesses to the child's missing pages wait and
//! never read zeros, and the kernel ends the child: the other end of the socket closes, and the signal for that is
//! SIGKILL.

use crate::range::{Range, die, keep, keep_only, kept};
use portcullis_memory::userfault::{join as join_monitor, mark_of};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::mm::Advice;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::getpid;

/// Registers this process with the monitor. If that fails, the process ends: its memory would have gaps.
pub(crate) fn join(range: &Range) {
    let number = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
    let joined = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .ok()
        .and_then(|(ours, theirs)| {
            let faults =
                join_monitor(range.socket(), number, (ours.as_fd(), theirs), || identify(range, number))
                    .ok()?;
            die_when_closed(&ours).then_some((ours, faults))
        });
    let Some((ours, faults)) = joined else { die() };
    let inherited = kept_by_parent(range);
    keep_only([range.socket().as_raw_fd(), keep(ours), keep(faults)]);
    for descriptor in inherited.into_iter().filter(|&descriptor| descriptor >= 0) {
        // SAFETY: the fork has made this descriptor, and from here on no code of this process knows it.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

/// The descriptors that the parent keeps for itself alone. -1 stands for no descriptor.
///
/// The child must close them. The monitor detects the parent's end when the last copy of its socket is closed, and if
/// the child kept a copy, the kernel could end the parent because of it.
fn kept_by_parent(range: &Range) -> [i32; 3] {
    let mut inherited = [-1; 3];
    let own = kept().filter(|&descriptor| descriptor != range.socket().as_raw_fd());
    inherited.iter_mut().zip(own).for_each(|(place, descriptor)| *place = descriptor);
    inherited
}

/// Reports the number through the kernel: drops pages of the marks behind the range, which hold no data.
fn identify(range: &Range, number: u64) {
    let (offset, length) = mark_of(number);
    let bytes = |number: u64| usize::try_from(number).unwrap_or(0);
    let start = range.marks().wrapping_add(bytes(offset));
    // SAFETY: the marks are never accessed, so no bytes are lost.
    let _ = unsafe { rustix::mm::madvise(start.cast(), bytes(length), Advice::LinuxDontNeed) };
}

/// Makes the kernel end this process when the monitor closes its end of the socket, or dies.
fn die_when_closed(socket: &OwnedFd) -> bool {
    let own = getpid().as_raw_nonzero().get();
    let calls = [(libc::F_SETOWN, own), (F_SETSIG, libc::SIGKILL), (libc::F_SETFL, libc::O_ASYNC)];
    calls.into_iter().all(|(call, value)| {
        // SAFETY: the descriptor is open, and these calls take a number each.
        unsafe { libc::fcntl(socket.as_raw_fd(), call, value) == 0 }
    })
}

/// The `fcntl` command that sets the signal for events of a descriptor. The crate libc does not define it for this C
/// library.
const F_SETSIG: i32 = 10;

//! How long trapped code may run: a timer of the thread's own processor time, whose signal ends the code.
//!
//! The signal may strike between any two instructions. That is sound because code in a trap was promised to bear it; the signal ends
//! nothing else. One that comes late finds another trap or none, and looks at the clock before it ends anything.

use super::Trapped;
use super::faults::{self, Deadline, Frame};
use crate::signals::{Listened, check};
use libc::{c_int, c_void, itimerspec, siginfo_t, ucontext_t};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::cell::OnceCell;
use std::ptr::{from_ref, null, null_mut};
use std::sync::OnceLock;
use std::time::Duration;

static TIMES: Listened = Listened::to(libc::SIGVTALRM);

thread_local! {
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// One thread's timer.
#[derive(Debug)]
struct Timer {
    id: libc::timer_t,
}

impl Timer {
    fn new() -> Result<Self, Errno> {
        static BEGUN: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*BEGUN.get_or_init(|| TIMES.begin(on_time)))?;
        // SAFETY: all fields of the structure are numbers or pointers that may be null.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGVTALRM;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_pid();
        event.sigev_value.sival_ptr = mark();
        let mut id = null_mut();
        // SAFETY: both structures are this function's own. The thread is this one, whose timer is deleted before it ends.
        let made = unsafe { libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, &raw mut id) };
        check(made).map(|()| Self { id })
    }

    /// Has the signal come after so much of the thread's time, and again each time as much. Zero: not any more.
    fn set(&self, after: Duration) -> Result<(), Errno> {
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(after.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let wanted = itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer is this thread's and was not deleted, and the structure is this function's own.
        check(unsafe { libc::timer_settime(self.id, 0, &raw const wanted, null_mut()) })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer was made by new(), and this deletes it, once.
        unsafe { libc::timer_delete(self.id) };
    }
}

/// What the signals of these timers have with them.
pub(super) fn mark() -> *mut c_void {
    from_ref(&TIMES).cast_mut().cast()
}

/// The timer runs for as long as this lives.
#[derive(Debug)]
pub(super) struct Armed;

/// Gives a trap's code so much of the processor's time.
pub(super) fn arm(frame: &Frame, budget: Duration) -> Result<Armed, Errno> {
    // A timer that is set to zero never strikes.
    let budget = budget.max(Duration::from_nanos(1));
    let nanoseconds = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
    let until = thread_time().saturating_add(nanoseconds);
    let mask = blocked_signals()?;
    if mask & 1 << (libc::SIGVTALRM - 1) != 0 {
        // The timer's signal would never come.
        return Err(Errno::BUSY);
    }
    frame.deadline.set(Some(Deadline { budget, until, mask }));
    let armed = TIMER.try_with(|timer| {
        if timer.get().is_none() {
            let _ = timer.set(Timer::new()?);
        }
        timer.get().map_or(Err(Errno::NOTSUP), |timer| timer.set(budget))
    });
    armed.unwrap_or(Err(Errno::NOTSUP)).map(|()| Armed)
}

impl Drop for Armed {
    fn drop(&mut self) {
        // If it goes on, its signals find nothing to end.
        let _ = TIMER.try_with(|timer| timer.get().map(|timer| timer.set(Duration::ZERO)));
    }
}

/// Processor time of this thread in nanoseconds.
fn thread_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// The first 64 signals of a set: all that the kernel has.
fn first_signals(set: &libc::sigset_t) -> u64 {
    // SAFETY: a set of the C library begins with the kernel's, which is a word.
    unsafe { from_ref(set).cast::<u64>().read() }
}

fn blocked_signals() -> Result<u64, Errno> {
    // SAFETY: the structure is an array of numbers.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a question, into a set that is this function's own.
    check(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut set) })?;
    Ok(first_signals(&set))
}

extern "C" fn on_time(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // The frame lies on the sandbox's stack.
    crate::keys::open();
    // SAFETY: the kernel passes a good structure to each handler.
    let said = unsafe { &*info };
    // SAFETY: signals that are no timer's have something else there, which is only compared.
    let value = unsafe { said.si_value() }.sival_ptr;
    let is_ours = said.si_code == libc::SI_TIMER && value == mark();
    if !is_ours {
        return TIMES.pass_on(info, context);
    }
    // SAFETY: the kernel passes what was interrupted to each handler, which alone has it until it returns.
    let interrupted = unsafe { &mut *context.cast::<ucontext_t>() };
    let Some(frame) = faults::trap().filter(|frame| frame.is_interrupted(interrupted)) else { return };
    let Some(Deadline { budget, until, mask }) = frame.deadline.get() else { return };
    // Other signals are blocked while a handler of the program runs on this stack: that is not the trap's code.
    let is_in_handler = first_signals(&interrupted.uc_sigmask) != mask;
    if !is_in_handler && !std::thread::panicking() && thread_time() >= until {
        frame.abandon(interrupted, Trapped::OverBudget(budget));
    }
}

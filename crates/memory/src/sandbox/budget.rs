//! Time limit of trapped code: a timer of the thread's own processor time, whose signal ends the code.
//!
//! The signal may arrive between any two instructions. That is sound because the caller of a trap guarantees that its
//! code can end anywhere. The signal ends nothing else: a late signal finds another trap or none, and its handler
//! checks the clock before it ends any code.

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
        // SAFETY: both structures are this function's own. The thread is this one, whose timer is deleted before the
        // thread ends.
        let made = unsafe { libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, &raw mut id) };
        check(made).map(|()| Self { id })
    }

    /// Requests the signal after this much of the thread's time, and again after each further period of the same
    /// length. Zero stops the timer.
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

/// The value that the signals of these timers carry.
pub(super) fn mark() -> *mut c_void {
    from_ref(&TIMES).cast_mut().cast()
}

/// An armed timer. It runs until this is dropped.
#[derive(Debug)]
pub(super) struct Armed;

/// Limits the processor time of a trap's code.
pub(super) fn arm(frame: &Frame, budget: Duration) -> Result<Armed, Errno> {
    // A timer that is set to zero never fires.
    let budget = budget.max(Duration::from_nanos(1));
    let nanoseconds = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
    let until = thread_time().saturating_add(nanoseconds);
    let mask = blocked_signals()?;
    if mask & 1 << (libc::SIGVTALRM - 1) != 0 {
        // The timer's signal would never be delivered.
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
        // If the timer continues, its signals find no code to end.
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
    // SAFETY: the call only reads the mask, into a set that is this function's own.
    check(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut set) })?;
    Ok(first_signals(&set))
}

extern "C" fn on_time(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // The frame lies on the sandbox's stack.
    crate::keys::open();
    // SAFETY: the kernel passes a valid structure to each handler.
    let said = unsafe { &*info };
    // SAFETY: a signal that is not a timer's has another value there, which is only compared.
    let value = unsafe { said.si_value() }.sival_ptr;
    let is_ours = said.si_code == libc::SI_TIMER && value == mark();
    if !is_ours {
        return TIMES.pass_on(info, context);
    }
    // SAFETY: the kernel passes the interrupted state to each handler, which alone has it until it returns.
    let interrupted = unsafe { &mut *context.cast::<ucontext_t>() };
    let Some(frame) = faults::trap().filter(|frame| frame.is_interrupted(interrupted)) else { return };
    let Some(Deadline { budget, until, mask }) = frame.deadline.get() else { return };
    // Other signals are blocked while a handler of the program runs on this stack: such a handler is not the trap's
    // code.
    let is_in_handler = first_signals(&interrupted.uc_sigmask) != mask;
    if !is_in_handler && !std::thread::panicking() && thread_time() >= until {
        frame.abandon(interrupted, Trapped::OverBudget(budget));
    }
}

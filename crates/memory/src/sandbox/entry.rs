//! Entry of code onto another stack, and its ways out.

use super::faults::Frame;
use core::ffi::c_void;
use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether there is an entry for this kind of processor.
pub(super) const IS_THERE: bool = cfg!(target_arch = "x86_64");

/// Code to run, and its result afterwards.
struct Task<'a, F, R> {
    code: Option<F>,
    result: Option<Result<R, Box<dyn Any + Send>>>,
    /// The frame of code that may be abandoned.
    frame: Option<&'a Frame>,
}

/// How code ended.
pub(super) enum Ended<R> {
    /// It returned or panicked.
    Done(std::thread::Result<R>),
    /// It was abandoned.
    Abandoned,
}

/// Runs code on the stack that ends at `top`. Zero stands for the present stack.
///
/// The stack is mapped, aligned to 16 bytes, and not in use. If there is a frame, the code can be abandoned at any
/// point, and neither the code nor its result has a destructor.
/// its result has a destructor.
#[inline]
pub(super) unsafe fn run<F: FnOnce() -> R, R>(code: F, frame: Option<&Frame>, top: usize) -> Ended<R> {
    // A result that abandoned code has half written must not be dropped.
    let mut task = ManuallyDrop::new(Task { code: Some(code), result: None, frame });
    let unused = Frame::none();
    let saved = frame.unwrap_or(&unused).stack_pointer();
    let pointer = (&raw mut *task).cast();
    // SAFETY: the caller guarantees a valid stack. perform takes a task of exactly this type, and this one lives until
    // enter returns.
    let is_abandoned = unsafe { enter(saved, top, perform::<F, R>, pointer) };
    let result = if is_abandoned { None } else { task.result.take() };
    result.map_or(Ended::Abandoned, Ended::Done)
}

/// Runs a task's code. A panic is stored in the task, so that nothing unwinds further.
extern "C" fn perform<F: FnOnce() -> R, R>(task: *mut c_void) {
    // SAFETY: enter was given a task of this type, which lives until enter returns, and which its owner does not touch meanwhile.
    let task = unsafe { &mut *task.cast::<Task<'_, F, R>>() };
    // The trap is open only while enter's frame is whole.
    task.frame.into_iter().for_each(Frame::open);
    task.result = task.code.take().map(|code| catch_unwind(AssertUnwindSafe(code)));
    task.frame.into_iter().for_each(Frame::close);
}

/// Calls `code` with `task` on the stack that ends at `top` (zero: on the present stack), and returns in one of two
/// ways: the code returned (false), or a signal handler has set the stack pointer to the value in `saved` and jumped to
/// [`landing`] (true). Either way the registers that a function preserves have their former values, including those
/// that control the rounding of floating point numbers.
///
/// # Safety
/// The stack is mapped, aligned and unused; `saved` can be written to; `code` does not unwind.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn enter(
    saved: *mut usize,
    top: usize,
    code: extern "C" fn(*mut c_void),
    task: *mut c_void,
) -> bool {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rdi], rsp",
        "test rsi, rsi",
        "cmovnz rsp, rsi",
        "mov rdi, rcx",
        "call rdx",
        // The code has preserved these registers, as every function does.
        "lea rsp, [rbp - 40]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
    )
}

/// Landing of abandoned code: the second way out of [`enter`]. The stack pointer is where `enter` has saved its
/// registers.
///
/// # Safety
/// It is not a function, and no code calls it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn landing() {
    core::arch::naked_asm!(
        // The code may have been interrupted at any instruction.
        "cld",
        "fninit",
        "fldcw [rsp + 4]",
        "ldmxcsr [rsp]",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "mov eax, 1",
        "ret",
    )
}

/// Returns the stack pointer of the code that a signal interrupted.
#[cfg(target_arch = "x86_64")]
pub(super) fn stack_pointer(context: &libc::ucontext_t) -> usize {
    usize::try_from(context.uc_mcontext.gregs[register(libc::REG_RSP)]).unwrap_or(0)
}

/// Makes the interrupted code continue at [`landing`].
#[cfg(target_arch = "x86_64")]
pub(super) fn land(context: &mut libc::ucontext_t, stack_pointer: usize) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[register(libc::REG_RSP)] = stack_pointer.cast_signed() as i64;
    registers[register(libc::REG_RIP)] = (landing as *const ()).addr().cast_signed() as i64;
}

/// Reads a byte as foreign code does: if the thread cannot reach it, the read is a fault and not undefined behaviour.
#[cfg(target_arch = "x86_64")]
pub(super) fn touch(address: *mut u8) {
    // SAFETY: the processor makes the access, not the language, and it changes nothing.
    unsafe { core::arch::asm!("mov {}, [{}]", out(reg_byte) _, in(reg) address, options(nostack)) };
}

#[cfg(target_arch = "x86_64")]
fn register(number: libc::c_int) -> usize {
    usize::try_from(number).unwrap_or(0)
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn enter(_: *mut usize, _: usize, code: extern "C" fn(*mut c_void), task: *mut c_void) -> bool {
    code(task);
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn touch(_: *mut u8) {}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn stack_pointer(_: &libc::ucontext_t) -> usize {
    0
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn land(_: &mut libc::ucontext_t, _: usize) {}

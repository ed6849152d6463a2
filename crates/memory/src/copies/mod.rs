//! Copies of bytes that other threads and processes may change at the same time.
//!
//! The language's own copy is no choice here: a compiler may assume that nothing changes its source, and may read or
//! write a byte twice. Each copy of this module makes one promise: every byte of the source is used once and every byte
//! of the target is written once, a byte that a peer changes meanwhile arrives old or new, and no byte outside the two
//! spans is touched. A reader that needs more than one byte as it was at one moment needs a protocol above.
//!
//! | processor | way |
//! | --- | --- |
//! | x86-64 | the string instruction (`string`) |
//! | aarch64 | pairs of vector registers (`pairs`) |
//! | any other | words (`words`), which all processors have for tests and measurements |

#[cfg(target_arch = "aarch64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod string;
#[cfg(test)]
mod tests;
mod words;

#[cfg(target_arch = "aarch64")]
pub(crate) use pairs::copy;
#[cfg(target_arch = "x86_64")]
pub(crate) use string::copy;
pub(crate) use words::copy as copy_by_words;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use words::copy;

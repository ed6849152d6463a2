//! What programs in C and C++ rely on.

mod calls;
mod header;
mod hostile;
mod programs;

//! Tests of the promises on which programs in C and C++ rely.

mod calls;
mod header;
mod hostile;
mod programs;

//! Far memory.
#![forbid(unsafe_code)]

pub mod pages;

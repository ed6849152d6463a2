//! Promises of the gateway, one module for each subject. They are one program, which is compiled once for all of them.

mod departed;
mod endings;
mod eviction;
mod hostile;
mod keys;
mod limits;
mod meta;
mod protocol;
mod rig;
mod several;
mod text;

//! What the gateway promises, one module a subject. One program: it is compiled once for all of them.

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

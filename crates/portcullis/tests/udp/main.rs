//! Clients over UDP: what they can do, what is refused, and what ends when it should.

mod permissions;
mod rig;

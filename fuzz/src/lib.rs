//! The fuzz targets. Each module takes bytes, does with them what a peer could do, and panics when a promise is broken.
#![forbid(unsafe_code)]

pub mod attach;
pub mod control;
mod input;
pub mod messages;
pub mod packets;
mod plain;
pub mod queues;
pub mod tls_handshake;
pub mod unix_acceptor;

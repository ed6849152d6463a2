//! Tests of the program `portcullis`, with one module for each subject. They are one program, so that their dependencies are linked once.

mod blocks;
mod certificates;
#[cfg(feature = "etcd")]
mod directory;
mod doctor;
mod far;
mod files;
mod frozen;
mod kv;
mod kv_queue;
mod memcached;
mod node;
mod operator;
mod output;
mod readers;
mod serve;

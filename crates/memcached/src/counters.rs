//! Counters of events since the gateway began.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident $text:literal $(: $reset:ident)?,)+) => {
        /// Counters, shown by `stats`.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = concat!("`", $text, "`.")] pub $name: Counter,)+
        }

        impl Counters {
            /// Returns all counters, with memcached's names for them.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$name.get()),)+]
            }

            /// Resets the counters of events.
            pub fn reset(&self) {
                $($(self.$name.$reset();)?)+
            }
        }
    };
}

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn add(&self) {
        self.add_many(1);
    }

    /// Adds `count`.
    pub fn add_many(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn subtract(&self) {
        self.subtract_many(1);
    }

    /// Subtracts `count`.
    pub fn subtract_many(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn zero(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

counters! {
    connections "curr_connections",
    all_connections "total_connections": zero,
    answer_bytes "answer_bytes_waiting",
    request_bytes "request_bytes_granted",
    rejected_connections "rejected_connections": zero,
    idle_kicks "idle_kicks": zero,
    stalled_kicks "stalled_kicks": zero,
    gets "cmd_get": zero,
    sets "cmd_set": zero,
    flushes "cmd_flush": zero,
    touches "cmd_touch": zero,
    metas "cmd_meta": zero,
    get_hits "get_hits": zero,
    get_misses "get_misses": zero,
    get_expired "get_expired": zero,
    get_flushed "get_flushed": zero,
    delete_misses "delete_misses": zero,
    delete_hits "delete_hits": zero,
    incr_misses "incr_misses": zero,
    incr_hits "incr_hits": zero,
    decr_misses "decr_misses": zero,
    decr_hits "decr_hits": zero,
    cas_misses "cas_misses": zero,
    cas_hits "cas_hits": zero,
    cas_badval "cas_badval": zero,
    touch_hits "touch_hits": zero,
    touch_misses "touch_misses": zero,
    store_no_memory "store_no_memory": zero,
    bytes_read "bytes_read": zero,
    bytes_written "bytes_written": zero,
    yields "conn_yields": zero,
    total_items "total_items": zero,
    evictions "evictions": zero,
    node_failures "node_failures": zero,
}

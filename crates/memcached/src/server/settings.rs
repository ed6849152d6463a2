//! What `stats` tells.

use super::Common;
use crate::cache::Now;
use crate::protocol::{Command, Reply, Statistics, VERSION};
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// When the first gateway of this process began.
static BEGUN: OnceLock<Instant> = OnceLock::new();

/// The time of day.
pub fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { micros: u64::try_from(since.as_micros()).unwrap_or(u64::MAX) }
}

/// What the gateway's counters and options say.
pub struct Settings<'a>(pub &'a Common);

impl Settings<'_> {
    /// The answer to a command that needs nothing of the cache.
    pub fn answer(&self, command: &Command) -> Option<Reply> {
        let Command::Statistics(about) = command else { return None };
        Some(match about {
            Statistics::General => Reply::Statistics(self.statistics()),
            Statistics::Settings => Reply::Statistics(self.settings()),
            Statistics::Nothing => Reply::Statistics(Vec::new()),
            Statistics::Reset => {
                self.0.shared.counters.reset();
                Reply::Text("RESET")
            }
        })
    }

    pub fn statistics(&self) -> Vec<(&'static str, String)> {
        let options = &self.0.options;
        let (items, bytes) = self.0.shared.age.total();
        let uptime = BEGUN.get_or_init(Instant::now).elapsed().as_secs();
        let mut rows = vec![
            ("pid", std::process::id().to_string()),
            ("uptime", uptime.to_string()),
            ("time", now().seconds().to_string()),
            ("version", VERSION.to_owned()),
            ("pointer_size", usize::BITS.to_string()),
            ("max_connections", options.connections_max.to_string()),
            ("threads", options.threads.to_string()),
            ("accepting_conns", "1".to_owned()),
            ("curr_items", items.to_string()),
            ("bytes", bytes.to_string()),
        ];
        rows.extend(self.0.shared.counters.rows().into_iter().map(|(name, count)| (name, count.to_string())));
        rows
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.0.options;
        let idle = options.idle_timeout.map_or(0, |time| time.as_secs());
        vec![
            ("maxconns", options.connections_max.to_string()),
            ("num_threads", options.threads.to_string()),
            ("item_size_max", options.item_bytes_max.to_string()),
            ("idle_timeout", idle.to_string()),
            ("evictions", "on".to_owned()),
            ("cas_enabled", "yes".to_owned()),
            ("flush_enabled", "yes".to_owned()),
            ("table", options.table.to_string()),
        ]
    }
}

/// The first gateway of this process begins.
pub fn begin() {
    BEGUN.get_or_init(Instant::now);
}

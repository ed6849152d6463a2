//! Contents of `stats`.

use super::clients::COMMANDS_MAX;
use super::dump::Dump;
use super::{Common, Listen};
use crate::age::SizeTotal;
use crate::cache::Now;
use crate::classes;
use crate::protocol::{Command, Reply, Statistics, VERSION};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Time at which the first gateway of this process started.
static BEGUN: OnceLock<Instant> = OnceLock::new();

/// Returns the time of day.
pub fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { micros: u64::try_from(since.as_micros()).unwrap_or(u64::MAX) }
}

/// View of the gateway's counters and options.
pub struct Settings<'a>(pub &'a Common);

/// Result of a command that needs nothing of the cache.
pub enum Told {
    Reply(Reply),
    /// A dump, which is sent a part at a time.
    Dump(Dump),
}

/// A row of an answer.
type Row = (Cow<'static, str>, String);

fn row(name: &'static str, value: impl ToString) -> Row {
    (name.into(), value.to_string())
}

impl Settings<'_> {
    /// Answers a command that needs nothing of the cache.
    pub fn answer(&self, command: &Command) -> Told {
        let about = match command {
            Command::Statistics(about) => about,
            Command::Dump(form) => {
                let dump = Dump::begin(&self.0.shared, *form);
                let busy = Reply::Text("BUSY currently processing crawler request");
                return dump.map_or(Told::Reply(busy), Told::Dump);
            }
            _ => return Told::Reply(Reply::Nothing),
        };
        Told::Reply(match about {
            Statistics::General => Reply::Statistics(self.statistics()),
            Statistics::Settings => Reply::Statistics(self.settings()),
            Statistics::Items => Reply::Statistics(self.items()),
            Statistics::Slabs => Reply::Statistics(self.slabs()),
            Statistics::Sizes => Reply::Statistics(vec![row("sizes_status", "disabled")]),
            Statistics::Nothing => Reply::Statistics(Vec::new()),
            Statistics::Reset => {
                self.0.shared.counters.reset();
                Reply::Text("RESET")
            }
        })
    }

    pub fn statistics(&self) -> Vec<Row> {
        let options = &self.0.options;
        let (items, bytes) = self.0.shared.age.total();
        let mut rows = vec![
            row("pid", std::process::id()),
            row("uptime", BEGUN.get_or_init(Instant::now).elapsed().as_secs()),
            row("time", now().seconds()),
            row("version", VERSION),
            row("pointer_size", usize::BITS),
            row("max_connections", options.connections_max),
            row("threads", options.threads),
            row("accepting_conns", 1),
            row("limit_maxbytes", self.limit()),
            row("curr_items", items),
            row("bytes", bytes),
        ];
        rows.extend(self.0.shared.counters.rows().into_iter().map(|(name, count)| row(name, count)));
        rows
    }

    /// Maximum memory of items in bytes. Zero, as in memcached: no limit is known.
    fn limit(&self) -> u64 {
        self.0.shared.limit_bytes.load(Ordering::Relaxed)
    }

    fn settings(&self) -> Vec<Row> {
        let options = &self.0.options;
        let idle = options.idle_timeout.map_or(0, |time| time.as_secs());
        let tcp = options.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => address.rsplit_once(':'),
            Listen::Unix { .. } => None,
        });
        let unix = options.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(_) => None,
            Listen::Unix { path, access } => Some((path.display().to_string(), access.mode)),
        });
        let mut rows = vec![
            row("maxbytes", self.limit()),
            row("maxconns", options.connections_max),
            row("tcpport", tcp.map_or("0", |(_, port)| port)),
            row("udpport", 0),
            row("inter", tcp.map_or("NULL", |(host, _)| host)),
            row("verbosity", 0),
            row("evictions", "on"),
            row("domain_socket", unix.as_ref().map_or("NULL", |(path, _)| path.as_str())),
            row("num_threads", options.threads),
            row("reqs_per_event", COMMANDS_MAX),
            row("cas_enabled", "yes"),
            row("auth_enabled_sasl", "no"),
            row("auth_enabled_ascii", "no"),
            row("item_size_max", options.item_bytes_max),
            row("flush_enabled", "yes"),
            row("dump_enabled", "yes"),
            row("idle_timeout", idle),
            row("answer_bytes_max", options.answer_bytes_max),
            row("request_bytes_max", options.request_bytes_max),
            row("table", options.table),
        ];
        rows.extend(unix.map(|(_, mode)| row("umask", format_args!("{mode:o}"))));
        rows
    }

    /// Returns the totals of the items of each class.
    fn by_class(&self) -> BTreeMap<usize, SizeTotal> {
        let mut classes = BTreeMap::new();
        for (size, of_size) in self.0.shared.age.by_size() {
            let none = SizeTotal { keys: 0, bytes: 0, used: u32::MAX };
            let class = classes.entry(classes::number_of(size)).or_insert(none);
            class.keys += of_size.keys;
            class.bytes += of_size.bytes;
            class.used = of_size.used.min(class.used);
        }
        classes
    }

    fn items(&self) -> Vec<Row> {
        let now = now().seconds();
        let rows = self.by_class().into_iter().flat_map(|(class, SizeTotal { keys, bytes, used })| {
            [("number", keys), ("age", now.saturating_sub(used).into()), ("mem_requested", bytes)]
                .map(|(name, value)| (format!("items:{class}:{name}").into(), value.to_string()))
        });
        rows.collect()
    }

    fn slabs(&self) -> Vec<Row> {
        let (mut rows, mut active, mut all): (Vec<Row>, u64, u64) = Default::default();
        for (class, SizeTotal { keys, bytes, .. }) in self.by_class() {
            let chunk = classes::bytes_of(class);
            // An item in several pieces has several chunks.
            let count = keys.max(bytes / chunk);
            let counters = self.0.shared.classes.of(chunk);
            let per_page = classes::items_per_page(class);
            let class_rows = [
                ("chunk_size", chunk),
                ("chunks_per_page", per_page),
                ("total_pages", count.div_ceil(per_page)),
                // Memory without an item belongs to the node.
                ("total_chunks", count),
                ("used_chunks", count),
                ("free_chunks", 0),
                ("free_chunks_end", 0),
                ("mem_requested", bytes),
                ("get_hits", counters.get_hits.get()),
                ("cmd_set", counters.sets.get()),
                ("cas_hits", counters.cas_hits.get()),
                ("cas_badval", counters.cas_badval.get()),
            ];
            rows.extend(
                class_rows.map(|(name, value)| (format!("{class}:{name}").into(), value.to_string())),
            );
            (active, all) = (active + 1, all + bytes);
        }
        rows.extend([row("active_slabs", active), row("total_malloced", all)]);
        rows
    }
}

/// Records that the first gateway of this process starts.
pub fn begin() {
    BEGUN.get_or_init(Instant::now);
}

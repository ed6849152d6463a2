//! The node's limits as options, and the limit of the library that each option sets.

use clap::Args;
use portcullis::host::PortLimits;
use portcullis::{Lifetime, NodeConfig, ViolationLimits};

/// The largest depth of a client's queues.
const DEPTH_MAX: u32 = 4096;

/// Options with good defaults.
#[derive(Args, Debug)]
#[command(next_help_heading = "Limits that seldom need a change")]
pub struct LimitOptions {
    /// The longest that a kept object stays after its tenant's last client has gone, or `forever`, which is as long as
    /// the node runs.
    #[arg(long, value_name = "TIME", value_parser = longest_keep, default_value = "60min")]
    longest_keep: Lifetime,
    /// Headers of 32 bytes in addition to the memory, for permissions over objects whose own header is taken.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().headers)]
    headers: u32,
    /// Objects of all tenants. Each takes about 200 bytes of the node's own memory.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().objects_max)]
    objects_max: u32,
    /// Requests of all clients that wait for other clients to release an object; one tenant gets at most half of them.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().postponed_max)]
    postponed_max: u32,
    /// Requests that the node takes in one turn: the largest batch.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().requests_per_turn)]
    requests_per_turn: u32,
    /// Steps of postponable work in one turn of the node, for example after a client that leaves much behind;
    /// operations of other clients wait for these.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().steps_per_turn)]
    steps_per_turn: u32,
    /// Queue pairs that are rebuilt at the same time.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().recoveries_max)]
    recoveries_max: u32,
    /// Windows that are kept ready for each tenant.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().windows_ready)]
    windows_ready: u32,
    /// Windows that a tenant may have, used or not.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().windows_max)]
    windows_max: u32,
    /// How long a window rests after its keys are used up.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    window_rest: Lifetime,
    /// The longest that the window of an ended permission stays bound with delayed unbinding.
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    linger_max: Lifetime,
    /// The time after which a free violation is forgiven.
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    violations_free_again: Lifetime,
    /// The first pause for violations; each further pause is twice as long.
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    violations_pause_min: Lifetime,
    /// The longest pause.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    violations_pause_max: Lifetime,
    /// Violations that cost a pause; the last of them leads to a bar.
    #[arg(long, value_name = "N", default_value_t = ViolationLimits::default().bar_after)]
    violations_bar_after: u32,
    /// The longest pause for late accesses, if the NIC reports what it refused.
    #[arg(long, value_name = "TIME", default_value = "16ms")]
    late_pause_max: Lifetime,
    /// Ended permissions of a client whose keys are remembered; a late access with an older key counts as a guess.
    #[arg(long, value_name = "N", default_value_t = ViolationLimits::default().keys_remembered)]
    keys_remembered: u32,
    /// Accesses of a tenant that count as late at the most, if the NIC does not report what it refused.
    #[arg(long, value_name = "N", default_value_t = ViolationLimits::default().excuses_max)]
    excuses_max: u32,
    /// The time after which one of those is forgiven.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    excuse_again: Lifetime,
    /// Audit records that wait to be written; further records are lost and counted.
    #[arg(long, value_name = "N", default_value_t = NodeConfig::default().audit_records_max)]
    audit_records_max: u32,
    /// The depth of each of a client's data queue pairs: a power of two, 4096 at most.
    #[arg(long, value_name = "N", value_parser = depth, default_value_t = PortLimits::default().send_depth)]
    send_depth: u32,
    /// Control messages of a client under way in each direction: a power of two, 4096 at most.
    #[arg(long, value_name = "N", value_parser = depth, default_value_t = PortLimits::default().control_depth)]
    control_depth: u32,
}

fn longest_keep(text: &str) -> Result<Lifetime, String> {
    if text == "forever" {
        Ok(Lifetime(u64::MAX))
    } else {
        text.parse::<Lifetime>().map_err(|error| error.to_string())
    }
}

fn depth(text: &str) -> Result<u32, String> {
    let depth = text.parse().ok().filter(|depth: &u32| depth.is_power_of_two() && *depth <= DEPTH_MAX);
    depth.ok_or_else(|| format!("a depth is a power of two, {DEPTH_MAX} at most"))
}

impl LimitOptions {
    /// The node's configuration with these limits.
    pub fn node(&self, rest: NodeConfig) -> NodeConfig {
        NodeConfig {
            longest_keep: self.longest_keep,
            headers: self.headers,
            objects_max: self.objects_max,
            postponed_max: self.postponed_max,
            requests_per_turn: self.requests_per_turn,
            steps_per_turn: self.steps_per_turn,
            recoveries_max: self.recoveries_max,
            windows_ready: self.windows_ready,
            windows_max: self.windows_max,
            window_rest: self.window_rest,
            linger_max: self.linger_max,
            audit_records_max: self.audit_records_max,
            violations: ViolationLimits {
                free_again: self.violations_free_again,
                pause_min: self.violations_pause_min,
                pause_max: self.violations_pause_max,
                bar_after: self.violations_bar_after,
                late_pause_max: self.late_pause_max,
                keys_remembered: self.keys_remembered,
                excuses_max: self.excuses_max,
                excuse_again: self.excuse_again,
                ..rest.violations
            },
            ..rest
        }
    }

    /// The limits of clients' ports.
    pub fn port(&self, arena_bytes_max: u64, ports_bytes_max: u64) -> PortLimits {
        let (send_depth, control_depth) = (self.send_depth, self.control_depth);
        PortLimits { send_depth, control_depth, arena_bytes_max, ports_bytes_max }
    }
}

/// The option for each limit, by the library's field name.
pub const OPTIONS: [(&str, &str); 33] = [
    ("pool_bytes", "--memory"),
    ("ports_bytes_max", "--ports-memory"),
    ("headers", "--headers"),
    ("longest_lifetime", "--longest-lifetime"),
    ("longest_wait", "--longest-wait"),
    ("longest_keep", "--longest-keep"),
    ("quota.bytes_max", "--quota-bytes"),
    ("objects_max", "--objects-max"),
    ("quota.objects_max", "--quota-objects"),
    ("quota.permissions_max", "--quota-permissions"),
    ("quota.names_max", "--quota-names"),
    ("quota.shares_max", "--quota-shares"),
    ("violations.free_again", "--violations-free-again"),
    ("violations.pause_min", "--violations-pause-min"),
    ("violations.pause_max", "--violations-pause-max"),
    ("violations.bar_after", "--violations-bar-after"),
    ("violations.bar_for", "--bar-for"),
    ("violations.late_grace", "--late-grace"),
    ("violations.keys_remembered", "--keys-remembered"),
    ("violations.excuse_again", "--excuse-again"),
    ("window_rest", "--window-rest"),
    ("linger_max", "--linger-max"),
    ("spare_queue_pairs", "--spare-queue-pairs"),
    ("windows_ready", "--windows-ready"),
    ("windows_max", "--windows-max"),
    ("recoveries_max", "--recoveries-max"),
    ("postponed_max", "--postponed-max"),
    ("clients_max", "--clients-max"),
    ("requests_per_turn", "--requests-per-turn"),
    ("steps_per_turn", "--steps-per-turn"),
    ("audit_records_max", "--audit-records-max"),
    ("send_depth", "--send-depth"),
    ("control_depth", "--control-depth"),
];

/// The option that sets a limit of the library.
pub fn option_of(limit: &'static str) -> &'static str {
    OPTIONS.into_iter().find(|(name, _)| *name == limit).map_or(limit, |(_, option)| option)
}

//! The limits that seldom need a change, as options.

use super::fields::options;
use clap::Args;
use portcullis::Lifetime;

/// The largest depth of a client's queues.
const DEPTH_MAX: u32 = 4096;

options! {
    /// Options with good defaults.
    #[derive(Args, Debug)]
    #[command(next_help_heading = "Limits that seldom need a change")]
    pub struct LimitOptions {
        /// The longest that a kept object stays after its tenant's last client has gone, or `forever`, which is as long
        /// as the node runs.
        #[arg(long, value_name = "TIME", value_parser = longest_keep, default_value = "60min")]
        longest_keep: Lifetime => node.longest_keep,
        /// Headers of 32 bytes in addition to the memory, for permissions over objects whose own header is taken.
        #[arg(long, value_name = "N")]
        headers: u32 = node.headers,
        /// Objects of all tenants. Each takes about 200 bytes of the node's own memory.
        #[arg(long, value_name = "N")]
        objects_max: u32 = node.objects_max,
        /// Requests of all clients that wait for other clients to release an object; one tenant gets at most half of
        /// them.
        #[arg(long, value_name = "N")]
        postponed_max: u32 = node.postponed_max,
        /// Requests that the node takes in one turn: the largest batch.
        #[arg(long, value_name = "N")]
        requests_per_turn: u32 = node.requests_per_turn,
        /// Steps of postponable work in one turn of the node, for example after a client that leaves much behind;
        /// operations of other clients wait for these.
        #[arg(long, value_name = "N")]
        steps_per_turn: u32 = node.steps_per_turn,
        /// Queue pairs that are rebuilt at the same time.
        #[arg(long, value_name = "N")]
        recoveries_max: u32 = node.recoveries_max,
        /// Windows that are kept ready for each tenant.
        #[arg(long, value_name = "N")]
        windows_ready: u32 = node.windows_ready,
        /// Windows that a tenant may have, used or not.
        #[arg(long, value_name = "N")]
        windows_max: u32 = node.windows_max,
        /// How long a window rests after its keys are used up.
        #[arg(long, value_name = "TIME", default_value = "1s")]
        window_rest: Lifetime => node.window_rest,
        /// The longest that the window of an ended permission stays bound with delayed unbinding.
        #[arg(long, value_name = "TIME", default_value = "1ms")]
        linger_max: Lifetime => node.linger_max,
        /// The time after which a free violation is forgiven.
        #[arg(long, value_name = "TIME", default_value = "100ms")]
        violations_free_again: Lifetime => node.violations.free_again,
        /// The first pause for violations; each further pause is twice as long.
        #[arg(long, value_name = "TIME", default_value = "1ms")]
        violations_pause_min: Lifetime => node.violations.pause_min,
        /// The longest pause.
        #[arg(long, value_name = "TIME", default_value = "1s")]
        violations_pause_max: Lifetime => node.violations.pause_max,
        /// Violations that cost a pause; the last of them leads to a bar.
        #[arg(long, value_name = "N")]
        violations_bar_after: u32 = node.violations.bar_after,
        /// The longest pause for late accesses, if the NIC reports what it refused.
        #[arg(long, value_name = "TIME", default_value = "16ms")]
        late_pause_max: Lifetime => node.violations.late_pause_max,
        /// Ended permissions of a client whose keys are remembered; a late access with an older key counts as a guess.
        #[arg(long, value_name = "N")]
        keys_remembered: u32 = node.violations.keys_remembered,
        /// Accesses of a tenant that count as late at the most, if the NIC does not report what it refused.
        #[arg(long, value_name = "N")]
        excuses_max: u32 = node.violations.excuses_max,
        /// The time after which one of those is forgiven.
        #[arg(long, value_name = "TIME", default_value = "200ms")]
        excuse_again: Lifetime => node.violations.excuse_again,
        /// Audit records that wait to be written; further records are lost and counted.
        #[arg(long, value_name = "N")]
        audit_records_max: u32 = node.audit_records_max,
        /// The depth of each of a client's data queue pairs: a power of two, 4096 at most.
        #[arg(long, value_name = "N", value_parser = depth)]
        send_depth: u32 = port.send_depth,
        /// Control messages of a client under way in each direction: a power of two, 4096 at most. The default is 32, or
        /// 64 where messages carry one request each: over UDP, and with node-copy.
        #[arg(long, value_name = "N", value_parser = depth)]
        control_depth: Option<u32> => port.control_depth,
        /// Requests of a client, and replies to it, that a control message has room for: 64 at most.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
        requests_per_message: u32 = port.requests_per_message,
    }
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

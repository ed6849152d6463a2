//! `portcullis admin`: shows the state of a running node to its operator, and lifts bars.

use crate::output::{complain, print_json, say};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use portcullis::host::WallTime;
use portcullis::host::admin::{Admin, AdminError, Bar, ClientReport, Counted, Standing, Violations};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

const EXAMPLES: &str = "\
Examples:
  # A node with a place for its operator.
  portcullis serve --listen shm:/run/p.sock --admin /run/p.admin
  # Barred and paused tenants and clients, with the times and the reasons.
  portcullis admin --node /run/p.admin list
  # Serve a tenant and its clients again at once.
  portcullis admin --node /run/p.admin unbar orange
  # Attached clients, what they hold, and what they were refused.
  portcullis admin --node /run/p.admin clients --json
  portcullis admin --node /run/p.admin counters

Only root and the user that the node runs as may use it. With --json each answer
is one JSON object, its times in UTC; tables have the same content.

Exit codes: 0 done; 1 no tenant of that name is barred or paused; 2 the call was
wrong; 3 no node answers there, or it refuses.";

/// Options of `portcullis admin`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AdminCommandOptions {
    /// The node's socket for operators, as given to its --admin.
    #[arg(long, value_name = "PATH", value_parser = crate::files::path())]
    node: PathBuf,
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object instead of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show which tenants and clients are barred or paused.
    List,
    /// Lift the bars and pauses of a tenant and of its clients.
    Unbar {
        /// The tenant, as `list` calls it.
        #[arg(value_name = "TENANT")]
        tenant: String,
    },
    /// Show the attached clients.
    Clients,
    /// Show the node's counters, and the state of its audit log.
    Counters,
}

/// A node's reply, in the form that programs read.
#[derive(Serialize)]
#[serde(untagged)]
enum Told {
    Bars { bars: Vec<Bar> },
    Unbarred { unbarred: bool },
    Clients { clients: Vec<ClientReport> },
    Counted(Box<Counted>),
}

/// Sends the request to the node and prints the reply.
pub fn run(options: &AdminCommandOptions) -> ExitCode {
    match ask(&Admin::at(&options.node), &options.command) {
        Ok(told) => {
            let nobody = matches!(told, Told::Unbarred { unbarred: false });
            if options.json {
                print_json(&told);
            } else {
                show(&told, &options.command);
            }
            ExitCode::from(u8::from(nobody))
        }
        Err(error) => {
            complain(format_args!("portcullis admin: {error}"));
            ExitCode::from(3)
        }
    }
}

fn ask(admin: &Admin, command: &Command) -> Result<Told, AdminError> {
    Ok(match command {
        Command::List => Told::Bars { bars: admin.bars()? },
        Command::Unbar { tenant } => Told::Unbarred { unbarred: admin.unbar(tenant)? },
        Command::Clients => Told::Clients { clients: admin.clients()? },
        Command::Counters => Told::Counted(Box::new(admin.counted()?)),
    })
}

fn show(told: &Told, command: &Command) {
    match told {
        Told::Bars { bars } if bars.is_empty() => say("No tenant or client is barred or paused."),
        Told::Bars { bars } => say(bars_table(bars, SystemTime::now())),
        Told::Unbarred { unbarred } => {
            let Command::Unbar { tenant } = command else { return };
            if *unbarred {
                say(format_args!("{tenant} is served again."));
            } else {
                complain(format_args!("Neither {tenant} nor a client of it is barred or paused."));
            }
        }
        Told::Clients { clients } if clients.is_empty() => say("No client is attached."),
        Told::Clients { clients } => say(clients_table(clients)),
        Told::Counted(counted) => say(counted_table(counted)),
    }
}

fn table<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table
}

fn bars_table(bars: &[Bar], now: SystemTime) -> Table {
    let mut table = table(["tenant", "client", "is", "since", "until", "left", "for"]);
    for bar in bars {
        table.add_row([
            bar.tenant.clone(),
            bar.client.map_or_else(|| "all".to_owned(), |client| client.to_string()),
            if bar.barred { "barred" } else { "paused" }.to_owned(),
            seconds(bar.since),
            seconds(bar.until),
            left(bar.until, now),
            bar.reason.clone(),
        ]);
    }
    table
}

/// A time to the second, for people.
fn seconds(time: WallTime) -> String {
    let text = time.to_string();
    text.split_once('.').map_or(text.clone(), |(whole, _)| format!("{whole}Z"))
}

/// The time left until `until`, in whole seconds, rounded up.
fn left(until: WallTime, now: SystemTime) -> String {
    let left = SystemTime::from(until).duration_since(now).unwrap_or_default();
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

fn clients_table(clients: &[ClientReport]) -> Table {
    let mut table = table([
        "client",
        "tenant",
        "process",
        "permissions",
        "bytes",
        "chunks",
        "late",
        "stray",
        "guesses",
        "is",
    ]);
    for client in clients {
        let Violations { late, stray, guesses } = client.violations;
        table.add_row([
            client.client.to_string(),
            client.tenant.clone(),
            client.process.map_or_else(|| "elsewhere".to_owned(), |process| process.to_string()),
            client.permissions.to_string(),
            client.bytes.to_string(),
            client.chunks.to_string(),
            late.to_string(),
            stray.to_string(),
            guesses.to_string(),
            standing(client.standing),
        ]);
    }
    table
}

fn standing(standing: Standing) -> String {
    match standing {
        Standing::Good => "served".to_owned(),
        Standing::Paused { until } => format!("paused until {}", seconds(until)),
        Standing::Barred { until } => format!("barred until {}", seconds(until)),
    }
}

/// Each counter under the name that programs read.
fn counted_table(counted: &Counted) -> Table {
    let mut table = table(["counter", ""]);
    let parts = [serde_json::to_value(counted.counters), serde_json::to_value(&counted.audit)];
    for (prefix, part) in ["", "audit log: "].into_iter().zip(parts) {
        let fields = part.ok().and_then(|part| part.as_object().cloned()).unwrap_or_default();
        for (name, value) in fields {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            table.add_row([format!("{prefix}{}", name.replace('_', " ")), value]);
        }
    }
    table.add_row(["longest turn, us".to_owned(), counted.turns.longest_us.to_string()]);
    table.add_row([
        "longest turn of the processor, us".to_owned(),
        counted.turns.longest_of_processor_us.to_string(),
    ]);
    for (number, unit) in counted.copy_units.iter().enumerate() {
        table.add_row([format!("copy unit {number}: pieces"), unit.pieces.to_string()]);
        table.add_row([format!("copy unit {number}: bytes"), unit.bytes.to_string()]);
        table.add_row([format!("copy unit {number}: pieces that wait"), unit.waiting.to_string()]);
    }
    for (number, engine) in counted.engines.iter().enumerate() {
        table.add_row([format!("engine {number}: clients"), engine.clients.to_string()]);
        table.add_row([format!("engine {number}: requests"), engine.requests.to_string()]);
    }
    for (number, lane) in counted.udp_lanes.iter().enumerate() {
        table.add_row([format!("udp lane {number}: operations"), lane.operations.to_string()]);
        table.add_row([format!("udp lane {number}: refused"), lane.refused.to_string()]);
        table.add_row([format!("udp lane {number}: congested"), lane.congested.to_string()]);
    }
    for (micros, turns) in &counted.turns.shorter_than_us {
        table.add_row([format!("turns < {micros} us"), turns.to_string()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> WallTime {
        text.parse().expect("a time")
    }

    fn bar(client: Option<u64>) -> Bar {
        Bar {
            tenant: "orange".to_owned(),
            client,
            barred: client.is_none(),
            since: time("2026-01-01T12:00:00.250000Z"),
            until: time("2026-01-01T12:10:00.250000Z"),
            reason: "guess of a key".to_owned(),
        }
    }

    #[test]
    fn a_person_reads_who_is_barred_until_when_and_what_for() {
        let now = SystemTime::from(time("2026-01-01T12:08:30Z"));
        let table = bars_table(&[bar(None), bar(Some(7))], now).to_string();
        for part in [
            "| orange | all    | barred | 2026-01-01T12:00:00Z | 2026-01-01T12:10:00Z | 1 min 31 s | guess of a key |",
            "| orange | 7      | paused |",
        ] {
            assert!(table.contains(part), "{table}");
        }
        assert_eq!(left(time("2026-01-01T12:00:00Z"), now), "0 s");
    }

    #[test]
    fn a_client_of_another_machine_has_no_process_here() {
        let client = ClientReport {
            client: 7,
            tenant: "orange".to_owned(),
            process: None,
            permissions: 3,
            bytes: 192,
            chunks: 0,
            violations: Violations { late: 1, ..Violations::default() },
            standing: Standing::Paused { until: bar(None).until },
        };
        let table = clients_table(&[client]).to_string();
        assert!(
            table.contains("elsewhere") && table.contains("paused until 2026-01-01T12:10:00Z"),
            "{table}"
        );
    }

    #[test]
    fn counters_are_told_by_their_names_and_the_audit_log_by_its_trouble() {
        let mut counted = Counted::default();
        counted.counters.grants = 4711;
        let told = counted_table(&counted).to_string();
        assert!(
            told.contains("| grants ") && told.contains("4711") && !told.contains("audit log:"),
            "{told}"
        );
        let failing = Some("No space left".to_owned());
        counted.audit = Some(portcullis::host::AuditStatus { failing, ..Default::default() });
        let told = counted_table(&counted).to_string();
        assert!(told.contains("| audit log: failing ") && told.contains("| No space left |"), "{told}");
    }
}

//! A node process for the duration of a benchmark.

use super::{BenchError, BenchOptions, processors};
use crate::network::{DeviceOptions, NicKind};
use portcullis::Mechanism;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A `portcullis serve` for the benchmark. Dropping it stops the node and removes its folder.
pub struct NodeProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    addresses: Vec<String>,
    _folder: tempfile::TempDir,
}

/// The counters that a node process prints on SIGUSR1, as far as benchmarks need them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Counted {
    pub control_messages: u64,
    pub window_operations: u64,
    pub grants: u64,
    pub audit_lost: u64,
}

#[derive(Deserialize)]
struct Words {
    counters: Counted,
    turns: TurnsCounted,
}

/// The longest turns of the node's thread, in microseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct TurnsCounted {
    pub longest_us: u64,
    pub longest_of_processor_us: u64,
}

/// Bytes that a node lends by default.
pub const MEMORY: u64 = 256 << 20;

/// A node's first line.
#[derive(Deserialize)]
struct Listening {
    listening: Vec<String>,
}

/// The settings of a node process.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub protection: Mechanism,
    /// Techniques of Patronus §5.4 that the node does not use.
    pub without: Vec<&'static str>,
    /// The number of free violations, for benchmarks that make many on purpose.
    pub violations_free: Option<u32>,
    /// The NIC of the node.
    pub nic: NicKind,
    pub device: DeviceOptions,
    /// Guarantees that the node's device may lack.
    pub allow_unenforced: Option<String>,
    /// The events that the node writes to an audit log in its folder. `None`: no log. Empty: all events.
    pub audit: Option<&'static [&'static str]>,
    /// Tenants that each have their own socket. Empty: one socket for all.
    pub tenants: &'static [&'static str],
    /// Bytes that the node lends.
    pub memory: Option<u64>,
    /// More options for `portcullis serve`.
    pub more: Vec<String>,
}

/// The node that the options name, or a new one that lives as long as the returned value; and the node's address.
pub fn named_or_own(options: &BenchOptions) -> Result<(Option<NodeProcess>, String), BenchError> {
    if let Some(address) = &options.node {
        return Ok((None, address.clone()));
    }
    let own = NodeProcess::start(&options.setup())?;
    let address = own.address().to_owned();
    Ok((Some(own), address))
}

impl NodeProcess {
    /// Starts a node on its processor, waits until it listens, and keeps this thread on the other processor.
    pub fn start(setup: &Setup) -> Result<Self, BenchError> {
        let folder = tempfile::tempdir()?;
        let socket = |name: &str| format!("shm:{}", folder.path().join(name).display());
        let addresses = match (setup.nic.any_port(), setup.tenants) {
            (None, []) => vec![socket("node.sock")],
            (None, tenants) => tenants.iter().map(|tenant| socket(tenant)).collect(),
            (Some(port), _) => vec![port.to_owned()],
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--json", "--memory", &setup.memory.unwrap_or(MEMORY).to_string()]);
        for (place, address) in addresses.iter().enumerate() {
            let tenant = setup.tenants.get(place).map(|tenant| format!("?tenant={tenant}"));
            command.arg("--listen").arg(format!("{address}{}", tenant.unwrap_or_default()));
        }
        command.args(&setup.more);
        command.args(["--protection", setup.protection.name(), "--stop-at-end-of-input"]);
        if let Some((processor, _)) = processors::pair() {
            command.args(["--processors", &processor.to_string()]);
        }
        if !setup.without.is_empty() {
            command.args(["--without", &setup.without.join(",")]);
        }
        if let Some(free) = setup.violations_free {
            command.args(["--violations-free", &free.to_string()]);
        }
        if let Some(events) = setup.audit {
            command.arg("--audit").arg(folder.path().join("audit.jsonl"));
            command.args((!events.is_empty()).then(|| format!("--audit-events={}", events.join(","))));
        }
        command.args(setup.device.arguments());
        if let Some(guarantees) = &setup.allow_unenforced {
            command.args(["--allow-unenforced", guarantees]);
        }
        processors::unpin();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let Some(output) = child.stdout.take() else { return Err(BenchError::NoCounters) };
        let mut node = Self { child, output: BufReader::new(output), addresses, _folder: folder };
        let mut line = String::new();
        node.output.read_line(&mut line)?;
        if line.is_empty() {
            let status = node.child.wait()?;
            return Err(std::io::Error::other(format!("it ended with {status} before it listened")).into());
        }
        let said: Listening = serde_json::from_str(&line).map_err(std::io::Error::from)?;
        if let ([listening], [address]) = (&said.listening[..], &mut node.addresses[..]) {
            address.clone_from(listening);
        }
        processors::pin_client();
        Ok(node)
    }

    pub fn address(&self) -> &str {
        &self.addresses[0]
    }

    /// The addresses for the tenants' clients, in the order of the tenants.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The node's process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The node's counters so far.
    pub fn counted(&mut self) -> Result<Counted, BenchError> {
        Ok(self.ask()?.counters)
    }

    /// The longest turns of the node's thread so far.
    pub fn turns(&mut self) -> Result<TurnsCounted, BenchError> {
        Ok(self.ask()?.turns)
    }

    fn ask(&mut self) -> Result<Words, BenchError> {
        self.signal(Signal::USR1);
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|_| BenchError::NoCounters)
    }

    fn signal(&self, signal: Signal) {
        let Ok(number) = i32::try_from(self.child.id()) else { return };
        if let Some(process) = Pid::from_raw(number) {
            let _ = kill_process(process, signal);
        }
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let _ = self.child.wait();
    }
}

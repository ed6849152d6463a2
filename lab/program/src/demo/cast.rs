//! The processes of the demo, as the director sees them. Each has a deadline, and none outlives the director.

use super::orders::{Order, OrderReply};
use super::processors::Processors;
use crate::network::{DeviceOptions, NicKind};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The longest wait for one answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// The longest time that a node may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// The longest time that a node may take to notice that its clients have left.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The time between two checks whether the user wants to stop the demo.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The tenants of every node in the demo.
const ORANGE_AND_BLUE: [&str; 2] = ["orange", "blue"];

/// A reason why a part of the demo was not completed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// No answer arrived in time.
    #[error("{who} did not answer in time")]
    Slow {
        /// The process.
        who: String,
    },
    /// A process has ended.
    #[error("{who} has ended")]
    Gone {
        /// The process.
        who: String,
    },
    /// A process failed.
    #[error("{who}: {why}")]
    Failed {
        /// The process.
        who: String,
        /// The process's message.
        why: String,
    },
    /// A process gave an unexpected answer.
    #[error("{who} sent an unexpected answer: {answer}")]
    Strange {
        /// The process.
        who: String,
        /// The answer.
        answer: String,
    },
    /// The machine refused a process, folder or signal.
    #[error("the machine refused: {0}")]
    Machine(#[from] std::io::Error),
}

/// The deadline of the demo, and whether the user wants to stop it.
#[derive(Clone, Debug)]
pub struct Patience {
    until: Instant,
    stopped: Arc<AtomicBool>,
}

impl Patience {
    /// A deadline at `all_within` from now, or when `stopped` is set.
    pub fn new(all_within: Duration, stopped: Arc<AtomicBool>) -> Self {
        Self { until: Instant::now() + all_within, stopped }
    }

    /// Whether the user wants to stop the demo.
    pub fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Calls `ask` again and again until it returns an answer.
    fn wait<T>(
        &self,
        at_most: Duration,
        who: &str,
        mut ask: impl FnMut(Duration) -> Result<Option<T>, DemoError>,
    ) -> Result<T, DemoError> {
        let until = self.until.min(Instant::now() + at_most);
        loop {
            if self.is_over() {
                return Err(DemoError::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if let Some(answer) = ask(left.min(LOOK_EVERY))? {
                return Ok(answer);
            }
            if left.is_zero() {
                return Err(DemoError::Slow { who: who.to_owned() });
            }
        }
    }
}

/// A child process, killed on drop.
#[derive(Debug)]
struct Process {
    who: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    patience: Patience,
}

impl Process {
    fn start(who: String, arguments: &[String], patience: &Patience) -> Result<Self, DemoError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (sender, lines) = channel();
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let process = Self { who, child, input, lines, patience: patience.clone() };
        // This thread ends with the process whose output it reads.
        std::thread::Builder::new().name("lines".to_owned()).spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                if line.map_or(true, |line| sender.send(line).is_err()) {
                    return;
                }
            }
        })?;
        Ok(process)
    }

    fn line(&self, at_most: Duration) -> Result<String, DemoError> {
        self.patience.wait(at_most, &self.who, |slice| match self.lines.recv_timeout(slice) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(DemoError::Gone { who: self.who.clone() }),
        })
    }

    fn signal(&self, signal: Signal) -> Result<(), DemoError> {
        Ok(kill_process(Pid::from_child(&self.child), signal).map_err(std::io::Error::from)?)
    }

    fn exit(&mut self, at_most: Duration) -> Result<ExitStatus, DemoError> {
        let Self { child, patience, who, .. } = self;
        patience.wait(at_most, who, |slice| {
            let status = child.try_wait()?;
            if status.is_none() {
                std::thread::sleep(slice.min(Duration::from_millis(2)));
            }
            Ok(status)
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may be frozen, or have ended already. Errors do not matter here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder, processors and NIC with which nodes are started, and the deadline.
#[derive(Clone, Debug)]
pub struct Ground<'a> {
    /// The folder for sockets.
    pub folder: &'a Path,
    /// Processors for nodes and clients.
    pub processors: Processors,
    /// The deadline of all waits.
    pub patience: &'a Patience,
    /// The NIC of the nodes.
    pub nic: NicKind,
    /// The RDMA device, if nodes use one.
    pub device: &'a DeviceOptions,
}

/// The first line that a node prints.
#[derive(Deserialize)]
struct Listening {
    listening: Vec<String>,
    protection: String,
}

/// The line that a node prints when its counters are requested.
#[derive(Deserialize)]
struct Counted {
    counters: Counters,
}

#[derive(Deserialize)]
struct Counters {
    objects: u64,
}

/// A node process with an address for each of the two tenants.
#[derive(Debug)]
pub struct Node {
    process: Process,
    folder: PathBuf,
    /// The addresses for clients, by tenant.
    addresses: Vec<String>,
    protection: String,
    /// The arguments that name the device to the node's clients.
    device: Vec<String>,
    clients_on: Vec<usize>,
}

impl Node {
    /// Starts `portcullis serve` and waits until it listens.
    pub fn start(ground: &Ground<'_>, name: &str, options: &[&str]) -> Result<Self, DemoError> {
        let folder = ground.folder.join(name);
        std::fs::create_dir(&folder)?;
        let mut arguments =
            vec!["serve".to_owned(), "--json".to_owned(), "--stop-at-end-of-input".to_owned()];
        for tenant in ORANGE_AND_BLUE {
            let socket = || format!("shm:{}", socket_of(&folder, tenant).display());
            let address = ground.nic.any_port().map_or_else(socket, str::to_owned);
            arguments.extend(["--listen".to_owned(), format!("{address}?tenant={tenant}")]);
        }
        arguments.extend(ground.device.arguments());
        arguments.extend(options.iter().map(|&option| option.to_owned()));
        if let Some(processor) = ground.processors.node {
            arguments.extend(["--processors".to_owned(), processor.to_string()]);
        }
        let process = Process::start(format!("the {name} node"), &arguments, ground.patience)?;
        let line = process.line(ANSWER_WITHIN)?;
        let strange = |_| DemoError::Strange { who: process.who.clone(), answer: line.clone() };
        let Listening { listening, protection } = serde_json::from_str(&line).map_err(strange)?;
        let addresses =
            listening.iter().filter_map(|place| Some(place.split_once('?')?.0.to_owned())).collect();
        let (device, clients_on) = (ground.device.arguments(), ground.processors.clients.clone());
        Ok(Self { process, folder, addresses, protection, device, clients_on })
    }

    /// The node's process id.
    pub fn process(&self) -> u32 {
        self.process.child.id()
    }

    /// The node's protection mechanism.
    pub fn protection(&self) -> &str {
        &self.protection
    }

    /// Starts a client process of a tenant.
    pub fn client(&self, tenant: &'static str, role: &str) -> Result<ClientProcess, DemoError> {
        let place = ORANGE_AND_BLUE.iter().position(|&it| it == tenant);
        let address = place.and_then(|place| self.addresses.get(place)).cloned().unwrap_or_default();
        let mut arguments = vec!["demo".to_owned(), "--act-at".to_owned(), address];
        arguments.extend(self.device.iter().cloned());
        if !self.clients_on.is_empty() {
            let processors: Vec<String> = self.clients_on.iter().map(usize::to_string).collect();
            arguments.extend(["--act-on".to_owned(), processors.join(",")]);
        }
        let who = format!("the {role} of tenant {tenant}");
        let process = Process::start(who, &arguments, &self.process.patience)?;
        let mut client = ClientProcess { process, tenant, number: 0 };
        match client.answer()? {
            OrderReply::Ready { client: number } => {
                client.number = number;
                Ok(client)
            }
            other => Err(client.strange(&other)),
        }
    }

    /// The number of the node's objects, once it is as expected, or after a while.
    pub fn objects(&self, expected: u64) -> Result<u64, DemoError> {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            self.process.signal(Signal::USR1)?;
            let line = self.process.line(ANSWER_WITHIN)?;
            let strange = |_| DemoError::Strange { who: self.process.who.clone(), answer: line.clone() };
            let Counted { counters } = serde_json::from_str(&line).map_err(strange)?;
            if counters.objects == expected || Instant::now() > until {
                return Ok(counters.objects);
            }
        }
    }

    /// Stops the node. Returns whether it ended with exit code 0 and removed its sockets.
    pub fn stop(mut self) -> Result<bool, DemoError> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.exit(STOP_WITHIN)?;
        let sockets_gone = ORANGE_AND_BLUE.iter().all(|tenant| !socket_of(&self.folder, tenant).exists());
        Ok(status.success() && sockets_gone)
    }
}

fn socket_of(folder: &Path, tenant: &str) -> PathBuf {
    folder.join(format!("{tenant}.sock"))
}

/// A client process.
#[derive(Debug)]
pub struct ClientProcess {
    process: Process,
    tenant: &'static str,
    number: u64,
}

impl ClientProcess {
    /// The client's tenant.
    pub fn tenant(&self) -> &'static str {
        self.tenant
    }

    /// The client's number on its node. The audit log names a client by this number, also a client of another machine.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Sends an order to the client.
    pub fn order(&mut self, order: &Order) -> Result<(), DemoError> {
        let gone = || DemoError::Gone { who: self.process.who.clone() };
        let mut line = serde_json::to_vec(order).map_err(std::io::Error::from)?;
        line.push(b'\n');
        let input = self.process.input.as_mut().ok_or_else(gone)?;
        input.write_all(&line).and_then(|()| input.flush()).map_err(|_| gone())
    }

    /// The client's next answer.
    pub fn answer(&mut self) -> Result<OrderReply, DemoError> {
        self.hear(&self.process.line(ANSWER_WITHIN)?)
    }

    /// The client's next answer, if it arrives within `at_most`.
    pub fn answer_within(&mut self, at_most: Duration) -> Result<Option<OrderReply>, DemoError> {
        match self.process.line(at_most) {
            Ok(line) => self.hear(&line).map(Some),
            Err(DemoError::Slow { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn hear(&self, line: &str) -> Result<OrderReply, DemoError> {
        let strange = |_| DemoError::Strange { who: self.process.who.clone(), answer: line.to_owned() };
        match serde_json::from_str(line).map_err(strange)? {
            OrderReply::Failed { why } => Err(DemoError::Failed { who: self.process.who.clone(), why }),
            answer => Ok(answer),
        }
    }

    /// Sends an order to the client and waits for the answer.
    pub fn ask(&mut self, order: &Order) -> Result<OrderReply, DemoError> {
        self.order(order)?;
        self.answer()
    }

    /// The error for an unexpected answer.
    pub fn strange(&self, answer: &OrderReply) -> DemoError {
        match answer {
            OrderReply::Refused { why } => {
                DemoError::Failed { who: self.process.who.clone(), why: why.clone() }
            }
            other => DemoError::Strange { who: self.process.who.clone(), answer: format!("{other:?}") },
        }
    }

    /// Kills the client with SIGKILL.
    pub fn kill(&self) -> Result<(), DemoError> {
        self.process.signal(Signal::KILL)
    }

    /// Freezes the client with SIGSTOP.
    pub fn freeze(&self) -> Result<(), DemoError> {
        self.process.signal(Signal::STOP)
    }

    /// Lets a frozen client continue.
    pub fn thaw(&self) -> Result<(), DemoError> {
        self.process.signal(Signal::CONT)
    }
}

//! `portcullis kv queue claim`: runs a command for each entry, and acknowledges the entry when the command has
//! succeeded.

use super::super::bytes::beginning;
use super::{CommandOutcome, KvCommandError, Target, open};
use crate::output::complain;
use clap::Args;
use portcullis::{DirectoryName, Lifetime};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Claim, Queue, QueueError};
use std::ffi::OsString;
use std::io::Write;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

const EXAMPLES: &str = "\
Examples:
  # One entry, on the command's standard input.
  portcullis kv queue claim --node shm:/run/p.sock jobs -- wc -c
  # One after another, until none arrives for a minute or the queue is ended.
  portcullis kv queue claim --node shm:/run/p.sock jobs --each --wait 60s \\
      -- ./work
  # An entry that has failed five times is put into another queue.
  portcullis kv queue claim --node shm:/run/p.sock jobs --each \\
      --deliveries-max 5 --dead-letters failed -- ./work

The command reads the entry from its standard input, and PORTCULLIS_DELIVERIES
is the number of times that the entry was delivered. The claim is extended while
the command runs. The entry is acknowledged if the command ends with 0, and
given back otherwise: it is delivered again at once, to any consumer. If this
program or its machine dies, the entry is delivered again after the lease.

Exit codes: 0 each command has ended with 0; 1 a command has not, or there was
no entry; 2 the call was wrong; 3 there is no such queue, or the node refuses or
is gone.";

/// Number of parts into which a lease is divided: after each of them the claim is extended.
const EXTENSIONS_A_LEASE: u64 = 3;

/// Options of `portcullis kv queue claim`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvQueueClaimOptions {
    #[command(flatten)]
    target: Target,
    /// The time after which the entry is delivered again if this program dies.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    lease: Lifetime,
    /// The longest wait for an entry.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Lifetime,
    /// Continue with the next entry, until none arrives within --wait or the queue is ended.
    #[arg(long)]
    each: bool,
    /// Put an entry that was delivered this often into --dead-letters instead.
    #[arg(long, value_name = "N", requires = "dead_letters")]
    deliveries_max: Option<u32>,
    /// The queue for entries that were delivered too often.
    #[arg(long, value_name = "QUEUE", requires = "deliveries_max")]
    dead_letters: Option<DirectoryName>,
    /// The command, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Claims entries and runs the command for them.
pub fn run(options: &KvQueueClaimOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvQueueClaimOptions { target, each, dead_letters, .. } = options;
    let pipeline = target.connect()?;
    let queue = target.open(&pipeline)?;
    let dead_letters = dead_letters.map(|name| open(&pipeline, name)).transpose()?;
    let mut outcome = CommandOutcome::AsAsked;
    let mut done = 0u64;
    loop {
        let Some(claim) = options.claim(&pipeline, &queue, dead_letters.as_ref())? else { break };
        done += 1;
        if !options.work(&pipeline, &queue, claim)? {
            outcome = CommandOutcome::NotAll;
        }
        if !each {
            return Ok(outcome);
        }
    }
    if done == 0 {
        complain(format_args!("portcullis kv: queue {} has no entry to claim", target.queue));
        return Ok(CommandOutcome::NotAll);
    }
    Ok(outcome)
}

impl KvQueueClaimOptions {
    /// Claims an entry. `None`: no entry arrived in time, or the queue is ended and each entry was acknowledged.
    fn claim(
        &self,
        pipeline: &Pipeline,
        queue: &Queue,
        dead_letters: Option<&Queue>,
    ) -> Result<Option<Claim>, KvCommandError> {
        let claimed = match (self.deliveries_max, dead_letters) {
            (Some(most), Some(dead)) => {
                pipeline.block_on(queue.claim_or_bury_within(self.lease, self.wait, (most, dead)))
            }
            _ => pipeline.block_on(queue.claim_within(self.lease, self.wait)),
        };
        match claimed {
            Err(QueueError::Closed) => Ok(None),
            claimed => claimed.map_err(self.target.command_error()),
        }
    }

    /// Runs the command for an entry. Returns whether the entry is done.
    fn work(&self, pipeline: &Pipeline, queue: &Queue, mut claim: Claim) -> Result<bool, KvCommandError> {
        let status = match self.start(&claim) {
            Ok(child) => self.wait_for(pipeline, queue, child, &mut claim)?,
            Err(error) => {
                self.settle(pipeline.block_on(queue.give_back(claim.id)), &claim)?;
                return Err(error);
            }
        };
        if status.success() {
            return self.settle(pipeline.block_on(queue.acknowledge(claim.id)), &claim);
        }
        let what = beginning(&claim.entry);
        complain(format_args!(
            "portcullis kv: the command for {what} ended with {status}: the entry is delivered again"
        ));
        self.settle(pipeline.block_on(queue.give_back(claim.id)), &claim)?;
        Ok(false)
    }

    fn start(&self, claim: &Claim) -> Result<Child, KvCommandError> {
        let program = &self.command[0];
        let mut command = std::process::Command::new(program);
        command.args(&self.command[1..]).env("PORTCULLIS_DELIVERIES", claim.id.deliveries().to_string());
        let failed =
            |error| KvCommandError::File { what: format!("{} cannot be run", program.display()), error };
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(failed)?;
        let mut input = child.stdin.take().expect("it is piped");
        let entry = claim.entry.clone();
        // The result is ignored: a command may read the entry in part or not at all.
        std::thread::spawn(move || input.write_all(&entry));
        Ok(child)
    }

    /// Waits for the command, and extends the claim until the command ends.
    fn wait_for(
        &self,
        pipeline: &Pipeline,
        queue: &Queue,
        mut child: Child,
        claim: &mut Claim,
    ) -> Result<ExitStatus, KvCommandError> {
        let (ended, ends) = sync_channel(1);
        std::thread::spawn(move || ended.send(child.wait()));
        let mut is_held = true;
        loop {
            match ends.recv_timeout(Lifetime(self.lease.0 / EXTENSIONS_A_LEASE).into()) {
                Ok(status) => {
                    let what = || "the command cannot be waited for".to_owned();
                    return status.map_err(|error| KvCommandError::File { what: what(), error });
                }
                Err(RecvTimeoutError::Timeout) if is_held => {
                    match pipeline.block_on(queue.extend_claim(claim.id, self.lease)) {
                        Ok(id) => claim.id = id,
                        extended => is_held = self.settle(extended.map(|_| ()), claim)?,
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends how the command ended"),
            }
        }
    }

    /// Returns whether the claim was still valid.
    fn settle(&self, done: Result<(), QueueError>, claim: &Claim) -> Result<bool, KvCommandError> {
        match done {
            Ok(()) => Ok(true),
            Err(QueueError::ClaimEnded) => {
                let what = beginning(&claim.entry);
                complain(format_args!(
                    "portcullis kv: the claim of {what} has ended, and another consumer may repeat the work: give a longer --lease"
                ));
                Ok(false)
            }
            Err(error) => Err(self.target.command_error()(error)),
        }
    }
}

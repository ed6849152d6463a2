//! `portcullis far`: runs an unmodified program with most of its memory on a node.

use crate::network::ClientOptions;
use crate::output::{complain, complain_lines};
use clap::Args;
use portcullis::host::{Host, HostConfig, HostError};
use portcullis::{
    ChunkLimits, ConnectError, IdentityError, NodeConfig, Session, SessionOptions, connect_with,
};
use portcullis_far::{Ended, FarError, LOCAL_MIN, Monitor, Pins, Program, SEGMENT_BYTES, Sizes, Summary};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const EXAMPLES: &str = "\
Examples:
  portcullis serve --memory 2GiB --chunks 1024 --chunk-bytes 1MiB \\
      --listen shm:/run/portcullis.sock
  portcullis far --node shm:/run/portcullis.sock --local 256MiB -- \\
      sort --parallel=1 -S 900M big.txt
  portcullis far --local 64MiB -- python3 script.py    # a node in the process
  portcullis far --json --report far.json -- sqlite3 :memory: < queries.sql

The program's malloc allocates memory in a range of --range bytes. At most
--local bytes of it are on this machine; the rest is in chunks of the node and
is fetched page by page when it is touched. Python keeps small objects out of
malloc unless PYTHONMALLOC=malloc is set.

The program's exit code is passed on, and so are signals. If its memory is
not available any more, because the node has ended or is full, the program is
killed, the reason is printed, and the exit code is 3.

A page that a device or the kernel has pinned (direct I/O, io_uring), or that
the program has locked (mlock), stays on this machine, also beyond --local.

A child that the program forks has the program's memory as it was; pages on the
node are fetched when the child touches them and stay here, beyond --local.
Memory that the child allocates is not far. Forks need root or CAP_SYS_PTRACE:
without them, fork fails with ENOMEM once the program has far memory. Executing
other programs by vfork or posix_spawn, as system and popen do, always works.";

/// The library that programs load.
const LIBRARY: &str = "libportcullis_preload.so";
/// Bytes that the node of a trial lends in addition to its chunks.
const TRIAL_POOL_BYTES: u64 = 16 << 20;
/// The range's chunks divided by this are additional chunks that the node of a trial lends, for memory that forked
/// children still see unchanged.
const SNAPSHOTS_PART: u64 = 2;
/// Share of far memory below which the user is warned that hardly any of the program's memory was far.
const FAR_SHARE_MIN: f64 = 0.1;
/// A program with less memory than this needs no far memory.
const OWN_BYTES_MIN: u64 = 32 << 20;

/// How much memory is where.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct FarOptions {
    /// The node that holds the memory, such as shm:/run/portcullis.sock or name:bank/node1. It serves chunks of 1 MiB
    /// [default: a node inside this process, to try it].
    #[arg(long, value_name = "ADDRESS")]
    node: Option<String>,
    #[command(flatten)]
    client: ClientOptions,
    /// The most bytes of the program's memory that are on this machine.
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = local)]
    local: u64,
    /// The most memory that the program can have.
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = range)]
    range: u64,
    /// Bytes of small blocks that stay on this machine, the first ones that are allocated; counted in --local.
    #[arg(long, default_value = "2MiB", value_name = "SIZE", value_parser = crate::size::parse)]
    first: u64,
    /// Blocks of fewer bytes stay on this machine, and are not counted.
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = crate::size::parse)]
    least: u64,
    /// Run also on a kernel before Linux 6.8, which cannot report the pages that a device or the kernel is writing to.
    /// Bytes that arrive in such a page while it is taken out are lost, and memory that the program drops by madvise may
    /// have its old bytes. Only for programs without direct I/O and io_uring.
    #[arg(long)]
    risk_pinned_pages: bool,
    /// Print the summary on standard error as one JSON object.
    #[arg(long)]
    json: bool,
    /// Write the summary into a file, as one JSON object, and do not print it.
    #[arg(long, value_name = "FILE", value_parser = crate::files::path())]
    report: Option<PathBuf>,
    /// The library that the program loads [default: beside this program].
    #[arg(long, value_name = "PATH", value_parser = crate::files::path())]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<std::ffi::OsString>,
}

fn local(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    let least = LOCAL_MIN >> 20;
    if bytes >= LOCAL_MIN { Ok(bytes) } else { Err(format!("at least {least}MiB must be local")) }
}

fn range(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    let is_sound = bytes.is_multiple_of(SEGMENT_BYTES) && (SEGMENT_BYTES..=1 << 42).contains(&bytes);
    is_sound.then_some(bytes).ok_or_else(|| "a range has 1MiB to 4TiB, a multiple of 1MiB".to_owned())
}

/// A reason why a program was not run, or did not run to its end.
#[derive(Debug, thiserror::Error)]
enum FarCommandError {
    #[error(transparent)]
    Far(#[from] FarError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("cannot start a node in this process: {0}")]
    Host(#[from] HostError),
    #[error("--first may be a quarter of --local at most")]
    First,
    #[error("cannot pass signals on to the program: {0}")]
    Signals(std::io::Error),
    #[error("cannot write {}: {source}", path.display())]
    Report { path: PathBuf, source: std::io::Error },
    #[error(
        "there is no {LIBRARY} beside {}: build it with cargo build --release -p portcullis-preload, or name it with \
         --library",
        place.display()
    )]
    NoLibrary { place: PathBuf },
}

/// Runs a program.
pub fn run(options: FarOptions) -> ExitCode {
    match serve(&options) {
        Ok(Ended::Exited(code)) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        Ok(Ended::Signalled(signal)) => end_by(signal),
        Err(error) => {
            complain(format_args!("portcullis far: {error}"));
            ExitCode::from(if matches!(error, FarCommandError::NoLibrary { .. } | FarCommandError::First) {
                2
            } else {
                3
            })
        }
    }
}

fn serve(options: &FarOptions) -> Result<Ended, FarCommandError> {
    let library = library(options.library.as_deref())?;
    let FarOptions { range, local, first, least, .. } = *options;
    if first > local / 4 {
        return Err(FarCommandError::First);
    }
    let sizes = Sizes { range, local, first, least };
    let (session, _node) = session(options, sizes)?;
    let pins = if options.risk_pinned_pages { Pins::Risked } else { Pins::Respected };
    let mut monitor = Monitor::new(session, sizes, pins)?;
    let [name, arguments @ ..] = options.program.as_slice() else { unreachable!("a program is required") };
    let mut command = Command::new(name);
    command.args(arguments);
    // Registered before the program starts, so that no signal is lost.
    let signals = Signals::new([SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT])
        .map_err(FarCommandError::Signals)?;
    let mut program = Program::start(command, &library, sizes)?;
    pass_on(signals, program.process()).map_err(FarCommandError::Signals)?;
    let ended = monitor.serve(&mut program);
    // However the program ended, the counts until then are valid.
    let told = tell(options, &monitor.summary());
    let ended = ended?;
    told?;
    Ok(ended)
}

/// A session with the node, and the node itself if it is in this process.
fn session(options: &FarOptions, sizes: Sizes) -> Result<(Session, Option<Host>), FarCommandError> {
    let session = options.client.session()?;
    let session = SessionOptions { arena_bytes: sizes.arena_bytes(), ..session };
    if let Some(address) = &options.node {
        return Ok((connect_with(address, session)?, None));
    }
    let count = sizes.range / SEGMENT_BYTES;
    // A forked child that reads what its parent has changed since needs the chunks of both versions.
    let count = count + count / SNAPSHOTS_PART;
    let chunks = ChunkLimits { chunks: count, chunk_bytes: SEGMENT_BYTES, client_max: count };
    let pool_bytes = count * SEGMENT_BYTES + TRIAL_POOL_BYTES;
    let node = NodeConfig { pool_bytes, chunks: Some(chunks), ..NodeConfig::default() };
    let host = Host::start(HostConfig { node, ..HostConfig::default() })?;
    complain("portcullis far: no --node was given, so the memory is on a node inside this process");
    Ok((host.connect("far", session)?, Some(host)))
}

/// Path of the library: the given one, or the one beside this program.
fn library(given: Option<&Path>) -> Result<PathBuf, FarCommandError> {
    let place = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe().unwrap_or_default().with_file_name(LIBRARY),
    };
    // For tests, cargo puts libraries into a separate folder.
    let for_tests = place.with_file_name("deps").join(LIBRARY);
    let mut places = [place.clone(), for_tests].into_iter().filter(|path| path.is_file());
    let found = places.next().and_then(|path| path.canonicalize().ok());
    found.ok_or_else(|| FarCommandError::NoLibrary { place: place.parent().unwrap_or(&place).to_owned() })
}

/// Forwards this process's signals to the program. A terminal sends its own signals to both processes.
fn pass_on(mut signals: Signals, program: Pid) -> std::io::Result<()> {
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let is_terminals = signal == SIGINT || signal == SIGQUIT;
            if !is_terminals && let Some(signal) = Signal::from_named_raw(signal) {
                // The program may have ended.
                let _ = kill_process(program, signal);
            }
        }
    })?;
    Ok(())
}

/// Ends this process by the signal that ended the program.
fn end_by(signal: i32) -> ExitCode {
    // The program has dumped its core already, if a dump was due.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // Reached only if the signal does not end a process.
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

fn tell(options: &FarOptions, summary: &Summary) -> Result<(), FarCommandError> {
    if let Some(path) = &options.report {
        let error = |source| FarCommandError::Report { path: path.clone(), source };
        let text = serde_json::to_string(summary).map_err(|refused| error(refused.into()))?;
        return crate::files::write_report(path, &(text + "\n")).map_err(error);
    }
    if options.json {
        complain(serde_json::to_string(summary).unwrap_or_default());
    } else if summary.ranges == 0 {
        complain(
            "portcullis far: the program never loaded its far memory, and ran with its own: it is linked statically, \
             or changes its user when it starts",
        );
    } else {
        complain_lines(&in_words(summary));
    }
    if options.report.is_none()
        && !options.json
        && let Some(warning) = warning(summary)
    {
        complain(warning);
    }
    Ok(())
}

/// Returns a warning about a result that the user may not expect, if any.
fn warning(summary: &Summary) -> Option<String> {
    let mib = |bytes: u64| bytes >> 20;
    let near = summary.own_bytes_max.saturating_sub(summary.mapped_bytes_max);
    if summary.ranges > 0 && near > OWN_BYTES_MIN && summary.far_share() < FAR_SHARE_MIN {
        return Some(format!(
            "portcullis far: warning: next to nothing of the program's memory was far: it and its children had {} MiB \
             that did not come from the program's malloc. Far memory is for the program itself, not for programs that it \
             starts (name those after --, or start them by exec), and not for allocators of its own (such as Python's: \
             set PYTHONMALLOC=malloc)",
            mib(near)
        ));
    }
    (summary.local_bytes_max > summary.local_bytes).then(|| {
        format!(
            "portcullis far: warning: {} MiB were local although --local is {} MiB: pages that are pinned or locked stay",
            mib(summary.local_bytes_max),
            mib(summary.local_bytes)
        )
    })
}

fn in_words(summary: &Summary) -> String {
    let mib = |bytes: u64| bytes >> 20;
    format!(
        "portcullis far: {:.2} s, of which {:.2} s ({:.0} %) with a thread waiting for a page; {} faults\n\
         from the node {} pages for faults and {} ahead ({} of them used); to the node {} pages in {} writes\n\
         taken out {} pages, of which {} came back from their buffers\n\
         local {} MiB at most of {}; on the node {} MiB at most, {} at the end\n\
         far {:.0} % of the program's memory, {} MiB; {} times a page stayed that is pinned or locked; {} forks",
        summary.seconds,
        summary.fault_seconds,
        summary.fault_share * 100.0,
        summary.faults,
        summary.fetched_pages,
        summary.prefetched_pages,
        summary.prefetched_used_pages,
        summary.written_pages,
        summary.writes,
        summary.evicted_pages,
        summary.second_chance_pages,
        mib(summary.local_bytes_max),
        mib(summary.local_bytes),
        summary.chunks_max,
        summary.chunks,
        summary.far_share() * 100.0,
        mib(summary.far_bytes_max()),
        summary.refused_pages,
        summary.forks,
    )
}

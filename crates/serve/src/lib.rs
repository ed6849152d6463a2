//! `portcullis serve`: runs a node until it is stopped.
#![forbid(unsafe_code)]
// Output goes through `output`: the macros panic when the reader is gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod announcement;
mod audit;
mod config;
mod fields;
mod limits;
mod listen;
mod name;
mod refusal;
mod settings;

use admin::AdminOptions;
use announcement::announce;
use audit::AuditOptions;
use clap::{ArgMatches, Args};
use fields::options;
use limits::LimitOptions;
use listen::ListenAddress;
use name::DirectoryOptions;
use portcullis::host::{Host, HostConfig, HostError, ProcessorList, ThreadCount, UdpConfig};
use portcullis::size;
use portcullis::{Address, Guarantee, Lifetime, Mechanism, NodeSecurity, Validity};
use portcullis_node::StartError;
use portcullis_program::expiry;
use portcullis_program::files::Input;
use portcullis_program::log::LevelFilter;
use portcullis_program::network::DeviceOptions;
use portcullis_program::output::{complain, say};
use portcullis_program::signals::{self, Request};
use portcullis_program::sockets::SocketOptions;
use refusal::NotServed;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use settings::Settings;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender};

const EXAMPLES: &str = "\
Examples:
  # Clients act for the user that they run as: tenants uid:0, uid:1000, ...
  portcullis serve --memory 1GiB --listen shm:/run/portcullis.sock
  # Any process that may open a socket acts for its tenant: here, a group's.
  portcullis serve --listen 'shm:/run/a.sock?tenant=orange' \\
      --listen 'shm:/run/b.sock?tenant=blue' --socket-group users
  # Every grant, end and violation is a line of JSON; no tenant gets more than
  # 64 MiB.
  portcullis serve --listen shm:/run/portcullis.sock --quota-bytes 64MiB \\
      --audit /var/log/portcullis.jsonl
  # Log only violations and their consequences: this costs next to nothing.
  portcullis serve --listen shm:/run/portcullis.sock \\
      --audit /var/log/portcullis.jsonl --audit-events violation,pause,bar,unbar
  # On the RDMA device of this machine, for clients of other machines. Make the
  # certificates with `portcullis certificates`; a client's names its tenant.
  portcullis serve --listen rdma:0.0.0.0:7471 --memory 4GiB \\
      --certificates /etc/portcullis --name node1
  # Without certificates, for clients of this machine: tenants are called
  # address:127.0.0.1.
  portcullis serve --listen rdma:127.0.0.1:7471
  # Over UDP, for any machine: each access is encrypted for its holder. Without
  # certificates for this machine only, as above. udp: goes with shm: or rdma:.
  portcullis serve --listen udp:0.0.0.0:7472 --listen shm:/run/portcullis.sock \\
      --certificates /etc/portcullis --name node1
  # Found as name:bank/node1 by clients with PORTCULLIS_DIRECTORY set
  # to the same directory. Other machines see the node as 10.0.0.7.
  portcullis serve --listen udp:0.0.0.0:7472 --advertise udp:10.0.0.7:7472 \\
      --certificates /etc/portcullis --name bank/node1 \\
      --directory etcd:http://127.0.0.1:2379
  # A directory for this machine only, at /run/portcullis.directory; clients set
  # PORTCULLIS_DIRECTORY=unix:/run/portcullis.directory.
  portcullis serve --listen shm:/run/portcullis.sock --name bank/node1 \\
      --directory embedded
  # Print the settings of the file and the options together, and the defaults.
  portcullis serve --config /etc/portcullis.toml --print-config

A client then writes connect(\"shm:/run/portcullis.sock\"). SIGTERM and SIGINT
stop the node: its sockets are removed, its audit log is complete, and the exit
code is 0. SIGUSR1 makes it print its counters, as one JSON object. SIGHUP, once
the audit log was renamed, makes it continue in a new file; without an audit log
it changes nothing.
With RUST_LOG=info the node logs on standard error which clients attach, detach,
are paused or barred, and which queue pairs are rebuilt.

A socket of --listen on which no process listens any more is replaced; any other
file at its path is not touched.

A --config file has the names of these options as keys; an option on the command
line overrides the file:
  memory = \"1GiB\"
  listen = [\"shm:/run/portcullis.sock\"]
  longest-lifetime = \"5s\"
  clients-max = 64";

/// The level of the log on standard error if `RUST_LOG` is not set. Programs that serve run for months, and
/// warn their operator.
pub const LOG_LEVEL: LevelFilter = LevelFilter::WARN;

options! {
    /// Options of `portcullis serve`.
    #[derive(Args, Debug)]
    #[command(after_help = EXAMPLES)]
    pub struct ServeOptions {
        /// Read settings from this TOML file: its keys are the names of these options. `-` is standard input.
        #[arg(long, value_name = "FILE", value_parser = portcullis_program::files::input())]
        config: Option<Input>,
        /// Print the settings in force as TOML that --config reads, and exit.
        #[arg(long)]
        print_config: bool,
        /// Memory for clients' objects, for example 64MiB or 1GiB.
        #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256MiB")]
        memory: u64 => node.pool_bytes,
        /// Start also if less memory is available now: pages are taken as clients use them, and if none are left the
        /// kernel kills a process.
        #[arg(long)]
        overcommit: bool => overcommit,
        /// Take all the memory now, so that no operation waits for the kernel to find a page.
        #[arg(long, conflicts_with = "overcommit")]
        fill_memory: bool => node.fill_memory,
        /// An address for clients: shm:PATH for processes of this machine, udp:HOST:PORT for any machine, with every
        /// access encrypted, rdma:HOST:PORT for an RDMA device; with ?tenant=NAME all its clients act for one tenant;
        /// may be given several times, and udp: beside shm: or rdma:.
        #[arg(long, value_name = "ADDRESS", value_parser = listen::parse)]
        listen: Vec<ListenAddress>,
        #[command(flatten)]
        sockets: SocketOptions,
        #[command(flatten)]
        device: DeviceOptions,
        /// A directory made by `portcullis certificates`: node and clients prove their identity with it.
        #[arg(long, value_name = "DIR", value_parser = portcullis_program::files::path())]
        certificates: Option<PathBuf>,
        /// The node's name: with --certificates its certificate is node-NAME.pem there, and with --directory it is
        /// TENANT/NODE, and the certificate node-NODE.pem.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        directory: DirectoryOptions,
        /// Admit clients of other machines without certificates: anyone who reaches the port can act as any tenant, and
        /// anyone who sees the packets can read along.
        #[arg(long)]
        dangerous_no_certificates: bool,
        /// The mechanism that enforces permissions: memory-window, window-group, memory-region, queue-pair, node-copy
        /// or none [default: memory-window; on an RDMA device the best it supports, see `portcullis doctor`].
        #[arg(long, value_name = "MECHANISM", value_parser = portcullis_program::protection::mechanism)]
        protection: Option<Mechanism> => node.mechanism,
        /// Accept that the device lacks these guarantees, although the protection needs them: permissions are then not
        /// enforced as promised. Only for experiments.
        #[arg(long, value_name = "GUARANTEES", value_delimiter = ',', value_parser = guarantee)]
        allow_unenforced: Vec<Guarantee>,
        #[command(flatten)]
        audit: AuditOptions,
        #[command(flatten)]
        admin: AdminOptions,
        /// The longest lifetime of a permission, extensions included.
        #[arg(long, value_name = "TIME", default_value = "10s")]
        longest_lifetime: Lifetime => node.longest_lifetime,
        /// The longest that a request waits for other clients to release an object.
        #[arg(long, value_name = "TIME", default_value = "10s")]
        longest_wait: Lifetime => node.longest_wait,
        /// Bytes of the memory that a tenant may hold. Each object counts with its header of 32 bytes, rounded up to
        /// its size class (96 bytes at least) [default: all of the memory].
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        quota_bytes: Option<u64> => node.quota.bytes_max,
        /// Objects that a tenant may have.
        #[arg(long, value_name = "N")]
        quota_objects: u64 = node.quota.objects_max,
        /// Permissions that a tenant may hold.
        #[arg(long, value_name = "N")]
        quota_permissions: u64 = node.quota.permissions_max,
        /// Names that a tenant may have in the directory; none: 0.
        #[arg(long, value_name = "N")]
        quota_names: u64 = node.quota.names_max,
        /// Other tenants with which a tenant may share one of its names; none: 0.
        #[arg(long, value_name = "N")]
        quota_shares: u64 = node.quota.shares_max,
        /// Chunks that clients allocate and free, in addition to --memory; none: 0. The NIC hands them out while the
        /// node's processor does nothing. On a device without chains the processor does it (`portcullis doctor` says
        /// which).
        #[arg(long, value_name = "N", default_value_t = 0)]
        chunks: u64,
        /// Bytes of a chunk: a multiple of 8.
        #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4KiB")]
        chunk_bytes: u64,
        /// Free chunks that are kept ready, and at most twice as many. The memory of the others is returned to the
        /// machine, and taken again when few are ready [default: all].
        #[arg(long, value_name = "N")]
        chunks_ready: Option<u64> => node.chunks_ready,
        /// Chunks that one client can hold [default: all].
        #[arg(long, value_name = "N")]
        chunks_per_client: Option<u64>,
        /// Chunks that the clients of a tenant may hold together [default: all].
        #[arg(long, value_name = "N")]
        quota_chunks: Option<u64> => node.quota.chunks_max,
        /// Clients that may be attached at a time.
        #[arg(long, value_name = "N")]
        clients_max: u32 = node.clients_max,
        /// The largest buffer arena of a client.
        #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "64MiB")]
        arena_max: u64 => port.arena_bytes_max,
        /// Memory for the ports of all clients, arenas and queues, in addition to --memory. The node locks what is used
        /// of it; no tenant gets more than it leaves to other tenants.
        #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512MiB")]
        ports_memory: u64 => port.ports_bytes_max,
        /// Violations of each kind that cost nothing; every 100 ms one is forgiven. Beyond them a client with late
        /// accesses is slowed, a client that reaches beyond its permissions is disconnected in the end, and a tenant
        /// whose clients guess keys is barred.
        #[arg(long, value_name = "N")]
        violations_free: u32 = node.violations.free_max,
        /// How long after a permission's end an access with its key counts only as late.
        #[arg(long, value_name = "TIME", default_value = "1s")]
        late_grace: Lifetime => node.violations.late_grace,
        /// How long a tenant is barred after its clients have guessed keys.
        #[arg(long, value_name = "TIME", default_value = "600s")]
        bar_for: Lifetime => node.violations.bar_for,
        /// Places in the table of regions: permissions that clients over UDP may hold together.
        #[arg(long, value_name = "N", default_value_t = UdpConfig::REGIONS_MAX)]
        regions: u32,
        /// Places of that table that a tenant may have [default: 16384].
        #[arg(long, value_name = "N")]
        quota_regions: Option<u32> => node.tenant_regions_max,
        /// Bytes of the largest UDP datagram to send and accept. Clients probe what their path carries; set it lower if
        /// large ones are lost.
        #[arg(long, value_name = "BYTES", default_value_t = UdpConfig::default().datagram_max,
              value_parser = clap::value_parser!(u32).range(1232..=65507))]
        datagram_max: u32,
        /// Spare queue pairs of a client: one takes over when a refused access breaks the queue pair in use.
        #[arg(long, value_name = "N")]
        spare_queue_pairs: u32 = node.spare_queue_pairs,
        /// Keep the node's thread on the first of these processors, and each copy unit, engine and UDP lane on one of the
        /// others: numbers and ranges, for example 0,2-5 [default: the kernel chooses].
        #[arg(long, value_name = "LIST")]
        processors: Option<ProcessorList> => processors,
        /// Threads that move the bytes of long transfers while the node's thread checks others: a number, or `auto`, which
        /// takes some of the other processors of --processors, or of those beyond the fourth.
        #[arg(long, value_name = "N")]
        copy_units: ThreadCount = copy_units,
        /// Threads that carry out the short reads, writes and atomics of busy clients while the node's thread serves others:
        /// a number, or `auto`, which takes some of the other processors of --processors, or of those beyond the fourth,
        /// while the machine has them to spare. A read that overlaps another client's write may return parts of both.
        #[arg(long, value_name = "N")]
        engines: ThreadCount = engines,
        /// Threads that receive, decrypt and answer the packets of clients over UDP: a number, or `auto`, which takes some
        /// of the other processors of --processors, or of those beyond the fourth. With 0 the node's own thread does it.
        #[arg(long, value_name = "N", default_value_t)]
        udp_lanes: ThreadCount,
        /// Do not use these techniques, to measure their effect: delayed-unbinding, contiguity and handover, which save
        /// window operations, and chains, by which the NIC hands chunks out.
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        without: Vec<Technique>,
        /// Print the addresses as one JSON object: {"listening":[...],"process":...}.
        #[arg(long)]
        json: bool,
        /// Stop also when standard input ends, for programs that start a node and may die.
        #[arg(long)]
        stop_at_end_of_input: bool,
        #[command(flatten)]
        limits: LimitOptions,
    }
}

/// A technique of [`Reductions`](portcullis::Reductions), or [`NodeConfig::chains`](portcullis::NodeConfig::chains), by its
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Technique {
    DelayedUnbinding,
    Contiguity,
    Handover,
    Chains,
}

fn guarantee(text: &str) -> Result<Guarantee, String> {
    let names = || Guarantee::ALL.map(Guarantee::name).join(", ");
    let found = Guarantee::ALL.into_iter().find(|it| it.name() == text);
    found.ok_or_else(|| format!("{text:?} is not a guarantee: the guarantees are {}", names()))
}

impl ServeOptions {
    /// Checks what the library would not check, or would check too late.
    fn check(&self) -> Result<(), NotServed> {
        let wrong = |text: &str| Err(NotServed::Call(text.to_owned()));
        if self.listen.is_empty() {
            return wrong(
                "no client could connect: add --listen shm:PATH, --listen rdma:HOST:PORT or --listen udp:HOST:PORT",
            );
        }
        match (&self.certificates, &self.name) {
            (Some(_), None) => {
                return wrong("--certificates needs --name: the node's certificate is node-NAME.pem there");
            }
            (None, Some(_)) if !self.has_directory() => {
                return wrong(
                    "--name needs --certificates, the directory with node-NAME.pem, or --directory, where \
                    the name is registered",
                );
            }
            _ => {}
        }
        if let Some(text) = self.audit.wrong() {
            return wrong(text);
        }
        self.check_places()?;
        self.check_name()?;
        match self.processors().iter().find(|&&processor| !may_run_on(processor)) {
            Some(processor) => Err(NotServed::Machine(format!(
                "--processors: this process may not run on processor {processor}: `taskset -cp $$` shows its processors"
            ))),
            None => Ok(()),
        }
    }

    /// The processors of the node's threads. None: the kernel chooses.
    fn processors(&self) -> &[usize] {
        self.processors.as_ref().map_or(&[], ProcessorList::numbers)
    }

    fn check_places(&self) -> Result<(), NotServed> {
        let is_any = |test: fn(&Address) -> bool| {
            self.listen.iter().any(|listen_address| test(&listen_address.address))
        };
        if is_any(Address::is_over_rdma) && is_any(|it| matches!(it, Address::Shm(_))) {
            return Err(NotServed::Call(
                "--listen: a node is on one NIC: at shm:PATH it is the software NIC, at rdma:HOST:PORT a device. Both \
                 go together with udp:HOST:PORT"
                    .to_owned(),
            ));
        }
        for (position, listen) in self.listen.iter().enumerate() {
            if self.listen[..position].iter().any(|earlier| earlier.address == listen.address)
                && !listen.is_any_port()
            {
                let address = &listen.address;
                return Err(NotServed::Call(format!(
                    "--listen names {address} twice: give each address one tenant"
                )));
            }
            if self.certificates.is_some() && listen.is_on_network() && listen.tenant.is_some() {
                return Err(NotServed::Call(
                    "with --certificates, a client's certificate names its tenant: leave ?tenant= out"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }
}

fn may_run_on(processor: usize) -> bool {
    processor < rustix::thread::CpuSet::MAX_CPU
        && rustix::thread::sched_getaffinity(None).is_ok_and(|set| set.is_set(processor))
}

/// Runs a node until it is stopped.
pub fn run(line: &ArgMatches) -> ExitCode {
    match Settings::of(line).and_then(|settings| serve(&settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("portcullis serve: {error}"));
            ExitCode::from(if matches!(error, NotServed::Call(_)) { 2 } else { 3 })
        }
    }
}

fn serve(settings: &Settings) -> Result<(), NotServed> {
    let options = &settings.options;
    options.check()?;
    let config = options.config()?;
    if options.print_config {
        config.node.validate().map_err(|error| HostError::from(StartError::from(error)))?;
        say(settings.in_force().trim_end());
        return Ok(());
    }
    keep_to_itself()?;
    leave_to_the_node(options.processors());
    // Each client needs descriptors. If the kernel refuses, the limit stays, and fewer clients are admitted.
    let _ =
        rustix::process::setrlimit(Resource::Nofile, all_of(rustix::process::getrlimit(Resource::Nofile)));
    // The signals are taken over before the sockets exist: a signal from now on stops the node and leaves no socket.
    let (request, requests) = requests(options.stop_at_end_of_input)
        .map_err(|error| NotServed::Machine(format!("cannot handle signals: {error}")))?;
    let expires = validity_of(&config);
    let memory_bytes = config.node.pool_bytes;
    let mut host = Host::start(config)?;
    // A node whose thread has panicked serves no client, so the process ends and its parent sees that.
    host.when_ended(move || {
        let _ = request.send(Request::Stop);
    });
    expires
        .map_or(Ok(()), expiry::watch)
        .map_err(|error| NotServed::Machine(format!("cannot watch the certificate: {error}")))?;
    let registration = options.register(&host, memory_bytes)?;
    announce(options, &host);
    // The loop also ends when no sender is left. Otherwise only SIGKILL could end the node.
    while let Ok(request) = requests.recv() {
        match request {
            Request::Count => admin::print_counters(&host),
            // A node without a log has nothing to reopen.
            Request::Reopen => host.reopen_audit(),
            Request::Stop => break,
        }
    }
    // Unregistered before the node stops, so that the directory leads no client to a stopped node.
    drop(registration);
    host.stop();
    options.audit.missing(&host).map_or(Ok(()), |missing| Err(NotServed::Machine(missing)))
}

/// Validity of the certificate that the node shows to clients, if it has one.
fn validity_of(config: &HostConfig) -> Option<Validity> {
    #[cfg(feature = "rdma")]
    let over_rdma = config.rdma.iter().flat_map(|rdma| &rdma.listen);
    #[cfg(not(feature = "rdma"))]
    let over_rdma = std::iter::empty();
    let over_udp = config.udp.iter().flat_map(|udp| &udp.listen);
    over_rdma.chain(over_udp).find_map(|listen| match &listen.security {
        NodeSecurity::Tls(identity) => Some(identity.validity()),
        NodeSecurity::Plain => None,
    })
}

/// Keeps other processes of the node's user from reading its memory, and keeps clients' data out of core dumps.
fn keep_to_itself() -> Result<(), NotServed> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| {
        NotServed::Machine(format!("cannot keep other processes from reading this process's memory: {error}"))
    })
}

/// Keeps this thread, and the threads that it starts, off the node's processors if there are others. The threads that admit
/// clients fill megabytes for each client, and all operations would wait meanwhile.
fn leave_to_the_node(processors: &[usize]) {
    let Ok(mut others) = rustix::thread::sched_getaffinity(None) else { return };
    processors.iter().for_each(|&processor| others.unset(processor));
    if !processors.is_empty() && others.count() > 0 {
        // If the kernel refuses, the node and these threads share the processors.
        let _ = rustix::thread::sched_setaffinity(None, &others);
    }
}

/// The highest limit that a process may give itself.
fn all_of(limit: Rlimit) -> Rlimit {
    Rlimit { current: limit.maximum, ..limit }
}

/// Creates the channel in which requests to the node arrive, and starts the threads that send them.
fn requests(end_of_input_stops: bool) -> std::io::Result<(Sender<Request>, Receiver<Request>)> {
    let (sender, receiver) = signals::requests()?;
    if end_of_input_stops {
        let sender = sender.clone();
        std::thread::Builder::new().name("portcullis-input".to_owned()).spawn(move || {
            let mut rest = [0; 256];
            while std::io::stdin().lock().read(&mut rest).is_ok_and(|bytes| bytes > 0) {}
            let _ = sender.send(Request::Stop);
        })?;
    }
    Ok((sender, receiver))
}

//! A running memory node, on the software NIC or on an RDMA device: its thread, the sockets of clients and operator,
//! and the audit log.
#![forbid(unsafe_code)]

pub use audit::AuditStatus;
pub use endpoint::SessionEndpoint;
pub use local::{LocalAdmission, LocalClient, LocalError};
pub use machine_memory::{NotEnoughMemory, Scarce, available_memory};
#[cfg(any(feature = "rdma", feature = "udp"))]
pub use network::NetworkListen;
pub use port_limits::PortLimits;
#[cfg(any(feature = "rdma", feature = "udp"))]
pub use portcullis_attach::tls::ListenError;
pub use portcullis_attach::unix::{Listener as SocketListener, SocketAccess};
pub use portcullis_memory::pin;
pub use portcullis_node::Counters as NodeCounters;
pub use portcullis_node::{ConfigError, StartError};
pub use processors::{NoProcessorList, ProcessorList};
#[cfg(feature = "rdma")]
pub use rdma::{MemlockTooLow, NoLibrary, OpenError, RdmaConfig, Unenforced};
pub use sockets::{Listen, Sockets};
pub use thread_count::{NoThreadCount, ThreadCount};
#[cfg(feature = "udp")]
pub use udp::UdpConfig;
pub use wall::{NoWallTime, WallTime};

pub mod admin;
mod at_end;
mod audit;
mod backend;
mod endpoint;
mod engine;
mod fabric;
mod floods;
mod local;
pub mod log_file;
mod machine_memory;
#[cfg(any(feature = "rdma", feature = "udp"))]
mod network;
mod outlet;
mod port_limits;
mod processors;
#[cfg(feature = "rdma")]
pub mod rdma;
mod resident;
mod sockets;
pub mod software;
mod thread_count;
#[cfg(feature = "udp")]
pub mod udp;
mod wall;

use admin::{Admin, AdminServer};
use audit::AuditWriter;
use backend::Started;
use outlet::{Outlet, Speaker};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::Mapping;
use portcullis_nic::Guarantee;
use portcullis_node::{NodeConfig, POOL_BASE};
use portcullis_protocol::{Incarnation, Mechanism, RemoteAddress};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The configuration of a host.
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    /// The node's settings.
    pub node: NodeConfig,
    /// Sockets for clients in other processes, if the node is on the software NIC.
    pub listen: Vec<Listen>,
    /// The users that may open those sockets.
    pub sockets: Sockets,
    /// Whether the node starts also if less memory is available than it is to lend. Pages are taken as clients use
    /// them; if none are left, the kernel kills a process.
    pub overcommit: bool,
    /// The RDMA device that the node is on. `None`: the software NIC.
    #[cfg(feature = "rdma")]
    pub rdma: Option<RdmaConfig>,
    /// The ports of clients over UDP, which a node has beside those of its NIC. `None`: the node accepts no clients
    /// over UDP.
    #[cfg(feature = "udp")]
    pub udp: Option<UdpConfig>,
    /// The file of the audit log.
    pub audit: Option<PathBuf>,
    /// The path of the operator's socket (see [`admin`]).
    pub admin: Option<PathBuf>,
    /// The processors on which the node's threads run.
    pub processors: ProcessorList,
    /// The number of copy units, if the node is on the software NIC: threads that move the bytes of long transfers while
    /// the node's thread checks others.
    pub copy_units: ThreadCount,
    /// The number of data engines, if the node is on the software NIC: threads that carry out the reads, writes and atomics of
    /// busy clients. A read that overlaps another client's write may then return parts of both.
    pub engines: ThreadCount,
    /// The limits of clients' ports.
    pub port: PortLimits,
}

impl HostConfig {
    /// Turns chains off if the node is on an RDMA device. The host runs no chains there: the node's CPU hands chunks
    /// out.
    #[cfg(feature = "rdma")]
    fn without_chains_on_rdma(mut self) -> Self {
        self.node.chains &= self.rdma.is_none();
        self
    }

    /// Bytes that the node takes, by setting.
    fn memory(&self) -> Vec<(&'static str, u64)> {
        let pool = ("pool_bytes", self.node.memory_bytes());
        let chunks = self.node.chunks.map(|chunks| ("chunks", chunks.bytes()));
        #[cfg(feature = "rdma")]
        if self.rdma.is_some() {
            return [pool].into_iter().chain(chunks).collect();
        }
        [pool, ("ports_bytes_max", self.port.ports_bytes_max)].into_iter().chain(chunks).collect()
    }
}

/// Error of a host that does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The node refuses.
    #[error(transparent)]
    Node(#[from] StartError),
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(&'static str),
    /// No RDMA device was opened.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The device fails while it is examined.
    #[cfg(feature = "rdma")]
    #[error("the RDMA device cannot be tried: {0}")]
    Trial(#[from] portcullis_nic::VerbsError),
    /// The device does not keep a guarantee that the mechanism rests on.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Unenforced(#[from] Unenforced),
    /// The machine lacks the memory that the node is to lend.
    #[error(transparent)]
    Memory(#[from] NotEnoughMemory),
    /// The node's memory cannot be registered.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Memlock(#[from] MemlockTooLow),
    /// The node cannot listen for clients over TCP.
    #[cfg(any(feature = "rdma", feature = "udp"))]
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The node cannot listen at a Unix socket.
    #[error("cannot listen at {path}: {source}")]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// The reason: another file at the path, or the machine's error.
        source: std::io::Error,
    },
    /// The audit log cannot be written.
    #[error("cannot write the audit log {path}: {source}")]
    Audit {
        /// The file's path.
        path: PathBuf,
        /// The reason: another file at the path, or the machine's error.
        source: std::io::Error,
    },
    /// The machine cannot provide a thread, or another resource that a node needs.
    #[error("{what}: {source}")]
    Machine {
        /// The action that failed.
        what: String,
        /// The machine's error.
        source: std::io::Error,
    },
}

impl Coded for HostError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Node(error) => error.code(),
            Self::Config(_) => ErrorCode::Configuration,
            #[cfg(feature = "rdma")]
            Self::Device(error) => error.code(),
            #[cfg(feature = "rdma")]
            Self::Trial(error) => error.code(),
            #[cfg(feature = "rdma")]
            Self::Unenforced(error) => error.code(),
            Self::Memory(error) => error.code(),
            #[cfg(feature = "rdma")]
            Self::Memlock(error) => error.code(),
            #[cfg(any(feature = "rdma", feature = "udp"))]
            Self::Listen(error) => error.code(),
            Self::Socket { .. } => ErrorCode::Socket,
            Self::Audit { .. } => ErrorCode::AuditLog,
            Self::Machine { .. } => ErrorCode::Machine,
        }
    }
}

impl HostError {
    /// Whether the same configuration may start a node later, because the cause can pass. If not, the configuration
    /// must change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Node(error) => matches!(error, StartError::Nic(_)),
            Self::Config(_) => false,
            Self::Memory(_) | Self::Socket { .. } | Self::Audit { .. } | Self::Machine { .. } => true,
            #[cfg(feature = "rdma")]
            Self::Device(error) => !matches!(error, OpenError::Choice { .. }),
            #[cfg(feature = "rdma")]
            Self::Unenforced(_) | Self::Memlock(_) => false,
            #[cfg(any(feature = "rdma", feature = "udp"))]
            Self::Listen(error) => matches!(error, ListenError::Machine { .. }),
            #[cfg(feature = "rdma")]
            Self::Trial(_) => true,
        }
    }
}

fn machine(what: String) -> impl FnOnce(std::io::Error) -> HostError {
    move |source| HostError::Machine { what, source }
}

#[derive(Debug)]
struct Run {
    config: NodeConfig,
    incarnation: Incarnation,
    /// The node's secret, which is never passed on.
    secret: [u8; 32],
    /// Moment 0 of the node's time.
    zero: Instant,
}

/// The memory that a node lends, in the node's own process. It may outlive the node, and is of no use then.
#[derive(Clone, Debug)]
pub struct LentMemory(Mapping);

impl LentMemory {
    /// Returns the bytes that begin at an address, which is a multiple of 8. `None`: they do not all lie in the node's
    /// pool.
    ///
    /// The bytes at an address change when its object is freed: keep the object ([`Keep`](portcullis_protocol::Keep))
    /// for as long as these bytes are used.
    #[must_use]
    pub fn bytes(&self, address: RemoteAddress, length: u64) -> Option<Mapping> {
        self.0.part(address.0.checked_sub(POOL_BASE.0)?, length)
    }
}

/// A running node. It ends when this value is dropped, as with [`Host::stop`].
#[derive(Debug)]
pub struct Host {
    on: Started,
    incarnation: Incarnation,
    admin: Admin,
    admin_server: Option<AdminServer>,
    audit: Option<AuditWriter>,
    speaker: Option<Speaker>,
}

impl Host {
    /// Starts a node.
    ///
    /// # Errors
    /// The configuration makes no sense, the device does not keep a required guarantee, or the machine refuses.
    pub fn start(config: HostConfig) -> Result<Self, HostError> {
        #[cfg(feature = "rdma")]
        let config = config.without_chains_on_rdma();
        config.node.validate().map_err(StartError::from)?;
        if !config.port.size(&config.node).is_sound() {
            return Err(HostError::Config(
                "clients could not meet these terms: spare_queue_pairs can be 15 at most, and send_depth and \
                 control_depth are powers of two up to 4,096",
            ));
        }
        machine_memory::check(&config.memory(), config.overcommit)?;
        let (incarnation, secret) = random().map_err(machine("no random numbers for the node".to_owned()))?;
        let mut run = Run { config: config.node.clone(), incarnation, secret, zero: Instant::now() };
        let audit = match &config.audit {
            Some(path) => {
                let failed = |source| HostError::Audit { path: path.clone(), source };
                Some(AuditWriter::start(path, incarnation, run.zero).map_err(failed)?)
            }
            None => None,
        };
        let admin_place = config.admin.as_deref().map(AdminServer::bind).transpose()?;
        let speaker = Speaker::start().map_err(machine("cannot start the event thread".to_owned()))?;
        let records = outlet(&mut run.config, audit.as_ref(), speaker.as_ref());
        let on = backend::start(&config, run, records)?;
        let admin = Admin::inside(Arc::clone(&on.node), audit.as_ref().map(AuditWriter::watch));
        let admin_server = admin_place.map(|place| AdminServer::start(place, admin.clone())).transpose()?;
        Ok(Self { on, incarnation, admin, admin_server, audit, speaker })
    }

    /// The run of the node: a random number, chosen anew at each start.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The mechanism that enforces the node's permissions.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.on.mechanism
    }

    /// The guarantees that the node's permissions rest on and that the device does not keep, as the configuration
    /// allows.
    #[must_use]
    pub fn unenforced(&self) -> &[Guarantee] {
        &self.on.unenforced
    }

    /// The most tenants at a time that this process's limit on locked memory allows, if it has a limit. On an RDMA
    /// device the node's memory counts once for each tenant.
    #[must_use]
    pub fn tenants_max(&self) -> Option<u64> {
        self.on.tenants_max
    }

    /// The addresses at which clients on other machines connect, with the ports chosen for port 0: first those of an
    /// RDMA device, then those over UDP, each in the order of the configuration.
    #[must_use]
    pub fn network_addresses(&self) -> &[SocketAddr] {
        &self.on.addresses
    }

    /// The memory that the node lends, as this process has it. `None`: the node has ended.
    ///
    /// The process that runs the node can read and write all memory that the node lends, so this call needs no
    /// permission.
    #[must_use]
    pub fn lent_memory(&self) -> Option<LentMemory> {
        self.on.node.memory().map(LentMemory)
    }

    /// The gate at which clients in this process attach.
    #[must_use]
    pub fn local_admission(&self) -> Arc<dyn LocalAdmission> {
        Arc::clone(&self.on.local_admission)
    }

    /// The operator's view of the node.
    #[must_use]
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// The events that the node has counted, and the amounts that it holds.
    #[must_use]
    pub fn counters(&self) -> NodeCounters {
        self.admin.counted().map(|counted| counted.counters).unwrap_or_default()
    }

    /// Stops the node's own turns until this is called with `false`. Meanwhile the node's thread turns its NIC and does
    /// nothing else, so clients get all results in this time without the node's CPU. For measurements and tests: no
    /// lease ends in this time, and no message is answered. [`NodeCounters::turns`] stands still.
    pub fn hold_turns(&self, hold: bool) {
        self.on.node.hold_turns(hold);
    }

    /// Makes a worker of the chunk pool fail in its present state, as if the NIC had refused a request: for tests.
    #[doc(hidden)]
    pub fn dangerous_break_worker(&self) {
        self.on.node.break_worker();
    }

    /// The state of the node's audit log, if it has one; after [`Host::stop`] the final state.
    #[must_use]
    pub fn audit_status(&self) -> Option<AuditStatus> {
        self.audit.as_ref().map(|audit| audit.watch().status())
    }

    /// Directs further records to a new file at the audit log's path. To be called after the log was renamed.
    pub fn reopen_audit(&self) {
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
    }

    /// Runs `code` on the node's thread when that thread ends, because the node is stopped or because the thread has
    /// panicked (then [`stop`](Self::stop) continues the panic). If the thread has ended already, `code` runs on the
    /// caller's thread. `code` must not wait, nor panic.
    pub fn when_ended(&self, code: impl FnOnce() + Send + 'static) {
        self.on.node.keep(at_end::AtEnd::new(code));
    }

    /// Ends the node: first its clients, then all its objects on the NIC, then the audit log.
    ///
    /// # Panics
    /// The node's thread has panicked, which is a bug in the node: the panic continues here, unless this thread panics
    /// already.
    pub fn stop(&mut self) {
        self.admin_server = None;
        let ended = self.on.node.stop();
        if let Some(audit) = &mut self.audit {
            audit.finish();
        }
        if let Some(speaker) = self.speaker.take() {
            speaker.finish();
        }
        if let Err(panic) = ended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Returns a run's random numbers.
fn random() -> std::io::Result<(Incarnation, [u8; 32])> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(std::io::Error::other)?;
    Ok((Incarnation(getrandom::u64().map_err(std::io::Error::other)?), secret))
}

/// Makes the node record the events that the log and the speaker need. Returns the outlet for the records.
fn outlet(config: &mut NodeConfig, audit: Option<&AuditWriter>, speaker: Option<&Speaker>) -> Option<Outlet> {
    let chosen = config.audit_events;
    let log = audit.map(|audit| (audit.sink(), chosen));
    config.audit = log.is_some() || speaker.is_some();
    config.audit_events = match (&log, speaker) {
        (Some(_), Some(_)) => chosen.and(Speaker::events()),
        (None, Some(_)) => Speaker::events(),
        (_, None) => chosen,
    };
    config.audit.then(|| Outlet::new(log, speaker))
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec};
    use rustix::net::RecvFlags;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn host() -> Host {
        let node = NodeConfig { pool_bytes: 1 << 20, ..NodeConfig::default() };
        Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node")
    }

    fn is_the_nodes(panic: &(dyn std::any::Any + Send)) -> bool {
        panic.downcast_ref() == Some(&"a test has the node's thread panic")
    }

    #[test]
    fn clients_of_a_node_whose_thread_has_panicked_are_hung_up_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.sock");
        let node = NodeConfig { pool_bytes: 1 << 20, ..NodeConfig::default() };
        let listen = vec![Listen { path: path.clone(), tenant: None }];
        let host = Host::start(HostConfig { node, listen, ..HostConfig::default() }).expect("a node");
        let long = std::time::Duration::from_secs(20);
        let attached = portcullis_attach::unix::attach(&path, 1 << 16, long, |_| Ok(())).expect("a client");
        host.on.node.panic();
        let mut ends = [PollFd::new(&attached.socket, PollFlags::IN)];
        let timeout = Timespec::try_from(long).expect("it is short");
        assert_eq!(rustix::event::poll(&mut ends, Some(&timeout)), Ok(1), "the connection ends");
        assert_eq!(
            rustix::net::recv(&attached.socket, &mut [0; 8], RecvFlags::empty()).map(|it| it.1),
            Ok(0)
        );
        let panic = catch_unwind(AssertUnwindSafe(|| drop(host))).expect_err("it is noticed");
        assert!(is_the_nodes(&*panic));
    }

    #[test]
    fn who_waits_for_the_end_of_the_nodes_thread_hears_of_it() {
        let mut host = host();
        let (ended, ends) = std::sync::mpsc::channel();
        let tell = |what| {
            let ended = ended.clone();
            move || ended.send(what).expect("somebody waits")
        };
        host.when_ended(tell("by a panic"));
        assert!(ends.try_recv().is_err());
        host.on.node.panic();
        assert_eq!(ends.recv(), Ok("by a panic"));
        // The thread may still be about to end: then it is the one that runs the closure.
        host.when_ended(tell("before"));
        assert_eq!(ends.recv(), Ok("before"));
        assert!(catch_unwind(AssertUnwindSafe(|| host.stop())).is_err());
    }

    #[test]
    fn who_waits_for_the_end_of_the_nodes_thread_hears_that_the_node_was_stopped() {
        let mut host = host();
        let (ended, ends) = std::sync::mpsc::channel();
        host.when_ended(move || ended.send(()).expect("somebody waits"));
        host.stop();
        assert_eq!(ends.recv(), Ok(()));
    }

    #[test]
    fn a_panic_of_the_nodes_thread_goes_on_where_the_host_is_dropped() {
        let host = host();
        host.on.node.panic();
        let panic = catch_unwind(AssertUnwindSafe(|| drop(host))).expect_err("it is noticed");
        assert!(is_the_nodes(&*panic));
    }

    #[test]
    fn a_panic_of_the_nodes_thread_goes_on_where_the_host_is_stopped_and_only_there() {
        let mut host = host();
        host.on.node.panic();
        let panic = catch_unwind(AssertUnwindSafe(|| host.stop())).expect_err("it is noticed");
        assert!(is_the_nodes(&*panic));
        drop(host);
    }

    #[test]
    fn a_panic_of_the_nodes_thread_hides_no_other() {
        let host = host();
        host.on.node.panic();
        let panic = catch_unwind(AssertUnwindSafe(move || {
            let _host = host;
            panic!("another");
        }));
        assert_eq!(panic.expect_err("it panics").downcast_ref(), Some(&"another"));
    }
}

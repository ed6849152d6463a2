//! A real etcd: Debian's `etcd-server`, on free ports of loopback, with a folder of its own.

use portcullis_directory::etcd::{Etcd, EtcdOptions, Identity};
use portcullis_directory::{DirectoryError, Name, Space};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tempfile::TempDir;

/// A running etcd. It ends with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    ports: [u16; 2],
    scheme: &'static str,
    folder: TempDir,
    arguments: Vec<String>,
}

/// Returns the etcd that all concurrent tests share. It ends with the last of them. `None`: etcd is not installed here.
pub fn shared() -> Option<Arc<Server>> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = shared.upgrade() {
        return Some(server);
    }
    let server = Arc::new(Server::start()?);
    *shared = Arc::downgrade(&server);
    Some(server)
}

impl Server {
    /// Starts an etcd for one test. `None`: etcd is not installed here.
    pub fn start() -> Option<Self> {
        Self::start_with("http", TempDir::new().expect("a folder"), &[])
    }

    /// Starts an etcd that is reached over TLS, only by clients with a certificate of the authority. The arguments are
    /// files.
    pub fn start_with_tls(folder: TempDir, authority: &str, certificate: &str, key: &str) -> Option<Self> {
        let of = |name: &str| folder.path().join(name).display().to_string();
        let arguments = [
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", of(authority)),
            format!("--cert-file={}", of(certificate)),
            format!("--key-file={}", of(key)),
        ];
        Self::start_with("https", folder, &arguments)
    }

    fn start_with(scheme: &'static str, folder: TempDir, arguments: &[String]) -> Option<Self> {
        let tried =
            Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if let Err(error) = tried {
            eprintln!("SKIPPED: there is no etcd here ({error}): scripts/setup etcd");
            return None;
        }
        let mut folder = Some(folder);
        // Another process may take a port between the check and the start.
        for _ in 0..10 {
            let ports = free_ports();
            let within = folder.take().expect("it comes back");
            match launch(scheme, ports, &within, arguments) {
                Ok(child) => {
                    let arguments = arguments.to_vec();
                    return Some(Self { child, ports, scheme, folder: within, arguments });
                }
                Err(log) => eprintln!("etcd did not start, and is tried with other ports:\n{log}"),
            }
            let _ = std::fs::remove_dir_all(within.path().join("data"));
            folder = Some(within);
        }
        panic!("etcd does not start: its words are above");
    }

    /// Returns its address.
    pub fn address(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.ports[0])
    }

    pub fn options(&self, prefix: &str) -> EtcdOptions {
        EtcdOptions {
            prefix: Name::new(prefix).expect("a name"),
            patience: Duration::from_secs(60),
            ..EtcdOptions::new(self.address())
        }
    }

    pub fn connect_as(&self, identity: Option<Identity>, space: Space) -> Result<Etcd, DirectoryError> {
        let patience = Duration::from_secs(10);
        Etcd::connect(&EtcdOptions { identity, patience, ..self.options("portcullis") }, space)
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// Starts it again, with its stored data.
    pub fn restart(&mut self) {
        let again = launch(self.scheme, self.ports, &self.folder, &self.arguments);
        self.child = again.unwrap_or_else(|log| panic!("etcd does not start again:\n{log}"));
    }

    /// Stops its process with a signal. Returns when all its threads have stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = waitpid(Some(self.process()), WaitOptions::UNTRACED).expect("it is a child");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    /// Resumes its process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn process(&self) -> Pid {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).expect("it is ours");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_ports() -> [u16; 2] {
    let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback has ports"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// Starts etcd, and waits until it serves. `Err`: it has ended, with its output.
fn launch(
    scheme: &str,
    [clients, peers]: [u16; 2],
    folder: &TempDir,
    arguments: &[String],
) -> Result<Child, String> {
    let (clients, peers) = (format!("{scheme}://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
    let data: PathBuf = folder.path().join("data");
    let mut child = Command::new("etcd")
        .arg("--data-dir")
        .arg(data)
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("default={peers}")])
        // The shortest lease follows from the time of an election: a second.
        .args(["--heartbeat-interval", "10", "--election-timeout", "100"])
        .args(["--logger", "zap", "--log-outputs", "stderr"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it was there a moment ago");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut said = String::new();
    for line in log.by_ref().map_while(Result::ok) {
        said.push_str(&line);
        said.push('\n');
        let serves = ["serving insecure client requests", "serving client traffic"];
        if serves.iter().any(|words| line.contains(words)) {
            // The later output must be read, otherwise etcd blocks.
            std::thread::spawn(move || log.map_while(Result::ok).for_each(drop));
            return Ok(child);
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(said)
}

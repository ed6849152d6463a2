//! `portcullis doctor --nic udp`: checks whether region keys enforce what permissions over UDP rest on, and which
//! support for datagrams this machine has. A node and its clients are created inside this process, on loopback.

use crate::output::{complain, print_json, print_styled, say};
use crate::samples::Samples;
use anstyle::{AnsiColor, Style};
use portcullis::host::{Host, HostConfig, NetworkListen, UdpConfig};
use portcullis::{
    Access, Acquire, Allocate, Credential, Error, Lifetime, NodeConfig, NodeSecurity, Permission,
    RemoteAddress, Session, Unchecked, connect,
};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;

/// Number of times that a step is timed.
const ROUNDS: usize = 2_000;
const BYTES: u64 = 4096;
const LEASE: Lifetime = Lifetime::seconds(9);

/// A reason why nothing could be tried.
#[derive(Debug, thiserror::Error)]
enum Untried {
    #[error("no node on loopback: {0}")]
    Node(#[from] portcullis::host::HostError),
    #[error("no session on loopback: {0}")]
    Connect(#[from] portcullis::ConnectError),
    #[error("a session failed: {0}")]
    Session(#[from] Error),
}

/// A guarantee, and whether it holds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Finding {
    name: &'static str,
    holds: bool,
    detail: &'static str,
}

/// A step, and the time that it takes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Time {
    name: &'static str,
    median_us: f64,
}

#[derive(Debug, Serialize)]
struct Examination {
    guarantees: Vec<Finding>,
    times: Vec<Time>,
    /// Datagrams that one system call sends to one destination.
    segments: usize,
    /// Bytes of the largest datagram that loopback carries for an operation.
    datagram_max: u32,
    /// Whether the processor has instructions for AES.
    aes: bool,
}

/// Examines this machine and prints the results.
pub fn run(json: bool) -> ExitCode {
    match examine() {
        Ok(examination) => {
            if json {
                print_json(&examination);
            } else {
                examination.tell();
            }
            ExitCode::from(u8::from(!examination.guarantees.iter().all(|finding| finding.holds)))
        }
        Err(error) => {
            complain(format_args!("portcullis doctor: --nic udp: {error}"));
            ExitCode::from(3)
        }
    }
}

/// A node with two tenants, and a session of each.
struct Trial {
    _host: Host,
    red: Session,
    blue: Session,
    sibling: Session,
}

impl Trial {
    fn start() -> Result<Self, Untried> {
        let listen = |tenant: &str| NetworkListen {
            address: "127.0.0.1:0".to_owned(),
            security: NodeSecurity::Plain,
            plain_anywhere: false,
            tenant: Some(tenant.to_owned()),
        };
        let udp = UdpConfig { listen: vec![listen("red"), listen("blue")], ..UdpConfig::default() };
        let node = NodeConfig { pool_bytes: 4 << 20, ..NodeConfig::default() };
        let host = Host::start(HostConfig { node, udp: Some(udp), ..HostConfig::default() })?;
        let at = |tenant: usize| connect(&format!("udp:{}", host.network_addresses()[tenant]));
        let (red, blue, sibling) = (at(0)?, at(1)?, at(0)?);
        Ok(Self { _host: host, red, blue, sibling })
    }
}

/// Whether a read with this credential is refused.
fn is_refused(session: &mut Session, address: RemoteAddress, credential: Credential) -> Result<bool, Error> {
    let buffer = session.buffer(8)?;
    let target = Unchecked::new(address, credential);
    let begun = session.client().dangerous_access(Access::read(target, 0, buffer));
    let outcome = session.wait(begun.map_err(|rejected| rejected.error)?)?;
    Ok(outcome.result == Err(Error::Violation))
}

/// Whether an addition with this credential is refused.
fn is_change_refused(session: &mut Session, held: &Permission) -> Result<bool, Error> {
    let target = Unchecked::new(held.address(), held.credential());
    let begun = session.client().dangerous_access(Access::compare_and_swap(target, 0, 0, 1));
    let outcome = session.wait(begun.map_err(|rejected| rejected.error)?)?;
    Ok(outcome.result == Err(Error::Violation))
}

fn examine() -> Result<Examination, Untried> {
    let mut trial = Trial::start()?;
    let Trial { red, blue, sibling, .. } = &mut trial;
    let block = red.allocate(Allocate::bytes(BYTES).keep().lifetime(LEASE))?;
    let (address, credential, object) = (block.address(), block.credential(), block.object());
    let beyond = RemoteAddress(address.0 + BYTES - 4);
    let range =
        is_refused(red, beyond, credential)? && is_refused(red, RemoteAddress(address.0 - 64), credential)?;
    let holder = is_refused(sibling, address, credential)?;
    let tenant = is_refused(blue, address, credential)?;
    let times = times(red, &block)?;
    red.revoke(block)?;
    let end = is_refused(red, address, credential)?;
    let narrow = red.acquire(Acquire::object(object).read_only().lifetime(LEASE))?;
    let rights = is_change_refused(red, &narrow)?;
    let finding = |name, holds, detail| Finding { name, holds, detail };
    Ok(Examination {
        guarantees: vec![
            finding("region-range", range, "a key opens no byte beyond its permission"),
            finding("region-rights", rights, "a key for reading changes nothing"),
            finding("region-end", end, "a key opens nothing once its permission has ended"),
            finding("region-holder", holder, "a key opens nothing to another session of its tenant"),
            finding("region-tenant", tenant, "a key opens nothing to another tenant"),
        ],
        times,
        segments: portcullis::udp_segments().unwrap_or(1),
        datagram_max: match red.client().endpoint() {
            portcullis::SessionEndpoint::Udp(udp) => udp.datagram_max(),
            _ => 0,
        },
        aes: has_aes(),
    })
}

fn times(session: &mut Session, block: &Permission) -> Result<Vec<Time>, Error> {
    let mut bytes = [0; 64];
    let read = timed("READ of 64 bytes", || session.read(block, 0, &mut bytes))?;
    let write = timed("WRITE of 64 bytes", || session.write(block, 0, &[0; 64]))?;
    let atomic = timed("FETCH_AND_ADD", || session.fetch_and_add(block, 64, 1).map(drop))?;
    let grant = timed("a permission, granted and revoked", || {
        let held = session.allocate(Allocate::bytes(64).lifetime(LEASE))?;
        session.revoke(held)
    })?;
    Ok(vec![read, write, atomic, grant])
}

fn timed(name: &'static str, mut step: impl FnMut() -> Result<(), Error>) -> Result<Time, Error> {
    let mut samples = Samples::new();
    for _ in 0..ROUNDS {
        let before = Instant::now();
        step()?;
        samples.add(before.elapsed());
    }
    Ok(Time { name, median_us: samples.typical() })
}

/// Whether the processor has instructions for AES. Without them encryption takes ten times as long.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

impl Examination {
    fn tell(&self) {
        let bold = Style::new().bold();
        let what =
            format!(": the {} guarantees that permissions rest on, on loopback", self.guarantees.len());
        print_styled(&[(bold, &"encrypted operations over UDP"), (Style::new(), &what)]);
        say("");
        for Finding { name, holds, detail } in &self.guarantees {
            let (word, style) = match holds {
                true => ("holds", AnsiColor::Green.on_default()),
                false => ("does not hold", AnsiColor::Red.on_default().bold()),
            };
            print_styled(&[
                (style, &format_args!("{word:13}")),
                (Style::new(), &format_args!("  {name:14}  {detail}")),
            ]);
        }
        say("");
        for Time { name, median_us } in &self.times {
            say(format_args!("{name:36} {median_us:8.2} µs"));
        }
        let aes = if self.aes {
            "has instructions for AES"
        } else {
            "has no instructions for AES: encryption is slow"
        };
        say(format_args!("\nthis processor {aes}"));
        say(format_args!(
            "one system call sends up to {} datagrams; loopback carries datagrams of {} bytes",
            self.segments, self.datagram_max
        ));
    }
}

//! The attacks, each as a step that is repeated, and the work that as many honest clients would do instead.
//!
//! Steps run on the honest client's own thread, between its operations. The node executes the work that they post while
//! the honest client waits. So an attack takes the node's time, and not the honest client's processor.

use super::raider::{LEASE, Raider, allocation, elsewhere, key};
use super::raw_connection::RawConnection;
use crate::bench::BenchError;
use clap::ValueEnum;
use portcullis::{Lifetime, RemoteAddress, Rights, Rkey, Sharing};
use portcullis_attach::unix::AttachRequest;
use portcullis_nic::{Operation, RemoteSpan};
use portcullis_protocol::{
    Acquire, Allocate, GrantRequest, Granted, Holders, Keep, ObjectName, Part, ReplyBody, RequestBody,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A step of an attack, or of the honest clients in its place.
pub type AttackStep = Box<dyn FnMut() -> Result<(), BenchError>>;

/// The attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Attack {
    /// Punch holes into ports that are being attached.
    Holes,
    /// Pass descriptors whose close waits.
    Descriptors,
    /// Attach ports of the largest size, and leave.
    Ports,
    /// A thousand clients post messages that are never received, and take no replies.
    Sleepers,
    /// Fill the pool with tiny kept objects, and leave them all behind.
    Tiny,
    /// Two thousand connections send nothing.
    Silence,
    /// Send requests at full speed: malformed ones, refused ones, and conflicting permissions.
    Messages,
    /// Access memory beyond the permission, and ask for a rebuild each time.
    Recoveries,
    /// Guess keys on all queue pairs at once, with clients that attach again when the node disconnects them.
    Violations,
    /// Read a mebibyte at a time, as often as the queues hold.
    Transfers,
    /// Attach and leave.
    Storm,
}

/// Attacking clients, in attacks that do not need many.
const RAIDERS: usize = 16;
const SLEEPERS: usize = 1_000;
const SILENT: usize = 2_000;
/// Connections that are attaching at once.
const ATTACHING: usize = 8;
/// Tiny objects that are left behind at a time.
const TINY: u32 = 60_000;
const LARGE: u32 = 1 << 20;
const SMALL_ARENA: u64 = 64 << 10;
const LARGE_ARENA: u64 = 64 << 20;

impl Attack {
    /// Number of attacking clients or connections.
    pub fn clients(self) -> usize {
        match self {
            Self::Sleepers => SLEEPERS,
            Self::Holes | Self::Descriptors | Self::Ports | Self::Storm => ATTACHING,
            Self::Silence => SILENT,
            Self::Tiny => 1,
            Self::Messages | Self::Recoveries | Self::Violations | Self::Transfers => RAIDERS,
        }
    }

    /// Prepares the attack at a tenant's socket.
    pub fn begin(self, path: &Path) -> Result<AttackStep, BenchError> {
        match self {
            Self::Holes => Ok(attaching(path, SMALL_ARENA, true)),
            Self::Ports => Ok(attaching(path, LARGE_ARENA, false)),
            Self::Storm => Ok(attaching(path, SMALL_ARENA, false)),
            Self::Descriptors => descriptors(path),
            Self::Sleepers => sleepers(path),
            Self::Tiny => tiny(path),
            Self::Silence => Ok(silence(path)),
            Self::Messages => messages(path),
            Self::Recoveries => recoveries(path),
            Self::Violations => violations(path),
            Self::Transfers => transfers(path),
        }
    }

    /// Prepares as many honest clients, which attach once and read now and then.
    pub fn honest(self, path: &Path) -> Result<AttackStep, BenchError> {
        match self {
            // Connections are not clients. An honest client costs no more than its attach.
            Self::Silence | Self::Descriptors => honest_readers(path, ATTACHING, 64),
            // Honest clients do large reads as well, but one at a time.
            Self::Transfers => honest_readers(path, RAIDERS, LARGE),
            Self::Sleepers => {
                let quiet = crowd(path, SLEEPERS, SMALL_ARENA)?;
                Ok(Box::new(move || {
                    let _still_there = &quiet;
                    Ok(())
                }))
            }
            Self::Messages | Self::Tiny => honest_askers(path, self.clients()),
            _ => honest_readers(path, self.clients(), 64),
        }
    }
}

fn crowd(path: &Path, count: usize, arena_bytes: u64) -> Result<Vec<Raider>, BenchError> {
    (0..count).map(|_| Raider::attach(path, arena_bytes)).collect()
}

/// Attaches clients that each hold some memory.
fn holders(path: &Path, count: usize, size: u32) -> Result<Vec<(Raider, Granted)>, BenchError> {
    let hold = |mut raider: Raider| {
        let held = raider.hold(size.into())?;
        Ok((raider, held))
    };
    crowd(path, count, u64::from(size) + SMALL_ARENA)?.into_iter().map(hold).collect()
}

/// Renews permissions, so that no read arrives after its lease has ended.
fn renew(holders: &mut [(Raider, Granted)], until: &mut Instant, size: u32) -> Result<(), BenchError> {
    if Instant::now() < *until {
        return Ok(());
    }
    for (holder, held) in holders {
        *held = holder.hold(size.into())?;
    }
    *until = Instant::now() + LEASE / 2;
    Ok(())
}

/// Clients that acquire and revoke permissions, each with one request at a time.
fn honest_askers(path: &Path, count: usize) -> Result<AttackStep, BenchError> {
    let mut askers: Vec<(Raider, bool)> =
        crowd(path, count, SMALL_ARENA)?.into_iter().map(|asker| (asker, false)).collect();
    Ok(Box::new(move || {
        for (asker, waits) in &mut askers {
            let mut next = (!*waits).then(|| allocation(64, Keep::No));
            asker.take(|answer| {
                next = Some(match answer {
                    ReplyBody::Granted(Granted { permission, .. }) => {
                        RequestBody::Grant(GrantRequest::Revoke { permission, free: false })
                    }
                    _ => allocation(64, Keep::No),
                });
            });
            if let Some(body) = next {
                *waits = asker.say(body, true);
            }
        }
        Ok(())
    }))
}

/// Clients that read their own memory, each with one read at a time.
fn honest_readers(path: &Path, count: usize, size: u32) -> Result<AttackStep, BenchError> {
    let mut readers = holders(path, count, size)?;
    let mut until = Instant::now() + LEASE / 2;
    Ok(Box::new(move || {
        renew(&mut readers, &mut until, size)?;
        for (reader, held) in &mut readers {
            reader.mend();
            if reader.under_way == 0 {
                reader.read(0, held, size);
            }
        }
        Ok(())
    }))
}

fn transfers(path: &Path) -> Result<AttackStep, BenchError> {
    let mut readers = holders(path, RAIDERS, LARGE)?;
    let mut until = Instant::now() + LEASE / 2;
    Ok(Box::new(move || {
        renew(&mut readers, &mut until, LARGE)?;
        for (reader, held) in &mut readers {
            reader.take(|_| {});
            for queue_pair in 0..reader.queue_pairs() {
                for _ in 0..4 {
                    reader.read(queue_pair, held, LARGE);
                }
            }
        }
        Ok(())
    }))
}

fn sleepers(path: &Path) -> Result<AttackStep, BenchError> {
    let mut sleepers = crowd(path, SLEEPERS, SMALL_ARENA)?;
    for sleeper in &mut sleepers {
        let local = sleeper.span(8);
        for queue_pair in 0..sleeper.queue_pairs() {
            sleeper.post(queue_pair, Operation::Send { local });
        }
        sleeper.say(nonsense(), false);
    }
    Ok(Box::new(move || {
        let _still_there = &sleepers;
        Ok(())
    }))
}

/// A request that is refused.
fn nonsense() -> RequestBody {
    RequestBody::Grant(GrantRequest::Free {
        object: ObjectName::Address(RemoteAddress(1)),
        holders: Holders::Stay,
    })
}

fn tiny(path: &Path) -> Result<AttackStep, BenchError> {
    let path = path.to_owned();
    let mut raider: Option<Raider> = None;
    let mut objects = 0;
    Ok(Box::new(move || {
        let there = match &mut raider {
            Some(there) => there,
            None => raider.insert(Raider::attach(&path, SMALL_ARENA)?),
        };
        let brief = Lifetime::millis(1);
        let body = match allocation(1, Keep::For(Lifetime::millis(1))) {
            RequestBody::Grant(GrantRequest::Allocate(Allocate {
                size,
                alignment,
                rights,
                sharing,
                keep,
                ..
            })) => RequestBody::Grant(GrantRequest::Allocate(Allocate {
                size,
                alignment,
                lifetime: brief,
                rights,
                sharing,
                keep,
            })),
            other => other,
        };
        while there.say(body, true) {}
        there.take(|answer| objects += u32::from(matches!(answer, ReplyBody::Granted(_))));
        if objects >= TINY || !portcullis_nic::Endpoint::node_alive(&mut there.endpoint) {
            (raider, objects) = (None, 0);
        }
        Ok(())
    }))
}

fn messages(path: &Path) -> Result<AttackStep, BenchError> {
    let mut raiders = holders(path, RAIDERS, 64)?;
    let mut round = 0u64;
    Ok(Box::new(move || {
        for (raider, held) in &mut raiders {
            for _ in 0..32 {
                round += 1;
                let (object, part) = (held.object.into(), Part::WHOLE);
                let (lifetime, rights, sharing) = (Lifetime::millis(1), Rights::all(), Sharing::Exclusive);
                let wait = Lifetime(round % 2 * 100);
                let body = match round % 3 {
                    0 => nonsense(),
                    1 => allocation(round % 8192, Keep::No),
                    _ => RequestBody::Grant(GrantRequest::Acquire(Acquire {
                        object,
                        part,
                        lifetime,
                        rights,
                        sharing,
                        wait,
                    })),
                };
                if !raider.say(body, true) {
                    break;
                }
            }
            raider.take(|_| {});
        }
        Ok(())
    }))
}

fn recoveries(path: &Path) -> Result<AttackStep, BenchError> {
    let path = path.to_owned();
    let mut raiders = holders(&path, RAIDERS, 64)?;
    Ok(Box::new(move || {
        for (raider, held) in &mut raiders {
            raider.mend();
            let local = raider.span(8);
            let remote = RemoteSpan { address: elsewhere(held), rkey: key(held) };
            for queue_pair in 0..raider.queue_pairs() {
                raider.post(queue_pair, Operation::Read { local, remote });
            }
        }
        come_again(&mut raiders, &path)
    }))
}

fn violations(path: &Path) -> Result<AttackStep, BenchError> {
    let path = path.to_owned();
    let mut raiders = holders(&path, RAIDERS, 64)?;
    let mut guess = 0u32;
    Ok(Box::new(move || {
        for (raider, held) in &mut raiders {
            raider.mend();
            for queue_pair in 0..raider.queue_pairs() {
                guess = guess.wrapping_add(1);
                let remote = RemoteSpan { address: held.object.address, rkey: Rkey(guess) };
                let local = raider.span(8);
                raider.post(queue_pair, Operation::Read { local, remote });
            }
        }
        come_again(&mut raiders, &path)
    }))
}

/// Attaches again one client that the node has disconnected. This fails while the tenant is barred.
fn come_again(raiders: &mut [(Raider, Granted)], path: &Path) -> Result<(), BenchError> {
    let out = raiders.iter_mut().find_map(|(raider, held)| {
        (!portcullis_nic::Endpoint::node_alive(&mut raider.endpoint)).then_some((raider, held))
    });
    if let Some((raider, _)) = out
        && let Ok(again) = Raider::attach(path, SMALL_ARENA)
    {
        *raider = again;
    }
    Ok(())
}

fn silence(path: &Path) -> AttackStep {
    let path = path.to_owned();
    let mut connections: Vec<RawConnection> = Vec::new();
    Box::new(move || {
        connections.retain(|connection| connection.hear().is_ok());
        for _ in 0..64 {
            if connections.len() < SILENT {
                connections.extend(RawConnection::connect(&path));
            }
        }
        Ok(())
    })
}

fn descriptors(path: &Path) -> Result<AttackStep, BenchError> {
    let path = path.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut connections: Vec<RawConnection> = Vec::new();
    Ok(Box::new(move || {
        if connections.len() >= ATTACHING {
            connections.clear();
        }
        if let Some(connection) = RawConnection::connect(&path) {
            connection.pass(lingering(&listener)?.as_fd());
            connections.push(connection);
        }
        Ok(())
    }))
}

/// A descriptor whose last close takes as long as possible. It is a connection that lingers because its peer does not
/// read.
fn lingering(listener: &TcpListener) -> Result<OwnedFd, BenchError> {
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65536]).is_ok() {}
    let linger = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(1)));
    linger.map_err(std::io::Error::from)?;
    // The node must be the one that closes it last.
    Ok(stream.into())
}

/// A connection that is attaching.
struct Visitor {
    connection: RawConnection,
    file: Option<OwnedFd>,
    steps: u32,
}

/// Clients that attach and leave all the time. If `holes`, they punch holes into their ports meanwhile.
fn attaching(path: &Path, arena_bytes: u64, holes: bool) -> AttackStep {
    let path: PathBuf = path.to_owned();
    let mut visitors: Vec<Visitor> = Vec::new();
    Box::new(move || {
        while visitors.len() < ATTACHING
            && let Some(connection) = RawConnection::connect(&path)
        {
            connection.say(AttachRequest::Hello { arena_bytes });
            visitors.push(Visitor { connection, file: None, steps: 0 });
        }
        visitors.retain_mut(|visitor| go_on(visitor, holes));
        Ok(())
    })
}

/// Continues the attach. Returns whether the visitor stays.
fn go_on(visitor: &mut Visitor, holes: bool) -> bool {
    visitor.steps += 1;
    let Ok(heard) = visitor.connection.hear() else { return false };
    let mut heard = heard.into_iter();
    if let (None, Some(file)) = (&visitor.file, heard.next()) {
        visitor.file = Some(file);
        visitor.connection.say(AttachRequest::Mapped);
    }
    if holes && let Some(file) = &visitor.file {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for _ in 0..8 {
            // The kernel refuses this once the node uses the file, which defeats the attack.
            let _ = rustix::fs::fallocate(file, hole, 0, SMALL_ARENA);
        }
    }
    visitor.steps < 4096 && (visitor.file.is_none() || visitor.steps < 64)
}

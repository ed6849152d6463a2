//! The attacks, each as a step that is taken again and again, and what as many honest clients would do instead.
//!
//! Steps run on the honest client's own thread, between its operations: what they post, the node has before it while the
//! honest client waits. So an attack takes the node's time and not the honest client's processor.

use super::door::Door;
use super::raider::{LEASE, Raider, allocation, elsewhere, key};
use crate::bench::BenchError;
use clap::ValueEnum;
use portcullis::{Lifetime, RemoteAddress, Rights, Rkey, Sharing};
use portcullis_attach::unix::AttachRequest;
use portcullis_nic::{Operation, RemoteSpan};
use portcullis_protocol::{Granted, Keep, ObjectName, Part, ReplyBody, RequestBody};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A step of an attack, or of those who do not attack.
pub type Step = Box<dyn FnMut() -> Result<(), BenchError>>;

/// The attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Attack {
    /// Holes are punched into ports that are being attached.
    Holes,
    /// Descriptors are passed whose close waits.
    Descriptors,
    /// Ports as large as they come are attached and left.
    Ports,
    /// A thousand clients have messages posted that nobody receives, and replies that they do not take.
    Sleepers,
    /// The pool is filled with tiny objects that are kept, which are all left behind.
    Tiny,
    /// Two thousand connections say nothing.
    Silence,
    /// Requests as fast as they go: garbage, refused ones, and permissions that conflict.
    Messages,
    /// Accesses beyond what is held, and a rebuild asked for after each.
    Recoveries,
    /// Keys that nobody has, on all queue pairs at once, by clients that come again when they are shown out.
    Violations,
    /// Reads of a mebibyte, as many as the queues hold.
    Transfers,
    /// Clients that attach and leave.
    Storm,
}

/// Clients that attack at once, where no crowd is the point.
const RAIDERS: usize = 16;
const SLEEPERS: usize = 1_000;
const SILENT: usize = 2_000;
/// Connections that are in the middle of attaching at once.
const DOORS: usize = 8;
/// Tiny objects that are left behind at a time.
const TINY: u32 = 60_000;
const LARGE: u32 = 1 << 20;
const SMALL_ARENA: u64 = 64 << 10;
const LARGE_ARENA: u64 = 64 << 20;

impl Attack {
    /// Those who take part.
    pub fn clients(self) -> usize {
        match self {
            Self::Sleepers => SLEEPERS,
            Self::Holes | Self::Descriptors | Self::Ports | Self::Storm => DOORS,
            Self::Silence => SILENT,
            Self::Tiny => 1,
            Self::Messages | Self::Recoveries | Self::Violations | Self::Transfers => RAIDERS,
        }
    }

    /// Sets the attack up at a tenant's socket.
    pub fn begin(self, path: &Path) -> Result<Step, BenchError> {
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

    /// Has as many honest clients do what such clients do: reading now and then, and attaching once.
    pub fn honest(self, path: &Path) -> Result<Step, BenchError> {
        match self {
            // Connections are no clients. They cost an honest client nothing but its own attach.
            Self::Silence | Self::Descriptors => honest_readers(path, DOORS, 64),
            // Honest clients ask for that as well, one such read at a time.
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

/// Clients that each hold some memory.
fn holders(path: &Path, count: usize, size: u32) -> Result<Vec<(Raider, Granted)>, BenchError> {
    let hold = |mut raider: Raider| {
        let held = raider.hold(size.into())?;
        Ok((raider, held))
    };
    crowd(path, count, u64::from(size) + SMALL_ARENA)?.into_iter().map(hold).collect()
}

/// Nobody reads with a lease that may have ended.
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

/// Clients that take permissions and give them back, one request at a time each.
fn honest_askers(path: &Path, count: usize) -> Result<Step, BenchError> {
    let mut askers: Vec<(Raider, bool)> =
        crowd(path, count, SMALL_ARENA)?.into_iter().map(|asker| (asker, false)).collect();
    Ok(Box::new(move || {
        for (asker, waits) in &mut askers {
            let mut next = (!*waits).then(|| allocation(64, Keep::No));
            asker.take(|answer| {
                next = Some(match answer {
                    ReplyBody::Granted(Granted { permission, .. }) => {
                        RequestBody::Revoke { permission, free: false }
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

/// Clients that read what they hold, one read at a time each.
fn honest_readers(path: &Path, count: usize, size: u32) -> Result<Step, BenchError> {
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

fn transfers(path: &Path) -> Result<Step, BenchError> {
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

fn sleepers(path: &Path) -> Result<Step, BenchError> {
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
    RequestBody::Free { object: ObjectName::Address(RemoteAddress(1)) }
}

fn tiny(path: &Path) -> Result<Step, BenchError> {
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
            RequestBody::Allocate { size, alignment, rights, sharing, keep, .. } => {
                RequestBody::Allocate { size, alignment, lifetime: brief, rights, sharing, keep }
            }
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

fn messages(path: &Path) -> Result<Step, BenchError> {
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
                    _ => RequestBody::Acquire { object, part, lifetime, rights, sharing, wait },
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

fn recoveries(path: &Path) -> Result<Step, BenchError> {
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

fn violations(path: &Path) -> Result<Step, BenchError> {
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

/// Who was shown out attaches again, one at a time; while the tenant is barred, nobody does.
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

fn silence(path: &Path) -> Step {
    let path = path.to_owned();
    let mut doors: Vec<Door> = Vec::new();
    Box::new(move || {
        doors.retain(|door| door.hear().is_ok());
        for _ in 0..64 {
            if doors.len() < SILENT {
                doors.extend(Door::knock(&path));
            }
        }
        Ok(())
    })
}

fn descriptors(path: &Path) -> Result<Step, BenchError> {
    let path = path.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut doors: Vec<Door> = Vec::new();
    Ok(Box::new(move || {
        if doors.len() >= DOORS {
            doors.clear();
        }
        if let Some(door) = Door::knock(&path) {
            door.pass(lingering(&listener)?.as_fd());
            doors.push(door);
        }
        Ok(())
    }))
}

/// A descriptor whose last close takes as long as it is allowed to: a connection that lingers over what nobody reads.
fn lingering(listener: &TcpListener) -> Result<OwnedFd, BenchError> {
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65536]).is_ok() {}
    let linger = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(1)));
    linger.map_err(std::io::Error::from)?;
    // The last close shall be the node's.
    Ok(stream.into())
}

/// A connection in the middle of attaching.
struct Visitor {
    door: Door,
    file: Option<OwnedFd>,
    steps: u32,
}

/// Clients that attach and leave again, all the time; with holes punched into their ports meanwhile.
fn attaching(path: &Path, arena_bytes: u64, holes: bool) -> Step {
    let path: PathBuf = path.to_owned();
    let mut visitors: Vec<Visitor> = Vec::new();
    Box::new(move || {
        while visitors.len() < DOORS
            && let Some(door) = Door::knock(&path)
        {
            door.say(AttachRequest::Hello { arena_bytes });
            visitors.push(Visitor { door, file: None, steps: 0 });
        }
        visitors.retain_mut(|visitor| go_on(visitor, holes));
        Ok(())
    })
}

/// Whether a visitor stays.
fn go_on(visitor: &mut Visitor, holes: bool) -> bool {
    visitor.steps += 1;
    let Ok(heard) = visitor.door.hear() else { return false };
    let mut heard = heard.into_iter();
    if let (None, Some(file)) = (&visitor.file, heard.next()) {
        visitor.file = Some(file);
        visitor.door.say(AttachRequest::Mapped);
    }
    if holes && let Some(file) = &visitor.file {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for _ in 0..8 {
            // Refused from the moment on at which the node uses the file: that is what stops it.
            let _ = rustix::fs::fallocate(file, hole, 0, SMALL_ARENA);
        }
    }
    visitor.steps < 4096 && (visitor.file.is_none() || visitor.steps < 64)
}

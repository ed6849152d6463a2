//! A client process of the demo. It executes the orders on its standard input and replies to each of them. It ends when
//! its input ends.

use super::loader;
use super::loops;
use super::orders::{Order, OrderReply, Raw, Stored, Wanted};
use super::processors;
use crate::network::DeviceOptions;
use portcullis::{
    Access, Acquire, Allocate, ConnectError, Credential, Error, Lifetime, ObjectRef, Operation, Permission,
    RemoteAddress, Rights, Session, Unchecked, connect_with,
};
use portcullis_structures::table::TableError;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest lifetime on the demo's nodes.
pub const LIFETIME: Lifetime = Lifetime::seconds(10);

/// A reason why an order was not executed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The node refused, or has ended.
    #[error(transparent)]
    Remote(#[from] Error),
    /// A table operation failed, or the node did.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is no node.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The process that gives the orders has ended.
    #[error("no process listens: {0}")]
    Nobody(#[from] std::io::Error),
    /// The order makes no sense in this state.
    #[error("{0}")]
    Order(String),
}

/// A client process.
pub struct Actor {
    /// The session with the node.
    pub session: Session,
    blocks: Vec<Option<Permission>>,
    /// The credential of each block, also when its permission has ended.
    credentials: Vec<Credential>,
    orders: Receiver<Order>,
}

/// Acts as a client of the node at `address`, on the given processors, until the input ends.
pub fn run(address: &str, device: &DeviceOptions, processors: &[usize]) -> ExitCode {
    processors::stay_on(processors);
    match Actor::start(address, device).and_then(Actor::act) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If no process reads this any more, the order failed for the same reason.
            let _ = say(&OrderReply::Failed { why: failure.to_string() });
            ExitCode::FAILURE
        }
    }
}

/// Prints one line.
pub fn say(answer: &OrderReply) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    let mut line = serde_json::to_vec(answer).map_err(std::io::Error::from)?;
    line.push(b'\n');
    output.write_all(&line)?;
    Ok(output.flush()?)
}

/// Receives orders on a thread, so that a loop can poll for an order.
fn hear() -> Result<Receiver<Order>, Failure> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Some(order) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return };
            if sender.send(order).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

impl Actor {
    fn start(address: &str, device: &DeviceOptions) -> Result<Self, Failure> {
        let orders = hear()?;
        let session = connect_with(address, device.session())?;
        say(&OrderReply::Ready { client: session.number() })?;
        Ok(Self { session, blocks: Vec::new(), credentials: Vec::new(), orders })
    }

    fn act(mut self) -> Result<(), Failure> {
        while let Ok(order) = self.orders.recv() {
            if order.is_about_a_table() {
                return loader::act(self.session, &self.orders, order);
            }
            let answer = match self.carry_out(order) {
                Ok(answer) => answer,
                Err(Failure::Remote(Error::Refused(refusal))) => {
                    OrderReply::Refused { why: refusal.to_string() }
                }
                Err(Failure::Nobody(error)) => return Err(error.into()),
                Err(failure) => OrderReply::Failed { why: failure.to_string() },
            };
            say(&answer)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, order: Order) -> Result<OrderReply, Failure> {
        match order {
            Order::Store(files) => self.store(&files),
            Order::Fetch(objects) => self.fetch(&objects),
            Order::Allocate { bytes, lifetime_us, keep } => {
                let ask = Allocate::bytes(bytes).lifetime(Lifetime(lifetime_us));
                let permission = self.session.allocate(if keep { ask.keep() } else { ask })?;
                Ok(self.hold(permission))
            }
            Order::AllocateAt { address, bytes, tries_most } => self.allocate_at(address, bytes, tries_most),
            Order::Acquire { object, lifetime_us, wait_us } => self.acquire(object, lifetime_us, wait_us),
            Order::Write { block, text } => {
                let Self { session, blocks, .. } = self;
                session.write(held(blocks, block)?, 0, text.as_bytes())?;
                Ok(OrderReply::Done)
            }
            Order::Read { block, bytes } => self.read(block, bytes),
            Order::Free { block } => {
                let permission =
                    self.blocks.get_mut(block).and_then(Option::take).ok_or_else(|| no_block(block))?;
                self.session.revoke_and_free(permission)?;
                Ok(OrderReply::Done)
            }
            Order::RawRead { at, bytes } => self.raw_read(at, bytes),
            Order::RawWrite { at, text } => self.raw_write(at, &text),
            Order::Traffic => {
                say(&OrderReply::Started)?;
                let Self { session, orders, .. } = self;
                loops::traffic(session, || {
                    !matches!(orders.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty))
                })
                .map(OrderReply::Traffic)
            }
            Order::Halt => Err(Failure::Order("nothing to halt".to_owned())),
            Order::MakeTable { .. }
            | Order::Load { .. }
            | Order::LoadIntoSplit { .. }
            | Order::Examine { .. } => Err(Failure::Order("it works on no table".to_owned())),
            Order::Offend { rounds } => loops::offend(&mut self.session, rounds).map(OrderReply::Guilt),
            Order::Measure { bytes, reads } => {
                loops::measure(&mut self.session, bytes, reads).map(OrderReply::Latency)
            }
        }
    }

    /// Keeps a permission, and returns its position.
    fn hold(&mut self, permission: Permission) -> OrderReply {
        let at = Raw { address: permission.address().0, credential: self.credentials.len() };
        self.credentials.push(permission.credential());
        let object = permission.object();
        self.blocks.push(Some(permission));
        OrderReply::Granted { block: self.blocks.len() - 1, object, at }
    }

    fn store(&mut self, files: &[Wanted]) -> Result<OrderReply, Failure> {
        let mut remote = Duration::ZERO;
        for file in files {
            let bytes = match read_file(file) {
                Ok(bytes) => bytes,
                Err(error) => {
                    say(&OrderReply::Unreadable { number: file.number, why: error.to_string() })?;
                    continue;
                }
            };
            let length = bytes.len() as u64;
            let sha256 = digest(&bytes);
            let before = Instant::now();
            // An empty file gets an object of one byte, whose content is not used.
            let held = self.session.allocate(Allocate::bytes(length.max(1)).lifetime(LIFETIME).keep())?;
            self.session.write(&held, 0, &bytes)?;
            let object = held.object();
            self.session.revoke(held)?;
            remote += before.elapsed();
            say(&OrderReply::Stored(Stored { number: file.number, object, bytes: length, sha256 }))?;
        }
        Ok(OrderReply::Moved { remote_us: micros(remote) })
    }

    fn fetch(&mut self, objects: &[Stored]) -> Result<OrderReply, Failure> {
        let mut remote = Duration::ZERO;
        for object in objects {
            let length = usize::try_from(object.bytes).map_err(|_| Failure::Order("too long".to_owned()))?;
            let mut bytes = vec![0; length];
            let before = Instant::now();
            let ask = Acquire::object(object.object).rights(Rights::READ).shared().lifetime(LIFETIME);
            let permission = self.session.acquire(ask)?;
            self.session.read(&permission, 0, &mut bytes)?;
            self.session.revoke(permission)?;
            remote += before.elapsed();
            say(&OrderReply::Fetched { number: object.number, sha256: digest(&bytes) })?;
        }
        Ok(OrderReply::Moved { remote_us: micros(remote) })
    }

    fn allocate_at(&mut self, address: u64, bytes: u64, tries_most: u32) -> Result<OrderReply, Failure> {
        // Held until the end, so that no address is allocated twice.
        let mut others = Vec::new();
        for _ in 0..tries_most {
            let permission = self.session.allocate(Allocate::bytes(bytes).lifetime(LIFETIME))?;
            if permission.address().0 == address {
                for other in others {
                    self.session.revoke(other)?;
                }
                return Ok(self.hold(permission));
            }
            others.push(permission);
        }
        let why =
            format!("{address:#x} was not given out again in {tries_most} allocations of {bytes} bytes");
        Err(Failure::Order(why))
    }

    fn acquire(&mut self, object: ObjectRef, lifetime_us: u64, wait_us: u64) -> Result<OrderReply, Failure> {
        let ask = Acquire::object(object).lifetime(Lifetime(lifetime_us)).wait(Lifetime(wait_us));
        say(&OrderReply::Started)?;
        let permission = self.session.acquire(ask)?;
        Ok(self.hold(permission))
    }

    fn read(&mut self, block: usize, bytes: u32) -> Result<OrderReply, Failure> {
        let Self { session, blocks, .. } = self;
        let permission = held(blocks, block)?;
        let mut into = vec![0; bytes as usize];
        let before = Instant::now();
        session.read(permission, 0, &mut into)?;
        Ok(OrderReply::Bytes { bytes: into, took_us: fine_micros(before.elapsed()) })
    }

    fn raw_read(&mut self, at: Raw, bytes: u32) -> Result<OrderReply, Failure> {
        let buffer = self.session.buffer(bytes)?;
        let before = Instant::now();
        let credential = self.credential(at)?;
        let target = Unchecked::new(RemoteAddress(at.address), credential);
        let begun = self.session.client().dangerous_access(Access::read(target, 0, buffer));
        self.raw_answer(begun.map_err(|rejected| rejected.error)?, before)
    }

    fn raw_write(&mut self, at: Raw, text: &str) -> Result<OrderReply, Failure> {
        let length = u32::try_from(text.len()).map_err(|_| Failure::Order("too long".to_owned()))?;
        let mut buffer = self.session.buffer(length)?;
        buffer.write(0, text.as_bytes());
        let before = Instant::now();
        let credential = self.credential(at)?;
        let target = Unchecked::new(RemoteAddress(at.address), credential);
        let begun = self.session.client().dangerous_access(Access::write(target, 0, buffer));
        self.raw_answer(begun.map_err(|rejected| rejected.error)?, before)
    }

    fn credential(&self, at: Raw) -> Result<Credential, Failure> {
        self.credentials.get(at.credential).copied().ok_or_else(|| no_block(at.credential))
    }

    fn raw_answer(&mut self, operation: Operation, before: Instant) -> Result<OrderReply, Failure> {
        let outcome = self.session.wait(operation)?;
        let took_us = fine_micros(before.elapsed());
        match outcome.result {
            Err(Error::Violation) => Ok(OrderReply::Violation { took_us }),
            Err(error) => Err(error.into()),
            Ok(_) => {
                let mut bytes = Vec::new();
                if let Some(buffer) = outcome.buffer {
                    bytes.resize(buffer.len() as usize, 0);
                    buffer.read(0, &mut bytes);
                }
                Ok(OrderReply::Bytes { bytes, took_us })
            }
        }
    }
}

fn held(blocks: &[Option<Permission>], block: usize) -> Result<&Permission, Failure> {
    blocks.get(block).and_then(Option::as_ref).ok_or_else(|| no_block(block))
}

fn no_block(block: usize) -> Failure {
    Failure::Order(format!("there is no block {block}"))
}

/// The bytes of a file: as many as were listed, or fewer if the file has shrunk since.
fn read_file(file: &Wanted) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(&file.path)?.take(file.bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A duration in µs, with its fraction.
pub fn fine_micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

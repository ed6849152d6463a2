//! How a client makes a connection over a node.

use super::channel_address::ChannelAddress;
use super::client::{ClientMailbox, Local, Mailbox};
use super::mailbox::{HELLO_BYTES, Hello, NAME, TERMS_BYTES, TERMS_READ, Terms};
use super::permissions::{acquire, allocate};
use super::presence::Presence;
use super::server_clock::ServerClock;
use crate::channel::admission::CLIENT;
use crate::channel::connection::{Connection, ConnectionError, ConnectionOptions};
use crate::channel::ends::{ClientEnd, RING_BYTES, Returned};
use crate::channel::now;
use crate::heap::Heap;
use portcullis::{
    Acquire, Allocate, Entry, Error, Lifetime, Refusal, Rights, Session, SessionOptions, connect_with,
};
use portcullis_memory::{Mapping, PrivateView};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Number of hellos that a client sends while other memory lies at the places that it is given.
const HELLOS_MAX: u32 = 16;
/// Pauses between two looks for the answer to a hello: the first one, and the longest.
const PAUSE_FIRST: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(5);

impl Connection {
    /// Connects to a channel at a node, with a client's certificates or other options for its sessions.
    ///
    /// [`open`](Self::open) with the address as text does the same without such options.
    ///
    /// # Errors
    /// There is no such node or channel, or the channel does not admit the client.
    pub fn open_at(
        address: &ChannelAddress,
        session: &SessionOptions,
        options: ConnectionOptions,
    ) -> Result<Self, ConnectionError> {
        let until = Instant::now() + options.within;
        let node = address.node.to_string();
        let mut session = connect_with(&node, session.clone())?;
        for _ in 0..HELLOS_MAX {
            let mailbox = ask(&mut session, address, options, until)?;
            let halves = mailbox.halves;
            // Copies of methods' results lie there when they are read.
            let Ok(view) = PrivateView::at(halves.results.address, halves.results.length) else {
                continue;
            };
            let (ring, returned) = (Mapping::private(RING_BYTES)?, Returned::default());
            let arguments = Heap::create(halves.arguments, CLIENT)?;
            let results = Heap::create(halves.results, CLIENT)?;
            let end = ClientEnd::new(arguments.clone(), view, ring.clone())
                .with_results(results.clone(), returned.clone());
            let local = Local { arguments, results, results_max: options.results_max, ring, returned };
            let mailbox = ClientMailbox::open(session, mailbox, local)?;
            let presence = Presence::start(mailbox, options.results_max).map_err(|error| {
                ConnectionError::Machine(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
            })?;
            return Ok(Self::carried(end, Box::new(presence), options));
        }
        Err(ConnectionError::Refused("all places that were offered are taken here".to_owned()))
    }
}

fn silent(address: &ChannelAddress, options: ConnectionOptions) -> ConnectionError {
    ConnectionError::Silent { path: address.to_string().into(), within: options.within }
}

/// Publishes a hello, and waits for the server's answer.
pub(super) fn ask(
    session: &mut Session,
    address: &ChannelAddress,
    options: ConnectionOptions,
    until: Instant,
) -> Result<Mailbox, ConnectionError> {
    let channel = &address.channel;
    let drawn = getrandom::u64().map_err(|_| ConnectionError::Machine(Errno::AGAIN))?;
    let name = format!("{NAME}{drawn:016x}");
    let lifetime = Lifetime::from(options.within);
    let hello = allocate(session, Allocate::bytes(HELLO_BYTES as u64).shared().lifetime(lifetime))?;
    session.write(&hello, 0, &Hello { heap_bytes: options.heap_bytes }.encode())?;
    session.publish(&name, hello.object())?;
    session.share(&name, channel, Rights::READ)?;
    let mut pause = PAUSE_FIRST;
    let Entry { object, .. } = loop {
        match session.lookup_of(channel, &name) {
            Err(Error::Refused(Refusal::NoSuchName)) if Instant::now() < until => std::thread::sleep(pause),
            Err(Error::Refused(Refusal::NoSuchName)) => return Err(silent(address, options)),
            found => break found?,
        }
        pause = (2 * pause).min(PAUSE_MAX);
    };
    let ask = Acquire::object(object).part(0, TERMS_BYTES).read_only().shared();
    let reading = acquire(session, ask)?;
    let mut terms = [0; TERMS_READ];
    session.read(&reading, 0, &mut terms)?;
    // The hello has been answered, and may have ended by itself meanwhile.
    let _ = session.revoke_and_free(hello);
    match Terms::parse(&terms) {
        Some(Ok(Terms::Welcome(halves, said))) => {
            let mut clock = ServerClock::default();
            clock.hear(now(), said);
            Ok(Mailbox { object, halves, clock })
        }
        Some(Ok(Terms::Refused(reason))) => Err(ConnectionError::Refused(reason)),
        Some(Err(error)) => Err(error.into()),
        None => Err(ConnectionError::NotAServer { path: address.to_string().into() }),
    }
}

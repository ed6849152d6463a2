//! A load of memcached's text protocol: connections with one request under way each.

use super::super::course::Course;
use super::super::rivals::Measured;
use super::super::side_by_side::Clients;
use super::super::{BenchError, processors};
use super::gateway::LOAD_THREADS;
use crate::samples::Samples;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// Connections of each thread: 96 of all together.
pub const CONNECTIONS: usize = 24;
/// The longest wait for an answer.
const WITHIN: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Room for what one read takes from a connection.
const READ_BYTES: usize = 64 << 10;
/// Digits of a key.
const DIGITS: usize = 10;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Get,
    Set,
}

/// Threads that send requests.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub address: SocketAddr,
    pub request: Request,
    pub keys: u64,
    /// Bytes of a value.
    pub size: usize,
    /// Use each key once, in order, instead of random keys for as long as the measurement lasts.
    pub all_once: bool,
}

impl Clients for Load {
    /// The number of the thread, and its connections.
    type Ready = (usize, Vec<Connection>);

    fn prepare(&self, number: usize) -> Result<Self::Ready, BenchError> {
        processors::leave_node_alone();
        let open = |_| Connection::open(self);
        Ok((number, (0..CONNECTIONS).map(open).collect::<Result<_, _>>()?))
    }

    fn measure(
        &self,
        (number, mut connections): Self::Ready,
        mut course: Course,
    ) -> Result<Measured, BenchError> {
        let mut random = Pcg64Mcg::seed_from_u64(number as u64);
        let mut in_order = (number as u64..self.keys).step_by(LOAD_THREADS);
        let next = |begun| match (course.over(begun), self.all_once) {
            (true, _) => None,
            (false, true) => in_order.next(),
            (false, false) => Some(random.random_range(0..self.keys)),
        };
        let mut times = Samples::new();
        let done = exchange(&mut connections, next, &mut times)?;
        Ok(Measured::new(done, course.elapsed(), times))
    }
}

/// Keeps a request under way on each connection, until `next` has no more keys and all answers have arrived. Calls
/// `next` with the number of requests that have begun. Returns their number.
fn exchange(
    connections: &mut [Connection],
    mut next: impl FnMut(u64) -> Option<u64>,
    times: &mut Samples,
) -> Result<u64, BenchError> {
    let (mut begun, mut under_way) = (0, 0);
    let mut begin = |connection: &mut Connection| -> Result<u64, BenchError> {
        let Some(key) = next(begun) else { return Ok(0) };
        connection.begin(key)?;
        begun += 1;
        Ok(1)
    };
    for connection in &mut *connections {
        under_way += begin(connection)?;
    }
    let (mut done, mut room) = (0, vec![0; READ_BYTES]);
    while under_way > 0 {
        for place in readable(connections)? {
            let connection = &mut connections[place];
            if connection.takes_answer(&mut room)? {
                times.add(connection.begun.elapsed());
                done += 1;
                under_way -= 1;
                under_way += begin(connection)?;
            }
        }
    }
    Ok(done)
}

/// Waits for answers. Returns the places of the connections that have some.
fn readable(connections: &[Connection]) -> Result<Vec<usize>, BenchError> {
    let polled = |connection| PollFd::new(connection, PollFlags::IN);
    let mut polled: Vec<PollFd<'_>> =
        connections.iter().map(|connection| polled(&connection.stream)).collect();
    let ready = poll(&mut polled, Some(&WITHIN)).map_err(std::io::Error::from)?;
    if ready == 0 {
        let within = WITHIN.tv_sec;
        return Err(BenchError::Gateway(format!("it has not answered for {within} seconds")));
    }
    let ready = polled.iter().enumerate().filter(|(_, one)| !one.revents().is_empty());
    Ok(ready.map(|(place, _)| place).collect())
}

/// A connection with one request under way at most.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    /// The answer that is right. It names the key of a GET.
    expected: Vec<u8>,
    /// Bytes of the answer that have arrived.
    arrived: usize,
    begun: Instant,
}

impl Connection {
    fn open(load: &Load) -> Result<Self, BenchError> {
        let stream = TcpStream::connect(load.address)?;
        stream.set_nodelay(true)?;
        let (key, size) = ("0".repeat(DIGITS), load.size);
        let value = "v".repeat(size);
        let (request, expected) = match load.request {
            Request::Get => (format!("get {key}\r\n"), format!("VALUE {key} 0 {size}\r\n{value}\r\nEND\r\n")),
            Request::Set => (format!("set {key} 0 0 {size}\r\n{value}\r\n"), "STORED\r\n".to_owned()),
        };
        let (request, expected) = (request.into_bytes(), expected.into_bytes());
        Ok(Self { stream, request, expected, arrived: 0, begun: Instant::now() })
    }

    /// Sends the request for a key.
    fn begin(&mut self, key: u64) -> Result<(), BenchError> {
        let digits = format!("{key:0DIGITS$}");
        // Both commands have three letters.
        self.request[4..4 + DIGITS].copy_from_slice(digits.as_bytes());
        if self.expected.starts_with(b"VALUE ") {
            self.expected[6..6 + DIGITS].copy_from_slice(digits.as_bytes());
        }
        self.arrived = 0;
        self.begun = Instant::now();
        Ok(self.stream.write_all(&self.request)?)
    }

    /// Reads from the connection. Returns whether the answer is complete.
    fn takes_answer(&mut self, room: &mut [u8]) -> Result<bool, BenchError> {
        let count = self.stream.read(room)?;
        let (got, rest) = (&room[..count], &self.expected[self.arrived..]);
        if got.is_empty() {
            return Err(BenchError::Gateway("it closed a connection".to_owned()));
        }
        if !rest.starts_with(got) {
            let answer = String::from_utf8_lossy(got);
            let line = answer.lines().next().unwrap_or_default();
            return Err(BenchError::Gateway(format!("a wrong answer: {line:?}")));
        }
        self.arrived += count;
        Ok(self.arrived == self.expected.len())
    }
}

//! The time of a GET of 64 bytes from a server that answers requests by TCP, for comparison with a get of a table.
//!
//! ```sh
//! memcached -l 127.0.0.1 -p 22122 -t 1 -u nobody &
//! cargo run --release -p portcullis-structures --example peer_get -- memcached 127.0.0.1:22122
//! redis-server --port 22123 --save '' --appendonly no &
//! cargo run --release -p portcullis-structures --example peer_get -- redis 127.0.0.1:22123 16
//! ```
//!
//! The last argument is the number of GETs that are sent at once. The program measures for three seconds, five times,
//! and prints the typical round trip and the rate of each time.

#![allow(clippy::disallowed_methods, reason = "it measures, and is no state machine")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 64;
const KEYS: usize = 10_000;
const WARM_UP: usize = 2_000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);

/// The protocol of a server.
#[derive(Clone, Copy)]
enum Dialect {
    Memcached,
    Redis,
}

impl Dialect {
    fn set(self, key: &str, value: &str) -> String {
        match self {
            Self::Memcached => format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()),
            Self::Redis => format!("SET {key} {value}\r\n"),
        }
    }

    fn get(self, key: &str) -> String {
        match self {
            Self::Memcached => format!("get {key}\r\n"),
            Self::Redis => format!("GET {key}\r\n"),
        }
    }

    fn stored(self) -> usize {
        match self {
            Self::Memcached => "STORED\r\n".len(),
            Self::Redis => "+OK\r\n".len(),
        }
    }

    /// Returns the number of bytes of the answer to a get.
    fn answer(self, key: &str) -> usize {
        match self {
            Self::Memcached => format!("VALUE {key} 0 {VALUE_BYTES}\r\n\r\nEND\r\n").len() + VALUE_BYTES,
            Self::Redis => format!("${VALUE_BYTES}\r\n\r\n").len() + VALUE_BYTES,
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (dialect, address) = match &arguments[..] {
        [name, address, ..] if name == "memcached" => (Dialect::Memcached, address),
        [name, address, ..] if name == "redis" => (Dialect::Redis, address),
        _ => return Err("usage: peer_get memcached|redis HOST:PORT [GETS AT ONCE]".into()),
    };
    let at_once: usize = arguments.get(2).map_or(Ok(1), |count| count.parse())?;
    let mut server = TcpStream::connect(address)?;
    server.set_nodelay(true)?;
    let value = "v".repeat(VALUE_BYTES);
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key-{number:05}")).collect();
    for key in &keys {
        server.write_all(dialect.set(key, &value).as_bytes())?;
        server.read_exact(&mut vec![0; dialect.stored()])?;
    }
    let requests: Vec<String> =
        keys.chunks_exact(at_once).map(|keys| keys.iter().map(|key| dialect.get(key)).collect()).collect();
    let mut answer = vec![0; at_once * dialect.answer(&keys[0])];
    let mut ask = |request: &String| -> Result<(), Box<dyn Error>> {
        server.write_all(request.as_bytes())?;
        Ok(server.read_exact(&mut answer)?)
    };
    requests.iter().cycle().take(WARM_UP).try_for_each(&mut ask)?;
    for _ in 0..ROUNDS {
        let (began, mut times) = (Instant::now(), Vec::new());
        for request in requests.iter().cycle() {
            let before = Instant::now();
            ask(request)?;
            times.push(before.elapsed());
            if began.elapsed() > ROUND {
                break;
            }
        }
        let rate = (times.len() * at_once) as f64 / began.elapsed().as_secs_f64();
        times.sort_unstable();
        println!("p50 {:?} for {at_once}, {rate:.0} GETs a second", times[times.len() / 2]);
    }
    Ok(())
}

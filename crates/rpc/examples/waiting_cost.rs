//! Measures the cost of waiting: calls to a method that takes some time, on a quiet machine and beside threads that
//! never rest, and the same exchange over a Unix socket, whose ends always sleep. `waiting_cost CALLS`. The client is
//! pinned to one processor, the server to another, and each busy thread to one of the two.

use portcullis_rpc::Boxed;
use portcullis_rpc::channel::{Connection, Copied, Reply, serve};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The processors of the client and of the server.
const PROCESSORS: [usize; 2] = [0, 1];
/// Number of calls before the measurement: ends that adapt have done so by then.
const WARM_UP: u32 = 200;

fn main() {
    let calls = std::env::args().nth(1).and_then(|it| it.parse().ok()).unwrap_or(3000);
    println!(
        "{:>9}  {:>8}  {:>24}  {:>24}",
        "work, us", "machine", "call, us: p50 p90 p99", "socket, us: p50 p90 p99"
    );
    for work in [0, 10, 100, 1000].map(Duration::from_micros) {
        for (machine, busy) in [("quiet", 0), ("busy", PROCESSORS.len())] {
            let stop = AtomicBool::new(false);
            let [call, socket] = std::thread::scope(|scope| {
                for &processor in &PROCESSORS[..busy] {
                    let stop = &stop;
                    scope.spawn(move || {
                        portcullis_memory::pin(processor);
                        while !stop.load(Ordering::Relaxed) {
                            std::hint::black_box(());
                        }
                    });
                }
                // Each measurement has a thread of its own: the others must not inherit its processor.
                let measured = [by_calls, by_socket].map(|by| {
                    scope.spawn(move || percentiles(by(work, calls))).join().expect("it is measured")
                });
                stop.store(true, Ordering::Relaxed);
                measured
            });
            let told = |[p50, p90, p99]: [f64; 3]| format!("{p50:8.1} {p90:8.1} {p99:6.0}");
            println!("{:>9}  {machine:>8}  {:>24}  {:>24}", work.as_micros(), told(call), told(socket));
        }
    }
}

fn spend(work: Duration) {
    let began = Instant::now();
    while began.elapsed() < work {
        std::hint::spin_loop();
    }
}

/// Measures the times of exchanges.
fn measure(calls: u32, mut once: impl FnMut()) -> Vec<Duration> {
    (0..WARM_UP).for_each(|_| once());
    (0..calls)
        .map(|_| {
            let began = Instant::now();
            once();
            began.elapsed()
        })
        .collect()
}

fn by_calls(work: Duration, calls: u32) -> Vec<Duration> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("waiting.sock");
    let method = move |_: Copied<'_, u64>, _: &mut Reply<'_>| {
        spend(work);
        Ok(())
    };
    let server = serve(&path).on_processors([PROCESSORS[1]]).copied(1, method).start().expect("a server");
    portcullis_memory::pin(PROCESSORS[0]);
    let mut connection = Connection::open(&path).expect("a connection");
    let scope = connection.scope(4096).expect("a scope");
    let root = Boxed::new(&scope, 1_u64).expect("room");
    let times = measure(calls, || drop(connection.call(1, &scope, root).expect("an answer")));
    drop(server);
    times
}

fn by_socket(work: Duration, calls: u32) -> Vec<Duration> {
    let (mut client, mut server) = UnixStream::pair().expect("a socket");
    let thread = std::thread::spawn(move || {
        portcullis_memory::pin(PROCESSORS[1]);
        let mut line = [0; 64];
        while server.read_exact(&mut line).is_ok() {
            spend(work);
            server.write_all(&line).expect("the client is there");
        }
    });
    portcullis_memory::pin(PROCESSORS[0]);
    let mut line = [0; 64];
    let times = measure(calls, || {
        client.write_all(&line).expect("the server is there");
        client.read_exact(&mut line).expect("an answer");
    });
    drop(client);
    thread.join().expect("it has ended");
    times
}

fn percentiles(mut times: Vec<Duration>) -> [f64; 3] {
    times.sort();
    [50, 90, 99].map(|percent| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6)
}

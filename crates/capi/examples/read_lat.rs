//! Measures how long a read takes from Rust, for comparison with `read_lat.c`.
//!
//! `read_lat ADDRESS BYTES READS` prints the nanoseconds of one read.

use portcullis::{Allocate, Lifetime, connect};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, bytes, reads] = &arguments[..] else {
        return Err("usage: read_lat ADDRESS BYTES READS".into());
    };
    let (bytes, reads): (usize, u32) = (bytes.parse()?, reads.parse()?);
    let mut session = connect(address)?;
    let block = session.allocate(Allocate::bytes(bytes as u64).lifetime(Lifetime::seconds(10)))?;
    let mut into = vec![0; bytes];
    for _ in 0..reads / 10 {
        session.read(&block, 0, &mut into)?;
    }
    let begun = Instant::now();
    for _ in 0..reads {
        session.read(&block, 0, &mut into)?;
    }
    println!("{:.1}", begun.elapsed().as_secs_f64() * 1e9 / f64::from(reads));
    Ok(())
}

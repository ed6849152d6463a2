//! Part 1: every file of a folder is written to remote memory and read back by other processes.

use super::cast::{ClientProcess, DemoError, Node};
use super::figures::Files;
use super::listing::Listing;
use super::orders::{Order, OrderReply, Stored, Wanted};
use super::screen::Screen;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of writers, and number of readers, of each tenant.
const OF_EACH: usize = 2;
/// The tenants of the processes of a kind.
const TENANTS: [&str; 2 * OF_EACH] = ["orange", "blue", "orange", "blue"];
/// The longest wait for one process, while others work too.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time for which all processes together may be silent. One of them may be busy with the largest file.
const SILENT_MOST: Duration = Duration::from_secs(15);
/// The most objects of another tenant that a tenant requests.
const STRANGERS_MOST: usize = 8;

/// Shows part 1 with the files of a listing.
pub fn show(
    node: &Node,
    screen: &mut Screen,
    folder: &Path,
    mut listing: Listing,
) -> Result<Files, DemoError> {
    let mut writers = troupe(node, "writer")?;
    let (stored, write_us) = store(&mut writers, screen, &mut listing)?;
    // The writers stay: a tenant's objects are freed with its last client.
    let mut readers = troupe(node, "reader")?;
    let (digests, read_us) = fetch(&mut readers, screen, &stored, listing.files.len())?;
    let (asked, refused) = ask_as_strangers(&mut readers, &stored)?;
    let all: Vec<&Stored> = stored.iter().flatten().collect();
    let unequal: Vec<String> = all
        .iter()
        .filter(|file| digests[file.number].as_ref() != Some(&file.sha256))
        .map(|file| listing.files[file.number].path.display().to_string())
        .collect();
    let bytes = all.iter().map(|file| file.bytes).sum();
    Ok(Files {
        folder: folder.display().to_string(),
        files: all.len(),
        bytes,
        equal: all.len() - unequal.len(),
        unequal,
        asked_by_strangers: asked,
        refused_to_strangers: refused,
        writers: writers.len(),
        readers: readers.len(),
        write_mb_per_s: megabytes_per_second(bytes, write_us),
        read_mb_per_s: megabytes_per_second(bytes, read_us),
        left_out: listing.left_out,
        reasons: listing.reasons,
    })
}

fn troupe(node: &Node, role: &str) -> Result<Vec<ClientProcess>, DemoError> {
    TENANTS.into_iter().map(|tenant| node.client(tenant, role)).collect()
}

/// Lets all writers write at once. Returns the files that each has written, and the longest time that a writer took.
fn store(
    writers: &mut [ClientProcess],
    screen: &mut Screen,
    listing: &mut Listing,
) -> Result<(Vec<Vec<Stored>>, u64), DemoError> {
    let mut shares: Vec<Vec<Wanted>> = vec![Vec::new(); writers.len()];
    for (number, file) in listing.files.iter().enumerate() {
        let wanted = Wanted { number, path: file.path.clone(), bytes: file.bytes };
        shares[number % writers.len()].push(wanted);
    }
    for (writer, share) in writers.iter_mut().zip(shares) {
        writer.order(&Order::Store(share))?;
    }
    let mut stored = vec![Vec::new(); writers.len()];
    let files = listing.files.len();
    screen.progress("writing", files);
    let longest = gather(writers, |writer, answer| {
        screen.advance();
        match answer {
            OrderReply::Stored(file) => stored[writer].push(file),
            OrderReply::Unreadable { number, why } => {
                let path = listing.files[number].path.clone();
                listing.leave_out(&path, &why);
            }
            other => return Some(other),
        }
        None
    })?;
    Ok((stored, longest))
}

/// Lets each reader read the files that another process of its tenant has written. Returns the digests by the files'
/// numbers.
fn fetch(
    readers: &mut [ClientProcess],
    screen: &mut Screen,
    stored: &[Vec<Stored>],
    files: usize,
) -> Result<(Vec<Option<String>>, u64), DemoError> {
    for (reader, share) in readers.iter_mut().zip(stored) {
        reader.order(&Order::Fetch(share.clone()))?;
    }
    let mut digests = vec![None; files];
    screen.progress("reading", stored.iter().map(Vec::len).sum());
    let longest = gather(readers, |_, answer| {
        screen.advance();
        match answer {
            OrderReply::Fetched { number, sha256 } => {
                if let Some(place) = digests.get_mut(number) {
                    *place = Some(sha256);
                }
            }
            other => return Some(other),
        }
        None
    })?;
    Ok((digests, longest))
}

/// Receives answers until each process has reported its time. `take` returns answers that it does not expect.
fn gather(
    processes: &mut [ClientProcess],
    mut take: impl FnMut(usize, OrderReply) -> Option<OrderReply>,
) -> Result<u64, DemoError> {
    let mut busy = vec![true; processes.len()];
    let mut longest = 0;
    let mut heard = Instant::now();
    while busy.contains(&true) {
        for (number, process) in processes.iter_mut().enumerate() {
            while busy[number]
                && let Some(answer) = process.answer_within(LOOK)?
            {
                heard = Instant::now();
                if let OrderReply::Moved { remote_us } = answer {
                    longest = longest.max(remote_us);
                    busy[number] = false;
                } else if let Some(strange) = take(number, answer) {
                    return Err(process.strange(&strange));
                }
            }
        }
        if heard.elapsed() > SILENT_MOST {
            return Err(DemoError::Slow { who: "every client process".to_owned() });
        }
    }
    Ok(longest)
}

/// Lets each tenant request some objects of the other. Returns the number of requests, and the number of refusals.
fn ask_as_strangers(
    readers: &mut [ClientProcess],
    stored: &[Vec<Stored>],
) -> Result<(usize, usize), DemoError> {
    let (mut asked, mut refused) = (0, 0);
    for (number, reader) in readers.iter_mut().enumerate().take(OF_EACH) {
        // The next share belongs to the other tenant.
        let others = &stored[(number + 1) % stored.len()];
        for file in others.iter().take(STRANGERS_MOST) {
            asked += 1;
            reader.order(&Order::Acquire { object: file.object, lifetime_us: 1_000_000, wait_us: 0 })?;
            match (reader.answer()?, reader.answer()?) {
                (OrderReply::Started, OrderReply::Refused { .. }) => refused += 1,
                (OrderReply::Started, OrderReply::Granted { .. }) => {}
                (_, other) => return Err(reader.strange(&other)),
            }
        }
    }
    Ok((asked, refused))
}

/// A rate in 10^6 bytes per second; zero if nothing was moved.
fn megabytes_per_second(bytes: u64, micros: u64) -> f64 {
    if micros == 0 { 0.0 } else { bytes as f64 / micros as f64 }
}

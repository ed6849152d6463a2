//! Whether a permission's end is final. A long transfer runs while its key is taken away. Once the end of the key is
//! confirmed, no byte may move any more.

use super::probe::Said;
use super::setback::Setback;
use crate::bench::{Bench, End, Held, HeldObject, Holder, Pair, remote};
use portcullis_nic::{
    Access, Completion, CqId, LocalSpan, Memory, Nic, Operation, Region, RemoteAddress, Status,
    WindowBinding, WindowKind,
};

/// Bytes of the transfer: enough that the key ends during it.
const TRANSFER: u32 = 8 << 20;
/// Number of tries if the transfer ends before the key does.
const TRIES: u32 = 3;
/// Start addresses of the owner's and of the client's long memory.
const FAR_POOL: u64 = 0x30_0000_0000;
const FAR_LOCAL: u64 = 0x40_0000_0000;
/// Byte values: in the memory that is sent, in the memory that receives, and those that the owner writes after the
/// key's end.
const SENT: u8 = 0x5a;
const BLANK: u8 = 0x00;
const AFTERWARDS: u8 = 0xe7;
/// Number of bytes filled or read at once.
const CHUNK: usize = 1 << 20;

/// The long memories of the owner and of the client.
struct Far<M> {
    pool_memory: M,
    pool: Region,
    local_memory: M,
    local: Region,
}

pub(super) fn is_final<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Said {
    if let Holder::Window(kind) = holder {
        bench.require_window(kind)?;
    }
    let mut remarks = Vec::new();
    for writes in [false, true] {
        let mut remark = String::new();
        for _ in 0..TRIES {
            bench.in_time()?;
            let (cut, said) = during(bench, holder, writes)?;
            remark = said;
            if cut {
                break;
            }
        }
        remarks.push(remark);
    }
    Ok(remarks.join(", "))
}

/// Runs one try. Returns whether the transfer was cut off, and a description of its course.
fn during<N: Nic>(bench: &mut Bench<N>, holder: Holder, writes: bool) -> Result<(bool, String), Setback> {
    let far = far(bench, holder)?;
    let (sender, taker) =
        if writes { (&far.local_memory, &far.pool_memory) } else { (&far.pool_memory, &far.local_memory) };
    fill(sender, SENT);
    fill(taker, BLANK);
    let pair = bench.pair()?;
    // Windows of type 1 end on a queue pair that clients cannot break, as on a node.
    let manager = if holder == Holder::Window(WindowKind::One) { bench.pair()? } else { pair };
    let held = key(bench, manager.owner, holder, far.pool)?;
    let remote = remote(FAR_POOL, held.rkey);
    let local = LocalSpan { address: FAR_LOCAL, length: TRANSFER, lkey: far.local.lkey };
    let operation =
        if writes { Operation::Write { local, remote } } else { Operation::Read { local, remote } };
    let request = bench.request(operation, true);
    bench.post(pair.client, &[request])?;
    let mut over = begun(bench, pair, taker)?;
    if let Some(Completion { status, .. }) = over
        && status != Status::Success
    {
        return Err(Setback::Failed(format!("a transfer with a good key ended with {status}")));
    }
    end(bench, manager.owner, holder, held)?;
    // The end is confirmed: from here on the memory belongs to another holder.
    over = over.or(poll(bench, pair.client.send_cq)?);
    fill(&far.pool_memory, AFTERWARDS);
    let late = over.is_none();
    let completion = match over {
        Some(completion) => completion,
        None => bench.until("end of the transfer", |bench| Ok(poll(bench, pair.client.send_cq)?))?,
    };
    verify(&far, writes)?;
    release(bench, &far, held)?;
    Ok(told(writes, late, completion.status))
}

fn told(writes: bool, late: bool, status: Status) -> (bool, String) {
    let what = if writes { "a WRITE" } else { "a READ" };
    let mebibytes = TRANSFER >> 20;
    if status == Status::Success {
        let when = if late { "at that moment" } else { "before" };
        return (false, format!("{what} of {mebibytes} MiB was over {when}"));
    }
    (true, format!("{what} of {mebibytes} MiB was cut off"))
}

/// Checks that no byte has moved since the owner filled its memory again.
fn verify<M: Memory>(far: &Far<M>, writes: bool) -> Result<(), Setback> {
    let (stray, what) = if writes {
        let there = u64::from(TRANSFER) - count(&far.pool_memory, AFTERWARDS);
        (there, "bytes of a WRITE arrived after its key's end was confirmed")
    } else {
        (
            count(&far.local_memory, AFTERWARDS),
            "bytes that were written after a key's end was confirmed were READ",
        )
    };
    if stray > 0 {
        return Err(Setback::Broken(format!("{stray} {what}")));
    }
    Ok(())
}

fn far<N: Nic>(bench: &mut Bench<N>, holder: Holder) -> Result<Far<N::Memory>, Setback> {
    let length = u64::from(TRANSFER);
    let pool_memory = bench.nic.allocate_memory(length)?;
    let local_memory = bench.nic.allocate_memory(length)?;
    let access =
        Access::LOCAL_WRITE | if holder == Holder::Region { Access::REMOTE } else { Access::WINDOW_BIND };
    let base = RemoteAddress(FAR_POOL);
    let pool = bench.nic.register_region(bench.owner_pd, &pool_memory, 0..length, base, access)?;
    let base = RemoteAddress(FAR_LOCAL);
    let local =
        bench.nic.register_region(bench.client_pd, &local_memory, 0..length, base, Access::LOCAL_WRITE)?;
    Ok(Far { pool_memory, pool, local_memory, local })
}

/// Makes a key over the whole long memory of the owner.
fn key<N: Nic>(bench: &mut Bench<N>, end: End, holder: Holder, pool: Region) -> Result<Held, Setback> {
    let Holder::Window(kind) = holder else {
        return Ok(Held { rkey: pool.rkey, object: HeldObject::Region(pool.id) });
    };
    let window = bench.window(kind)?;
    let binding = WindowBinding {
        region: pool.id,
        address: RemoteAddress(FAR_POOL),
        length: u64::from(TRANSFER),
        ..bench.binding(window.id, window.rkey.advanced(), Access::REMOTE_READ | Access::REMOTE_WRITE)
    };
    bench.succeed(end, Operation::BindWindow(binding))?;
    Ok(Held { rkey: binding.rkey, object: HeldObject::Window(window.id) })
}

/// Waits until the first bytes have arrived, or the transfer is over already.
fn begun<N: Nic>(bench: &mut Bench<N>, pair: Pair, taker: &N::Memory) -> Result<Option<Completion>, Setback> {
    Ok(bench.until("first byte of the transfer", |bench| {
        if let Some(over) = poll(bench, pair.client.send_cq)? {
            return Ok(Some(Some(over)));
        }
        // A NIC may begin at either end of the transfer, so both are checked.
        let mut ends = [BLANK; 2];
        taker.read(0, &mut ends[..1]);
        taker.read(u64::from(TRANSFER) - 1, &mut ends[1..]);
        Ok((ends != [BLANK; 2]).then_some(None))
    })?)
}

/// Takes the key away, and waits until the NIC has confirmed its end.
fn end<N: Nic>(bench: &mut Bench<N>, end: End, holder: Holder, held: Held) -> Result<(), Setback> {
    match (holder, held.object) {
        (Holder::Window(kind), _) => {
            let unbind = bench.unbinding(kind, held)?;
            Ok(bench.succeed(end, unbind)?)
        }
        (Holder::Region, HeldObject::Region(region)) => Ok(bench.nic.deregister_region(region)?),
        (Holder::Region, HeldObject::Window(_)) => {
            Err(Setback::Failed("a region's key is a window's".to_owned()))
        }
    }
}

/// Deregisters the long memory, so that repeated tries do not accumulate memory.
fn release<N: Nic>(bench: &mut Bench<N>, far: &Far<N::Memory>, held: Held) -> Result<(), Setback> {
    if let HeldObject::Window(window) = held.object {
        bench.nic.deallocate_window(window)?;
        bench.nic.deregister_region(far.pool.id)?;
    }
    Ok(bench.nic.deregister_region(far.local.id)?)
}

fn poll<N: Nic>(bench: &mut Bench<N>, cq: CqId) -> Result<Option<Completion>, portcullis_nic::VerbsError> {
    let mut there = Vec::new();
    bench.nic.poll(cq, 1, &mut there)?;
    Ok(there.pop())
}

fn fill<M: Memory>(memory: &M, byte: u8) {
    let chunk = vec![byte; CHUNK];
    for offset in (0..u64::from(TRANSFER)).step_by(CHUNK) {
        memory.write(offset, &chunk);
    }
}

fn count<M: Memory>(memory: &M, byte: u8) -> u64 {
    let mut chunk = vec![0; CHUNK];
    let mut seen = 0;
    for offset in (0..u64::from(TRANSFER)).step_by(CHUNK) {
        memory.read(offset, &mut chunk);
        seen += chunk.iter().map(|there| u64::from(*there == byte)).sum::<u64>();
    }
    seen
}

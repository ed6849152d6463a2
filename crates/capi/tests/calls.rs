//! Single calls of the library with random handles, for tests and for fuzzing.
#![allow(clippy::multiple_unsafe_ops_per_block)] // One proof holds for all: it is about how a caller in C passes pointers.

use portcullis_capi::access::{
    portcullis_compare_and_swap, portcullis_fetch_and_add, portcullis_read, portcullis_write,
};
use portcullis_capi::border::Text;
use portcullis_capi::buffers::{
    portcullis_buffer_release, portcullis_buffer_take, portcullis_read_buffer, portcullis_write_buffer,
};
use portcullis_capi::claims::{
    Claim, ClaimOptions, portcullis_queue_acknowledge, portcullis_queue_claim, portcullis_queue_extend_claim,
    portcullis_queue_give_back,
};
use portcullis_capi::errors::portcullis_last_error;
use portcullis_capi::handles::{
    BufferHandle, KeeperHandle, Node, PermissionHandle, QueueHandle, Session, TableHandle,
};
use portcullis_capi::names::{
    NameEntry, portcullis_include, portcullis_lookup, portcullis_names, portcullis_publish, portcullis_share,
    portcullis_unpublish, portcullis_unshare,
};
use portcullis_capi::node::{portcullis_node_connect, portcullis_node_stop};
use portcullis_capi::permissions::{
    AcquireOptions, AllocateOptions, Object, PermissionInfo, portcullis_acquire, portcullis_allocate,
    portcullis_extend, portcullis_free_object, portcullis_info, portcullis_keep, portcullis_keep_object,
    portcullis_keeper_is_kept, portcullis_keeper_stop, portcullis_object_from_text,
    portcullis_object_to_text, portcullis_revoke,
};
use portcullis_capi::queue::{
    QueueOptions, portcullis_queue_close, portcullis_queue_create, portcullis_queue_destroy,
    portcullis_queue_end, portcullis_queue_head, portcullis_queue_open, portcullis_queue_pop,
    portcullis_queue_push,
};
use portcullis_capi::session::{
    portcullis_arm, portcullis_descriptor, portcullis_poll, portcullis_session_close,
    portcullis_session_number,
};
use portcullis_capi::submission::{Completion, Operation, portcullis_submit, portcullis_wait};
use portcullis_capi::table::{
    Bytes, portcullis_table_close, portcullis_table_create, portcullis_table_destroy, portcullis_table_get,
    portcullis_table_get_many, portcullis_table_head, portcullis_table_open, portcullis_table_remove,
    portcullis_table_store, portcullis_table_visit,
};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// The handles and objects that the library has returned. Calls are made with a random choice of them.
#[derive(Default)]
pub struct Known {
    pub ids: Vec<u64>,
    pairs: Vec<(u64, u64)>,
    objects: Vec<Object>,
    /// Memory into which submitted reads write. It stays until the end.
    #[expect(clippy::vec_box, reason = "submitted reads go there: it may not move")]
    memory: Vec<Box<[u8; 64]>>,
}

impl Known {
    fn id(&self, choice: u64) -> u64 {
        // One handle in eight is made up.
        if choice.is_multiple_of(8) || self.ids.is_empty() {
            return choice.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
        self.ids[usize::try_from(choice).unwrap_or(0) % self.ids.len()]
    }

    fn pair(&self, choice: u64) -> (u64, u64) {
        match choice % 8 {
            0 => (self.id(choice >> 3), choice >> 7),
            _ if self.pairs.is_empty() => (0, 0),
            _ => self.pairs[usize::try_from(choice).unwrap_or(0) % self.pairs.len()],
        }
    }

    fn object(&self, choice: u64) -> Object {
        let at = usize::try_from(choice).unwrap_or(0);
        self.objects.get(at % self.objects.len().max(1)).copied().unwrap_or_default()
    }

    fn permission(&self, choice: u64) -> PermissionHandle {
        let (session, id) = self.pair(choice);
        PermissionHandle { session, id }
    }

    fn buffer(&self, choice: u64) -> BufferHandle {
        let (session, id) = self.pair(choice);
        BufferHandle { session, id }
    }
}

pub const TENANT: Text = Text(c"hostile".as_ptr());
/// Number of different calls that [`step`] makes.
pub const CALLS: u64 = 32;

#[expect(clippy::too_many_lines, reason = "a few lines for each call of the library")]
/// Makes one call with random handles. Adds to `known` the handles that the call opens.
pub fn step(known: &mut Known, call: u64, one: u64, two: u64) -> c_int {
    let mut memory = [0_u8; 64];
    let data = memory.as_mut_ptr().cast::<c_void>();
    let (mut word, mut size, mut found) = (0, 0, false);
    let session = Session { id: known.id(one) };
    // SAFETY: for all functions, the pointers are null or point to values of their types, and the lengths are right.
    // The functions must cope with all other arguments, which is what this function tests.
    unsafe {
        match call {
            0 => {
                let mut opened = Session::default();
                let node = Node { id: known.id(one) };
                let result = portcullis_node_connect(node, TENANT, None, Some(&mut opened));
                known.ids.push(opened.id);
                result
            }
            1 => portcullis_session_close(session),
            2 | 3 => {
                let mut granted = PermissionHandle::default();
                let options = AllocateOptions {
                    size: two % 5000,
                    is_shared: two.is_multiple_of(2),
                    keep: two % 3,
                    ..Default::default()
                };
                let result = portcullis_allocate(session, Some(&options), Some(&mut granted));
                known.pairs.push((granted.session, granted.id));
                let mut info = PermissionInfo::default();
                if portcullis_info(granted, Some(&mut info)) == 0 {
                    known.objects.push(info.object);
                }
                result
            }
            4 => {
                let mut granted = PermissionHandle::default();
                let options = AcquireOptions {
                    object: known.object(two),
                    is_shared: true,
                    wait: 100,
                    ..Default::default()
                };
                let result = portcullis_acquire(session, Some(&options), Some(&mut granted));
                known.pairs.push((granted.session, granted.id));
                result
            }
            5 => portcullis_revoke(known.permission(one), two.is_multiple_of(2)),
            6 => portcullis_read(known.permission(one), two % 6000, data, 64),
            7 => portcullis_write(known.permission(one), two % 6000, data, 64),
            8 => portcullis_fetch_and_add(known.permission(one), two % 100, 1, Some(&mut word)),
            9 => portcullis_extend(known.permission(one), two % 20_000_000),
            10 => {
                let (mut taken, mut place) = (BufferHandle::default(), null_mut());
                let length = u32::try_from(two % 10_000).unwrap_or(0);
                let result = portcullis_buffer_take(session, length, Some(&mut taken), Some(&mut place));
                known.pairs.push((taken.session, taken.id));
                result
            }
            11 => portcullis_buffer_release(known.buffer(one)),
            12 => portcullis_read_buffer(known.permission(one), two % 100, known.buffer(two)),
            13 => portcullis_write_buffer(known.permission(one), two % 100, known.buffer(two)),
            14..=17 => {
                known.memory.push(Box::new([0; 64]));
                let place = known.memory.last_mut().map_or(null_mut(), |it| it.as_mut_ptr().cast());
                let options = AllocateOptions { size: 100, ..Default::default() };
                let acquire =
                    AcquireOptions { object: known.object(one), wait: u64::MAX, ..Default::default() };
                let operation = Operation {
                    kind: u32::try_from(two % 11).unwrap_or(0),
                    reserved: 0,
                    tag: two,
                    permission: known.permission(one),
                    offset: two % 128,
                    data: place,
                    length: two % 65,
                    buffer: if two.is_multiple_of(3) { known.buffer(two) } else { BufferHandle::default() },
                    compare: 0,
                    value: two,
                    allocate: if two.is_multiple_of(5) { null() } else { &raw const options },
                    acquire: &raw const acquire,
                };
                portcullis_submit(session, Some(&operation), 1)
            }
            18 | 19 => {
                let mut completions = [Completion::default(); 4];
                let result = portcullis_wait(session, Some(&mut completions[0]), 4, 1, 1000, Some(&mut size));
                for completion in completions {
                    known.pairs.push((completion.permission.session, completion.permission.id));
                }
                result
            }
            20 => portcullis_poll(session, Some(&mut size)),
            21 => portcullis_arm(session, Some(&mut word)),
            22 => {
                portcullis_free_object(session, Some(&known.object(two)), u32::try_from(two % 4).unwrap_or(0))
            }
            23 => {
                let mut keeper = KeeperHandle::default();
                let result = portcullis_keep(known.permission(one), 10_000, Some(&mut keeper));
                known.pairs.push((keeper.session, keeper.id));
                let (session, id) = known.pair(two);
                portcullis_keeper_stop(KeeperHandle { session, id });
                result
            }
            24 => {
                let (mut table, mut queue) = (TableHandle::default(), QueueHandle::default());
                let result = portcullis_table_create(session, Text(null()), None, Some(&mut table));
                let options = QueueOptions { claims: two.is_multiple_of(2), ..Default::default() };
                portcullis_queue_create(session, Text(null()), Some(&options), Some(&mut queue));
                known.ids.extend([table.id, queue.id]);
                result
            }
            25 => {
                let table = TableHandle { id: known.id(one) };
                portcullis_table_store(table, data, 8, data, 8, None, None);
                portcullis_table_get(table, data, 8, data, 64, Some(&mut size), Some(&mut found));
                portcullis_queue_push(QueueHandle { id: known.id(two) }, data, 8)
            }
            26 => without_pointers(known, session, one, two),
            27 => names_and_objects(known, session, one, two),
            28 => structures(known, session, one, two),
            // A made-up handle is seldom the node's handle. Otherwise most calls would find that the node is gone.
            29 => claims(known, one, two),
            30 => portcullis_node_stop(Node { id: known.id(one & !0b111 | two & 0b111) }),
            _ => {
                portcullis_table_close(TableHandle { id: known.id(one) });
                portcullis_queue_close(QueueHandle { id: known.id(two) })
            }
        }
    }
}

unsafe extern "C" fn no_more_names(_: *mut c_void, _: *const NameEntry) -> bool {
    false
}

unsafe extern "C" fn all_values(_: *mut c_void, _: usize, _: *const Bytes) -> bool {
    true
}

unsafe extern "C" fn all_entries(_: *mut c_void, _: Bytes, _: Bytes) -> bool {
    true
}

/// Makes a call on names, keepers, or references as text. The texts have random bytes, and end with a zero.
unsafe fn names_and_objects(known: &mut Known, session: Session, one: u64, two: u64) -> c_int {
    let mut drawn = [0_u8; 65];
    for (at, byte) in (0..).zip(&mut drawn[..64]) {
        *byte = (two ^ one.wrapping_mul(at)).to_le_bytes()[0] | u8::from(at < two % 65);
    }
    let name = if two.is_multiple_of(3) { TENANT } else { Text(drawn.as_ptr().cast::<c_char>()) };
    let mut object = known.object(one >> 4);
    let (pair, mut is_kept, mut number, mut descriptor) = (known.pair(one), false, 0, 0);
    let keeper = KeeperHandle { session: pair.0, id: pair.1 };
    // SAFETY: as in `step`.
    unsafe {
        match one % 13 {
            0 => portcullis_publish(session, name, Some(&object)),
            1 => portcullis_unpublish(session, name),
            2 => portcullis_lookup(session, Text(null()), name, None),
            3 => portcullis_names(session, name, Some(no_more_names), null_mut()),
            4 => portcullis_share(session, name, TENANT, u8::try_from(two % 256).unwrap_or(0)),
            5 => portcullis_unshare(session, name, TENANT),
            6 => portcullis_include(session, Some(&object), Some(&known.object(two))),
            7 => portcullis_keep_object(session, Some(&object), two),
            8 => portcullis_keeper_is_kept(keeper, Some(&mut is_kept)),
            9 => {
                let room = usize::try_from(two % 66).unwrap_or(0);
                portcullis_object_to_text(Some(&object), drawn.as_mut_ptr().cast(), room)
            }
            10 => {
                let result = portcullis_object_from_text(name, Some(&mut object));
                known.objects.push(object);
                result
            }
            11 => portcullis_session_number(session, Some(&mut number)),
            _ => portcullis_descriptor(session, Some(&mut descriptor)),
        }
    }
}

/// Makes a call on a table or a queue that [`step`] itself does not make.
unsafe fn structures(known: &mut Known, session: Session, one: u64, two: u64) -> c_int {
    let mut memory = [0_u8; 64];
    let data = memory.as_mut_ptr().cast::<c_void>();
    let key = Bytes { data, length: 8 };
    let (table, queue) = (TableHandle { id: known.id(one) }, QueueHandle { id: known.id(one) });
    let (mut length, mut found, mut object) = (0, false, known.object(two));
    let (mut another_table, mut another_queue) = (TableHandle::default(), QueueHandle::default());
    // SAFETY: as in `step`.
    unsafe {
        let result = match two % 14 {
            0 => portcullis_table_head(table, Some(&mut object)),
            1 => portcullis_table_get_many(table, Some(&key), 1, Some(all_values), null_mut()),
            2 => portcullis_table_visit(table, Some(all_entries), null_mut()),
            3 => portcullis_table_remove(table, data, 8, Some(&mut found)),
            4 => portcullis_table_open(session, Text(null()), Some(&object), false, Some(&mut another_table)),
            5 => portcullis_table_destroy(table, Text(null())),
            6 => portcullis_queue_head(queue, Some(&mut object)),
            7 => portcullis_queue_open(session, Text(null()), Some(&object), Some(&mut another_queue)),
            8 => portcullis_queue_pop(queue, 100, data, 4, Some(&mut length), Some(&mut found)),
            9 => portcullis_queue_pop(queue, 0, data, 64, Some(&mut length), Some(&mut found)),
            10 => portcullis_queue_end(queue),
            11 => portcullis_table_visit(table, None, null_mut()),
            12 => portcullis_queue_destroy(queue),
            _ => portcullis_compare_and_swap(known.permission(one), two % 100, 0, two, None),
        };
        known.ids.extend([another_table.id, another_queue.id]);
        known.objects.push(object);
        result
    }
}

/// Makes calls on a queue of claims, with claims that the library returned, some of them changed afterwards.
unsafe fn claims(known: &Known, one: u64, two: u64) -> c_int {
    let mut memory = [0_u8; 64];
    let data = memory.as_mut_ptr().cast::<c_void>();
    let queue = QueueHandle { id: known.id(one) };
    let (mut claim, mut length, mut found) = (Claim::default(), 0, false);
    let options = ClaimOptions {
        lease: two % 3000,
        wait: two % 2 * 100,
        dead_letters: QueueHandle { id: if two.is_multiple_of(3) { known.id(two >> 2) } else { 0 } },
        deliveries_max: u32::try_from(two % 3).unwrap_or(0),
        reserved: 0,
    };
    // SAFETY: as in `step`.
    unsafe {
        portcullis_queue_push(queue, data, 8);
        let room = if two.is_multiple_of(5) { 4 } else { 64 };
        let result = portcullis_queue_claim(
            queue,
            Some(&options),
            data,
            room,
            Some(&mut length),
            Some(&mut claim),
            Some(&mut found),
        );
        if two.is_multiple_of(7) {
            claim.words[usize::try_from(two % 3).unwrap_or(0)] ^= one;
        }
        match two % 4 {
            0 => portcullis_queue_acknowledge(queue, Some(&claim)),
            1 => portcullis_queue_give_back(queue, Some(&claim)),
            2 => portcullis_queue_extend_claim(queue, Some(&mut claim), two % 9000),
            _ => result,
        }
    }
}

/// Makes a call in which every pointer is null.
unsafe fn without_pointers(known: &Known, session: Session, one: u64, two: u64) -> c_int {
    let permission = known.permission(one);
    portcullis_last_error(None);
    // SAFETY: null is one of the pointers that callers may pass.
    unsafe {
        match two % 12 {
            0 => portcullis_node_connect(Node { id: known.id(one) }, Text(null()), None, None),
            1 => portcullis_allocate(session, None, None),
            2 => portcullis_acquire(session, None, None),
            3 => portcullis_read(permission, 0, null_mut(), 8),
            4 => portcullis_write(permission, 0, null(), 8),
            5 => portcullis_fetch_and_add(permission, 0, 1, None),
            6 => portcullis_info(permission, None),
            7 => portcullis_submit(session, None, 3),
            8 => portcullis_wait(session, None, 3, 1, 10, None),
            9 => {
                portcullis_table_get(TableHandle { id: known.id(one) }, null(), 4, null_mut(), 4, None, None)
            }
            10 => portcullis_queue_push(QueueHandle { id: known.id(one) }, null(), 4),
            _ => portcullis_buffer_take(session, 64, None, None),
        }
    }
}

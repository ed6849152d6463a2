//! The two ends of a connection, without sockets, doorbells, waiting and a clock. The owner of an end passes it the
//! time, in nanoseconds of a clock that both ends have.
//!
//! An end is a state machine over memory: a heap, where arguments and results are, and a ring of lines with requests
//! and replies. The owner of the end transports the bytes. [`Connection`](super::Connection) and
//! [`Server`](super::Server) have both ends in memory that two processes share. If an end's memory is a copy of its
//! peer's, each step returns the line of the ring that has changed.
//!
//! ```text
//! ClientEnd::begin ──request──► ServerEnd::take, answer
//! ClientEnd::poll  ◄──reply──── ServerEnd::reply
//! ```
//!
//! ```
//! use portcullis_memory::{Mapping, PrivateView};
//! use portcullis_rpc::channel::ends::{Call, ClientEnd, Methods, RING_BYTES, ServerEnd};
//! use portcullis_rpc::channel::Copied;
//! use portcullis_rpc::heap::HEAP_ADDRESSES;
//! use portcullis_rpc::{Boxed, Heap, HeapPlace, Owner, Text};
//!
//! let place = HeapPlace::new(HEAP_ADDRESSES.start, 1 << 20)?;
//! let ring = Mapping::private(RING_BYTES)?;
//! let heap = Heap::create(place, Owner(1))?;
//! let mut server = ServerEnd::new(heap.clone(), PrivateView::anywhere(place.length)?, ring.clone());
//! let mut client = ClientEnd::new(heap, PrivateView::anywhere(place.length)?, ring);
//! let methods = Methods::default().copied(1, 4096, |name: Copied<'_, Text>, reply| {
//!     reply.set_word(name.get()?.get(name.view())?.len() as u64);
//!     Ok(())
//! });
//!
//! let scope = client.heap().scope(4096)?;
//! let name = Boxed::new(&scope, Text::new(&scope, "Ada")?)?;
//! let call = Call { method: 1, scope: scope.reference(), root: name.address(), word: 0, deadline: Some(500) };
//! let call = client.begin(call)?;
//! assert!(client.poll(call, || 100).is_none());
//! let request = server.take().expect("it is in the ring");
//! let reply = server.answer(&methods, &request, None, &|| 200);
//! server.reply(&reply);
//! assert_eq!(client.poll(call, || 300).expect("the reply is in the ring")?.word(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod copies;
mod guard;
mod lines;
mod methods;
mod outcome;
mod server;
mod shard_heap;
mod words;

pub use client::{Call, CallId, ClientEnd};
pub use lines::{LINE_BYTES, Reader, Writer, last_word};
pub use methods::Methods;
pub use outcome::{Answer, CallError, Returned};
pub use server::{Request, ServerEnd};
pub use shard_heap::ShardHeap;
pub use words::{ReplyLine, RequestLine, Status};

pub(super) use copies::Copies;

/// Function that returns the time: nanoseconds of a clock that both ends have. It is called only when the time matters.
pub type Clock<'a> = &'a (dyn Fn() -> u64 + Sync);

/// Number of calls that a connection may have under way.
pub const DEPTH: u32 = 64;
/// Offset of the requests in a ring. The words before them are for ends that wait.
pub const REQUESTS: u64 = 4096;
/// Offset of the replies in a ring.
pub const REPLIES: u64 = REQUESTS + LINE_BYTES * DEPTH as u64;
/// Bytes of a connection's ring.
pub const RING_BYTES: u64 = REPLIES + LINE_BYTES * DEPTH as u64;

const _: () = assert!(RING_BYTES.is_multiple_of(4096));

//! Calls through shared memory with native pointers, between processes that distrust each other (RPCool).
//!
//! A call passes a pointer to a tree, not a serialised copy of it.
//!
//! - [`Heap`]: shared memory that has the same addresses in every process. Many processes use its allocator at once,
//!   and a process may die at any step of it. [`Scope`]: pages of a heap for one call. [`ScopePool`]: scopes that are
//!   used again.
//! - [`Boxed`], [`Vector`], [`List`], [`Text`], [`Map`]: values in a heap. Any bytes are a valid value of these types
//!   ([`Plain`]), so a peer can write a wrong value there, but no invalid one.
//! - [`copy_from`]: copies a linked value with everything that it leads to from one heap to another ([`Linked`], with a
//!   derive). [`Packed`]: such a value in one block, for a process that keeps it and passes it on.
//! - [`View`]: bytes that no process changes while they are read. A `&T` into a heap exists only there; everything else
//!   is read by value ([`Source`]).
//! - [`sandbox`]: a place to run methods that follow pointers deep, or call foreign code.
//! - [`channel`]: servers, their methods, and connections to them. Each method chooses whether its arguments are copied.
#![forbid(unsafe_code)]

// The code that the derive generates names this crate `portcullis_rpc`.
extern crate self as portcullis_rpc;

pub mod channel;
pub mod heap;
#[cfg(test)]
mod layouts;
mod linked;
mod list;
mod map;
mod packed;
mod plain;
mod pointer;
mod scope;
mod scope_pool;
mod source;
mod text;
mod vector;
mod view;

pub use heap::{Heap, HeapError, HeapPlace, NotAllocated, Owner};
pub use linked::{Copying, Linked, copy_from};
pub use list::List;
pub use map::{Key, Map};
pub use packed::{Packed, Pointers};
pub use plain::Plain;
pub use pointer::{Boxed, PointerError};
pub use portcullis_derive::Linked;
/// Makes a typed client and a typed server from a trait.
///
/// For a trait `Library` the macro generates two more types, of the same visibility:
///
/// - `LibraryServer(implementation)` is put on a channel with [`Channel::service`](channel::Channel::service). Several
///   threads may call the implementation at once.
/// - `LibraryClient(connection)` has two methods for each method of the trait: one that waits for the answer, and one
///   whose name begins with `begin_`, which does not wait. `connection` is a [`Connection`](channel::Connection) or
///   `&mut` one: then several clients can use it.
///
/// Each method has a number, `#[method(100)]`, by which clients and servers of all versions identify it: the number
/// never changes when other methods are added or removed. The method takes `&self`, and then these arguments, each only
/// if it is needed:
///
/// 1. the passed value, in the form that the receiver chooses: [`Copied<'_, T>`](channel::Copied),
///    [`Trusted<'_, T>`](channel::Trusted) or another type that implements [`Isolation`](channel::Isolation). The client
///    passes a scope and a `Boxed<T>` into it. For [`OneShot<'_, T>`](channel::OneShot) the scope is a
///    [`Sealed`](channel::Sealed) one;
/// 2. a word, `u64`;
/// 3. `&mut Reply<'_>`: the place of the result, and the time that the caller has left.
///
/// The method returns a `Result` of `()`, of a word (`u64`), or of a `Boxed<R>` into the reply's scope. The error is a
/// [`Failure`](channel::Failure) or is converted to one.
///
/// ```
/// use portcullis_rpc::channel::{Connection, Copied, Failure, Reply, serve};
/// use portcullis_rpc::{Boxed, Text, Vector};
///
/// #[portcullis_rpc::service]
/// trait Library {
///     /// Counts the titles that begin so.
///     #[method(100)]
///     fn count(&self, beginning: Copied<'_, Text>) -> Result<u64, Failure>;
///
///     /// At most so many titles.
///     #[method(101)]
///     fn titles(&self, most: u64, reply: &mut Reply<'_>) -> Result<Boxed<Vector<Text>>, Failure>;
/// }
///
/// struct Shelf(Vec<&'static str>);
///
/// impl Library for Shelf {
///     fn count(&self, beginning: Copied<'_, Text>) -> Result<u64, Failure> {
///         let beginning = beginning.get()?.get(beginning.view())?;
///         Ok(self.0.iter().filter(|title| title.starts_with(beginning)).count() as u64)
///     }
///
///     fn titles(&self, most: u64, reply: &mut Reply<'_>) -> Result<Boxed<Vector<Text>>, Failure> {
///         let scope = reply.scope(4096)?;
///         let most = usize::try_from(most).unwrap_or(usize::MAX);
///         let titles: Result<Vec<Text>, _> =
///             self.0.iter().take(most).map(|title| Text::new(scope, title)).collect();
///         Ok(Boxed::new(scope, Vector::new(scope, &titles?)?)?)
///     }
/// }
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("library.sock");
/// let server = serve(&path).service(LibraryServer(Shelf(vec!["Emma", "Emil", "Faust"]))).start()?;
///
/// let mut library = LibraryClient(Connection::open(&path)?);
/// let scope = library.0.scope(4096)?;
/// let beginning = Boxed::new(&scope, Text::new(&scope, "Em")?)?;
/// assert_eq!(library.count(&scope, beginning)?, 2);
///
/// let titles = library.titles(2)?;
/// let titles = titles.look(&mut library.0)?;
/// let second = titles.get()?.get(titles.view())?[1];
/// assert_eq!(second.get(titles.view())?, "Emil");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A value that cannot lie in a heap cannot be an argument:
///
/// ```compile_fail,E0277
/// # use portcullis_rpc::channel::{Copied, Failure};
/// #[portcullis_rpc::service]
/// trait Library {
///     #[method(100)]
///     fn count(&self, beginning: Copied<'_, String>) -> Result<u64, Failure>;
/// }
/// ```
///
/// It cannot be a result either:
///
/// ```compile_fail,E0277
/// # use portcullis_rpc::channel::{Copied, Failure};
/// # use portcullis_rpc::Text;
/// #[portcullis_rpc::service]
/// trait Library {
///     #[method(100)]
///     fn count(&self, beginning: Copied<'_, Text>) -> Result<String, Failure>;
/// }
/// ```
///
/// A scope that is not sealed cannot be passed to a method that reads sealed scopes:
///
/// ```compile_fail,E0308
/// # use portcullis_rpc::channel::{Connection, Failure, OneShot};
/// # use portcullis_rpc::{Boxed, Text};
/// #[portcullis_rpc::service]
/// trait Library {
///     #[method(100)]
///     fn count(&self, beginning: OneShot<'_, Text>) -> Result<u64, Failure>;
/// }
/// # fn call(mut library: LibraryClient, beginning: Boxed<Text>) -> Result<(), Box<dyn std::error::Error>> {
/// let scope = library.0.scope(4096)?;
/// library.count(&scope, beginning)?;
/// # Ok(())
/// # }
/// ```
///
/// A pointer to a value of another type cannot be passed:
///
/// ```compile_fail,E0308
/// # use portcullis_rpc::channel::{Connection, Copied, Failure};
/// # use portcullis_rpc::{Boxed, Text};
/// #[portcullis_rpc::service]
/// trait Library {
///     #[method(100)]
///     fn count(&self, beginning: Copied<'_, Text>) -> Result<u64, Failure>;
/// }
/// # fn call(mut library: LibraryClient) -> Result<(), Box<dyn std::error::Error>> {
/// let scope = library.0.scope(4096)?;
/// library.count(&scope, Boxed::new(&scope, 7_u64)?)?;
/// # Ok(())
/// # }
/// ```
pub use portcullis_derive::service;
pub use portcullis_memory::sandbox;
pub use scope::{Scope, ScopeRef};
pub use scope_pool::ScopePool;
pub use source::{GrowError, HeapFull, Room, Source};
pub use text::Text;
pub use vector::Vector;
pub use view::View;

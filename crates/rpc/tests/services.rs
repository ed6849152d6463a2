//! Services: typed clients and servers that the macro generates from a trait.

use portcullis_rpc::channel::{
    CallError, Connection, Copied, DEPTH, Failure, OneShot, Reply, ServeError, Trusted, serve,
};
use portcullis_rpc::{Boxed, PointerError, Text, Vector};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The service that the tests call.
#[portcullis_rpc::service]
pub trait Desk {
    /// The sum of numbers that were copied.
    #[method(100)]
    fn sum(&self, numbers: Copied<'_, Vector<u64>>) -> Result<u64, Failure>;

    /// The sum of numbers, each read as it is at that moment, and of a word.
    #[method(101)]
    fn sum_and(&self, numbers: Trusted<'_, Vector<u64>>, word: u64) -> Result<u64, PointerError>;

    /// Adds a word to the total.
    #[method(7)]
    fn add(&self, word: u64) -> Result<(), Failure>;

    /// The total.
    #[method(8)]
    fn total(&self) -> Result<u64, Failure>;

    /// A method that is not compiled.
    #[method(300)]
    #[cfg(any())]
    fn never(&self) -> Result<u64, Failure>;

    /// The text, repeated a number of times.
    #[method(4_294_967_295)]
    fn repeat(
        &self,
        text: Copied<'_, Text>,
        times: u64,
        reply: &mut Reply<'_>,
    ) -> Result<Boxed<Text>, Failure>;

    /// A pointer that the server has invented.
    #[method(9)]
    fn wild(&self, address: u64) -> Result<Boxed<[u64; 2]>, Failure>;

    /// The longest of texts that no process changes any more.
    #[method(11)]
    fn longest(&self, texts: OneShot<'_, Vector<Text>>, at_most: u64) -> Result<u64, Failure>;

    /// A method that not every implementation has.
    #[method(10)]
    fn extra(&self) -> Result<u64, Failure> {
        Err(Failure::new(3, "there is none"))
    }
}

#[derive(Default)]
struct Clerk(AtomicU64);

impl Desk for Clerk {
    fn sum(&self, numbers: Copied<'_, Vector<u64>>) -> Result<u64, Failure> {
        Ok(numbers.get()?.get(numbers.view())?.iter().sum())
    }

    fn sum_and(&self, numbers: Trusted<'_, Vector<u64>>, word: u64) -> Result<u64, PointerError> {
        let numbers = numbers.read()?.read(numbers.heap())?;
        Ok(numbers.iter().sum::<u64>() + word)
    }

    fn add(&self, word: u64) -> Result<(), Failure> {
        self.0.fetch_add(word, Ordering::Relaxed);
        Ok(())
    }

    fn total(&self) -> Result<u64, Failure> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn repeat(
        &self,
        text: Copied<'_, Text>,
        times: u64,
        reply: &mut Reply<'_>,
    ) -> Result<Boxed<Text>, Failure> {
        let repeated = text.get()?.get(text.view())?.repeat(usize::try_from(times).unwrap());
        let scope = reply.scope(repeated.len() as u64 + 64)?;
        Ok(Boxed::new(scope, Text::new(scope, &repeated)?)?)
    }

    fn longest(&self, texts: OneShot<'_, Vector<Text>>, at_most: u64) -> Result<u64, Failure> {
        let lengths = texts.get()?.get(texts.view())?.iter().map(|text| text.len());
        Ok(lengths.filter(|length| *length <= at_most).max().unwrap_or(0))
    }

    fn wild(&self, address: u64) -> Result<Boxed<[u64; 2]>, Failure> {
        Ok(Boxed::at(address))
    }
}

/// A second service on the same channel.
#[portcullis_rpc::service]
trait Bell {
    #[method(200)]
    fn ring(&self) -> Result<u64, Failure>;
}

impl Bell for u64 {
    fn ring(&self) -> Result<u64, Failure> {
        Ok(*self)
    }
}

fn place() -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (folder.path().join("desk.sock"), folder)
}

#[test]
fn each_method_is_called_as_the_trait_says() {
    let (path, _folder) = place();
    let server = serve(&path).service(DeskServer(Clerk::default())).start().unwrap();
    let mut desk = DeskClient(Connection::open(&path).unwrap());
    let scope = desk.0.scope(4096).unwrap();
    let numbers = Boxed::new(&scope, Vector::new(&scope, &[1_u64, 2, 3]).unwrap()).unwrap();
    assert_eq!(desk.sum(&scope, numbers).unwrap(), 6);
    assert_eq!(desk.sum_and(&scope, numbers, 10).unwrap(), 16);
    desk.add(40).unwrap();
    desk.add(2).unwrap();
    assert_eq!(desk.total().unwrap(), 42);
    let text = Boxed::new(&scope, Text::new(&scope, "ab").unwrap()).unwrap();
    let free = desk.0.heap().free_bytes();
    let repeated = desk.repeat(&scope, text, 3).unwrap();
    assert_eq!(repeated.read().unwrap().read(desk.0.heap()).unwrap(), "ababab");
    let looked = repeated.look(&mut desk.0).unwrap();
    assert_eq!(looked.get().unwrap().get(looked.view()).unwrap(), "ababab");
    drop(repeated);
    assert_eq!(desk.0.heap().free_bytes(), free, "an answer frees its scope");
    assert_eq!(server.counters().failed, 0);
}

#[test]
fn what_goes_wrong_is_an_error_of_the_call() {
    let (path, _folder) = place();
    let server = serve(&path).service(DeskServer(Clerk::default())).start().unwrap();
    let mut desk = DeskClient(Connection::open(&path).unwrap());
    let scope = desk.0.scope(4096).unwrap();
    for wrong in [Boxed::NULL, Boxed::at(u64::MAX), Boxed::at(scope.address() + 8192)] {
        assert!(matches!(desk.sum(&scope, wrong).unwrap_err(), CallError::WildPointer(_)));
    }
    let outside = Boxed::at(desk.0.heap().place().start() - 4096);
    assert!(matches!(desk.sum_and(&scope, outside, 0).unwrap_err(), CallError::WildPointer(_)));
    let failed = CallError::Failed { number: 3, text: "there is none".to_owned() };
    assert_eq!(desk.extra().unwrap_err(), failed);
    // A server may return any pointer.
    for address in [0, 1, u64::MAX, desk.0.heap().place().start() - 8] {
        let wild = desk.wild(address).unwrap();
        assert!(wild.read().is_err());
        assert_eq!(wild.look(&mut desk.0).unwrap_err(), CallError::Nonsense);
    }
    // The server has no methods with these numbers.
    assert_eq!(BellClient(&mut desk.0).ring().unwrap_err(), CallError::NoSuchMethod(200));
    assert_eq!(desk.total().unwrap(), 0, "the connection lives on");
    assert_eq!(server.counters().failed, 6);
}

#[test]
fn a_scope_is_sealed_once_and_read_by_many_typed_calls() {
    let (path, _folder) = place();
    let _server = serve(&path).service(DeskServer(Clerk::default())).start().unwrap();
    let mut desk = DeskClient(Connection::open(&path).unwrap());
    let scope = desk.0.one_shot(4096).unwrap();
    let texts = ["a", "four", "seventeen letters"].map(|text| Text::new(&scope, text).unwrap());
    let texts = Boxed::new(&scope, Vector::new(&scope, &texts).unwrap()).unwrap();
    let sealed = desk.0.seal(scope).unwrap();
    let calls = [0, 3, 4, 17, u64::MAX].map(|most| desk.begin_longest(&sealed, texts, most, None).unwrap());
    assert_eq!(calls.map(|call| call.wait(&mut desk.0).unwrap()), [0, 1, 4, 17, 17]);
    drop(sealed);

    let other = desk.0.one_shot(4096).unwrap();
    let sealed = desk.0.seal(other).unwrap();
    let elsewhere = desk.longest(&sealed, texts, 4);
    assert!(matches!(elsewhere, Err(CallError::WildPointer(_))), "{elsewhere:?}");
}

#[test]
fn many_typed_calls_are_under_way() {
    let (path, _folder) = place();
    let _server = serve(&path).service(DeskServer(Clerk::default())).start().unwrap();
    let mut desk = DeskClient(Connection::open(&path).unwrap());
    let scope = desk.0.scope(4096).unwrap();
    let numbers = Boxed::new(&scope, Vector::new(&scope, &[1_u64, 2, 3]).unwrap()).unwrap();
    let calls: Vec<_> =
        (0..u64::from(DEPTH)).map(|word| desk.begin_sum_and(&scope, numbers, word, None).unwrap()).collect();
    assert_eq!(desk.begin_add(1, None).unwrap_err(), CallError::TooMany);
    for (word, call) in calls.into_iter().enumerate().rev() {
        assert_eq!(call.wait(&mut desk.0).unwrap(), 6 + word as u64);
    }
    let call = desk.begin_total(None).unwrap();
    desk.0.cancel(*call);
    assert!(matches!(call.wait(&mut desk.0), Ok(0) | Err(CallError::Cancelled)));
}

#[test]
fn services_share_a_channel_and_their_clients_a_connection() {
    let (path, _folder) = place();
    let channel = serve(&path).service(DeskServer(Clerk::default())).service(BellServer(5));
    let _server = channel.start().unwrap();
    let mut connection = Connection::open(&path).unwrap();
    DeskClient(&mut connection).add(3).unwrap();
    assert_eq!(BellClient(&mut connection).ring().unwrap(), 5);
    assert_eq!(DeskClient(&mut connection).total().unwrap(), 3);
}

#[test]
fn two_methods_of_one_number_are_refused() {
    let (path, _folder) = place();
    let twice = serve(&path).service(BellServer(5)).service(BellServer(6)).start().unwrap_err();
    assert!(matches!(twice, ServeError::SameNumber(200)), "{twice}");
    assert!(!path.exists(), "nobody listens there");
}

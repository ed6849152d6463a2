//! The store over gRPC (tonic) on a Unix socket. The messages are written out by hand: no compiler of protocol buffers is needed.

use crate::course::{BoxError, Course, Timed};
use crate::kept::{Document, Kept};
use crate::query::{Indexed, Query};
use prost::{Message, Oneof};
use serde_json::{Number, Value as Json};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(sint64, tag = "2")]
    Integer(i64),
    #[prost(uint64, tag = "3")]
    Large(u64),
    #[prost(double, tag = "4")]
    Float(f64),
    #[prost(string, tag = "5")]
    Text(String),
    #[prost(message, tag = "6")]
    Array(Fields),
    #[prost(message, tag = "7")]
    Object(Fields),
}

#[derive(Clone, PartialEq, Message)]
struct Fields {
    #[prost(message, repeated, tag = "1")]
    fields: Vec<Field>,
}

#[derive(Clone, PartialEq, Message)]
struct Field {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, required, tag = "2")]
    value: Value,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(uint64, tag = "1")]
    key: u64,
    #[prost(message, required, tag = "2")]
    document: Value,
}

#[derive(Clone, PartialEq, Message)]
struct Find {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(sint64, tag = "2")]
    from: i64,
    #[prost(sint64, tag = "3")]
    to: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Word {
    #[prost(uint64, tag = "1")]
    word: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Found {
    #[prost(message, repeated, tag = "1")]
    found: Vec<Put>,
}

impl From<&Json> for Value {
    fn from(json: &Json) -> Self {
        let fields = |fields| Fields { fields };
        let kind = match json {
            Json::Null => None,
            Json::Bool(it) => Some(Kind::Bool(*it)),
            Json::Number(it) => Some(match (it.as_i64(), it.as_u64()) {
                (Some(number), _) => Kind::Integer(number),
                (None, Some(number)) => Kind::Large(number),
                (None, None) => Kind::Float(it.as_f64().unwrap_or(f64::NAN)),
            }),
            Json::String(it) => Some(Kind::Text(it.clone())),
            Json::Array(items) => {
                let field = |item| Field { key: String::new(), value: Self::from(item) };
                Some(Kind::Array(fields(items.iter().map(field).collect())))
            }
            Json::Object(entries) => {
                let field = |(key, value): (&String, _)| Field { key: key.clone(), value: Self::from(value) };
                Some(Kind::Object(fields(entries.iter().map(field).collect())))
            }
        };
        Self { kind }
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        match value.kind {
            None => Self::Null,
            Some(Kind::Bool(it)) => it.into(),
            Some(Kind::Integer(it)) => it.into(),
            Some(Kind::Large(it)) => it.into(),
            Some(Kind::Float(it)) => Number::from_f64(it).map_or(Self::Null, Self::Number),
            Some(Kind::Text(it)) => it.into(),
            Some(Kind::Array(it)) => it.fields.into_iter().map(|field| Self::from(field.value)).collect(),
            Some(Kind::Object(it)) => {
                it.fields.into_iter().map(|field| (field.key, Self::from(field.value))).collect()
            }
        }
    }
}

impl Value {
    fn field(&self, key: &str) -> Option<&Kind> {
        let Some(Kind::Object(object)) = &self.kind else { return None };
        object.fields.iter().find(|field| field.key == key)?.value.kind.as_ref()
    }

    fn num(&self) -> Option<i64> {
        if let Some(Kind::Integer(number)) = self.field("num") { Some(*number) } else { None }
    }
}

impl Document for Value {
    fn indexed(&self) -> Indexed {
        let text = if let Some(Kind::Text(text)) = self.field("str1") { Some(text.clone()) } else { None };
        Indexed { text, number: self.num() }
    }
}

type Shared = Arc<Mutex<Kept<Value>>>;

#[derive(Clone, Default)]
struct Store(Shared);

impl NamedService for Store {
    const NAME: &'static str = "rivals.Store";
}

const PUT: &str = "/rivals.Store/Put";
const FIND: &str = "/rivals.Store/Find";
const WORD: &str = "/rivals.Store/Word";

struct Putting(Shared);

impl UnaryService<Put> for Putting {
    type Response = Word;
    type Future = Ready<Result<Response<Word>, Status>>;

    fn call(&mut self, request: Request<Put>) -> Self::Future {
        let Put { key, document } = request.into_inner();
        let replaced = self.0.lock().expect("no panic").put(key, document);
        ready(Ok(Response::new(Word { word: replaced.into() })))
    }
}

struct Finding(Shared);

impl UnaryService<Find> for Finding {
    type Response = Found;
    type Future = Ready<Result<Response<Found>, Status>>;

    fn call(&mut self, request: Request<Find>) -> Self::Future {
        let Find { text, from, to } = request.into_inner();
        let query = text.map_or(Query::Between(from, to), Query::Text);
        let kept = self.0.lock().expect("no panic");
        let found =
            kept.find(&query).into_iter().map(|(key, document)| Put { key, document: document.clone() });
        ready(Ok(Response::new(Found { found: found.collect() })))
    }
}

struct Echo;

impl UnaryService<Word> for Echo {
    type Response = Word;
    type Future = Ready<Result<Response<Word>, Status>>;

    fn call(&mut self, request: Request<Word>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl Service<http::Request<tonic::body::Body>> for Store {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let store = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match request.uri().path() {
                PUT => tonic::server::Grpc::new(ProstCodec::default()).unary(Putting(store), request).await,
                FIND => tonic::server::Grpc::new(ProstCodec::default()).unary(Finding(store), request).await,
                _ => tonic::server::Grpc::new(ProstCodec::default()).unary(Echo, request).await,
            })
        })
    }
}

fn runtime() -> Result<Runtime, BoxError> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Serves until the process ends.
pub fn serve(path: &Path, be_ready: impl FnOnce()) -> Result<(), BoxError> {
    runtime()?.block_on(async {
        let incoming = UnixListenerStream::new(UnixListener::bind(path)?);
        be_ready();
        Ok(Server::builder().add_service(Store::default()).serve_with_incoming(incoming).await?)
    })
}

/// A connection to the store.
pub struct Client {
    runtime: Runtime,
    grpc: tonic::client::Grpc<Channel>,
}

impl Client {
    pub fn open(path: &Path) -> Result<Self, BoxError> {
        let runtime = runtime()?;
        let channel = runtime.block_on(Endpoint::try_from(format!("unix:{}", path.display()))?.connect())?;
        let grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self { runtime, grpc })
    }

    fn ask<A, T>(&mut self, path: &'static str, asked: A) -> Result<T, BoxError>
    where
        A: Message + Send + Sync + 'static,
        T: Message + Default + Send + Sync + 'static,
    {
        let Self { runtime, grpc } = self;
        runtime.block_on(async {
            grpc.ready().await?;
            let path = PathAndQuery::from_static(path);
            let told = grpc.unary(Request::new(asked), path, ProstCodec::<A, T>::default()).await?;
            Ok(told.into_inner())
        })
    }

    /// A call with a word alone.
    pub fn word(&mut self, word: u64) -> Result<u64, BoxError> {
        Ok(self.ask::<Word, Word>(WORD, Word { word })?.word)
    }
}

impl Course for Client {
    fn put(&mut self, key: u64, document: &Json) -> Result<(), BoxError> {
        self.ask::<Put, Word>(PUT, Put { key, document: document.into() })?;
        Ok(())
    }

    fn find(&mut self, query: &Query) -> Result<Timed, BoxError> {
        let before = Instant::now();
        let asked = match query {
            Query::Text(text) => Find { text: Some(text.clone()), from: 0, to: 0 },
            Query::Between(from, to) => Find { text: None, from: *from, to: *to },
        };
        let Found { found } = self.ask(FIND, asked)?;
        let sum = found.iter().filter_map(|it| it.document.num()).sum();
        let took = before.elapsed();
        let documents = found.into_iter().map(|it| (it.key, it.document.into())).collect();
        Ok(Timed { took, sum, documents })
    }
}

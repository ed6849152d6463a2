//! The store over JSON on a Unix socket: each message is its length in four bytes, and then JSON.

use crate::course::{BoxError, Course, Timed};
use crate::kept::{Document, Kept};
use crate::query::{Indexed, Query};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

#[derive(Deserialize, Serialize)]
enum Asked<D> {
    Put(u64, D),
    Text(String),
    Between(i64, i64),
    Word(u64),
}

#[derive(Deserialize, Serialize)]
enum Told<D> {
    Word(u64),
    Found(Vec<(u64, D)>),
}

impl Document for Json {
    fn indexed(&self) -> Indexed {
        let text = self.get("str1").and_then(Self::as_str).map(str::to_owned);
        Indexed { text, number: self.get("num").and_then(Self::as_i64) }
    }
}

/// One end of a connection. Its buffers are used again.
struct End {
    input: BufReader<UnixStream>,
    output: UnixStream,
    heard: Vec<u8>,
    said: Vec<u8>,
}

impl End {
    fn new(socket: UnixStream) -> Result<Self, BoxError> {
        let input = BufReader::with_capacity(1 << 18, socket.try_clone()?);
        Ok(Self { input, output: socket, heard: Vec::new(), said: Vec::new() })
    }

    fn say(&mut self, message: &impl Serialize) -> Result<(), BoxError> {
        self.said.clear();
        self.said.extend_from_slice(&[0; 4]);
        serde_json::to_writer(&mut self.said, message)?;
        let length = u32::try_from(self.said.len() - 4)?;
        self.said[..4].copy_from_slice(&length.to_le_bytes());
        Ok(self.output.write_all(&self.said)?)
    }

    /// `None`: the other end has closed.
    fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BoxError> {
        let mut length = [0; 4];
        if self.input.read_exact(&mut length).is_err() {
            return Ok(None);
        }
        self.heard.resize(usize::try_from(u32::from_le_bytes(length))?, 0);
        self.input.read_exact(&mut self.heard)?;
        Ok(Some(serde_json::from_slice(&self.heard)?))
    }
}

/// Serves one client.
pub fn serve(path: &Path, ready: impl FnOnce()) -> Result<(), BoxError> {
    let listener = UnixListener::bind(path)?;
    ready();
    let mut end = End::new(listener.accept()?.0)?;
    let mut kept = Kept::<Json>::default();
    while let Some(asked) = end.hear::<Asked<Json>>()? {
        let query = match asked {
            Asked::Put(key, document) => {
                let replaced = kept.put(key, document);
                end.say(&Told::<Json>::Word(replaced.into()))?;
                continue;
            }
            Asked::Word(word) => {
                end.say(&Told::<Json>::Word(word))?;
                continue;
            }
            Asked::Text(text) => Query::Text(text),
            Asked::Between(from, to) => Query::Between(from, to),
        };
        end.say(&Told::Found(kept.find(&query)))?;
    }
    Ok(())
}

/// A connection to the store.
pub struct Client(End);

impl Client {
    pub fn open(path: &Path) -> Result<Self, BoxError> {
        Ok(Self(End::new(UnixStream::connect(path)?)?))
    }

    fn ask(&mut self, asked: &Asked<&Json>) -> Result<Told<Json>, BoxError> {
        self.0.say(asked)?;
        self.0.hear()?.ok_or_else(|| "the server has closed".into())
    }

    /// A call with a word alone.
    pub fn word(&mut self, word: u64) -> Result<u64, BoxError> {
        match self.ask(&Asked::Word(word))? {
            Told::Word(word) => Ok(word),
            Told::Found(_) => Err("another answer".into()),
        }
    }
}

impl Course for Client {
    fn put(&mut self, key: u64, document: &Json) -> Result<(), BoxError> {
        match self.ask(&Asked::Put(key, document))? {
            Told::Word(_) => Ok(()),
            Told::Found(_) => Err("another answer".into()),
        }
    }

    fn find(&mut self, query: &Query) -> Result<Timed, BoxError> {
        let before = Instant::now();
        let told = match query {
            Query::Text(text) => self.ask(&Asked::Text(text.clone()))?,
            Query::Between(from, to) => self.ask(&Asked::Between(*from, *to))?,
        };
        let Told::Found(documents) = told else { return Err("another answer".into()) };
        let sum = documents.iter().filter_map(|(_, document)| document.get("num")?.as_i64()).sum();
        Ok(Timed { took: before.elapsed(), sum, documents })
    }
}

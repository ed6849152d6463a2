//! Requests to etcd's JSON gateway and its answers: the few parts of etcd's API that a directory needs.
//!
//! The gateway encodes keys and values in base64, and 64-bit numbers as text. Answers omit fields with their default
//! value.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// A revision of etcd's store, or the number of a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Number(pub(super) i64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl de::Visitor<'_> for Reader {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of 64 bits, as a number or as a text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
                i64::try_from(number).map(Number).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A key or a value.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map(Self).map_err(de::Error::custom)
    }
}

/// One key, or all keys from one key up to another, without that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Keys {
    key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    range_end: Option<Bytes>,
}

impl Keys {
    pub(super) fn one(key: &str) -> Self {
        Self { key: Bytes(key.into()), range_end: None }
    }

    /// Returns the keys from `first` up to `end`, without `end`.
    pub(super) fn from(first: &str, end: &str) -> Self {
        Self { key: Bytes(first.into()), range_end: Some(Bytes(end.into())) }
    }

    /// Returns all keys that begin with this folder and a slash.
    pub(super) fn below(folder: &str) -> Self {
        // `0` is the byte after the slash.
        Self::from(&format!("{folder}/"), &format!("{folder}0"))
    }

    /// Returns all keys below a folder except one.
    pub(super) fn below_but(folder: &str, one: &str) -> [Self; 2] {
        let before = Self::from(&format!("{folder}/"), one);
        // No key sorts between a key and the same key with a zero byte after it.
        [before, Self::from(&format!("{one}\0"), &format!("{folder}0"))]
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Read {
    #[serde(flatten)]
    pub(super) keys: Keys,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Number>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    keys_only: bool,
}

impl Read {
    pub(super) const fn all(keys: Keys) -> Self {
        Self { keys, limit: None, keys_only: false }
    }

    pub(super) const fn keys_only(keys: Keys) -> Self {
        Self { keys, limit: None, keys_only: true }
    }

    pub(super) const fn first_keys(keys: Keys, limit: i64) -> Self {
        Self { keys, limit: Some(Number(limit)), keys_only: true }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Put {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    /// The lease that ends the key; 0 if no lease does.
    pub(super) lease: Number,
}

#[derive(Clone, Debug, Serialize)]
pub(super) enum RequestOp {
    #[serde(rename = "request_range")]
    Read(Read),
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    Delete(Keys),
    #[serde(rename = "request_txn")]
    Within(Transaction),
}

impl RequestOp {
    pub(super) const fn read(keys: Keys) -> Self {
        Self::Read(Read::all(keys))
    }

    pub(super) fn put(key: &str, value: impl Into<Vec<u8>>, lease: Number) -> Self {
        Self::Put(Put { key: Bytes(key.into()), value: Bytes(value.into()), lease })
    }

    pub(super) fn delete(key: &str) -> Self {
        Self::Delete(Keys::one(key))
    }
}

/// A condition of a transaction. A condition on several keys holds if it holds for each; a condition on no key holds if
/// it holds for revision 0.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compare {
    #[serde(flatten)]
    keys: Keys,
    target: &'static str,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_revision: Option<Number>,
}

impl Compare {
    const fn create(keys: Keys, result: &'static str) -> Self {
        Self { keys, target: "CREATE", result, create_revision: Some(Number(0)), mod_revision: None }
    }

    const fn changed(keys: Keys, result: &'static str, revision: i64) -> Self {
        Self { keys, target: "MOD", result, create_revision: None, mod_revision: Some(Number(revision)) }
    }

    /// Returns the condition that there is no such key.
    pub(super) const fn is_absent(keys: Keys) -> Self {
        Self::create(keys, "EQUAL")
    }

    /// Returns the condition that there is such a key.
    pub(super) const fn is_there(keys: Keys) -> Self {
        Self::create(keys, "GREATER")
    }

    /// Returns the condition that none of the keys was put since this revision of the store. Some may have been
    /// deleted.
    pub(super) const fn none_put_since(keys: Keys, revision: Number) -> Self {
        Self::changed(keys, "LESS", revision.0 + 1)
    }

    /// Returns the condition that the key still has the value that it was given at this revision.
    pub(super) const fn is_still(key: Keys, mod_revision: Number) -> Self {
        Self::changed(key, "EQUAL", mod_revision.0)
    }
}

#[derive(Clone, Default, Debug, Serialize)]
pub(super) struct Transaction {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<RequestOp>,
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Debug, Serialize)]
pub(super) struct Grant {
    #[serde(rename = "TTL")]
    pub(super) seconds: Number,
}

#[derive(Debug, Serialize)]
pub(super) struct OfLease {
    #[serde(rename = "ID")]
    pub(super) id: Number,
}

#[derive(Debug, Serialize)]
pub(super) struct WatchRequest {
    pub(super) create_request: WatchFrom,
}

#[derive(Debug, Serialize)]
pub(super) struct WatchFrom {
    #[serde(flatten)]
    pub(super) keys: Keys,
    pub(super) start_revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: Number,
}

#[derive(Debug, Deserialize)]
pub(super) struct KeyValue {
    pub(super) key: Bytes,
    #[serde(default)]
    pub(super) value: Bytes,
    pub(super) create_revision: Number,
    pub(super) mod_revision: Number,
    #[serde(default)]
    pub(super) lease: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReadAnswer {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResponseOp {
    pub(super) response_range: ReadAnswer,
    pub(super) response_txn: Box<Answer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseAnswer {
    #[serde(rename = "ID")]
    pub(super) id: Number,
    #[serde(rename = "TTL")]
    pub(super) seconds: Number,
}

/// The envelope of an answer with several parts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part<T> {
    Result(T),
    Error(Complaint),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchAnswer {
    pub(super) canceled: bool,
    pub(super) events: Vec<de::IgnoredAny>,
}

/// A refusal by etcd.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Complaint {
    /// A gRPC status.
    #[serde(alias = "grpc_code")]
    pub(super) code: u32,
    pub(super) message: String,
}

//! Descriptions of items for `lru_crawler`.

use super::command::Key;
use super::keys::{Percent, Spelling, is_word, write_key};
use std::io::Write;

/// Form of an item's description in a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpForm {
    /// `metadump`: the key and the properties of the item.
    Meta,
    /// `mgdump`: an `mg` command that requests the item.
    Get,
}

/// A part of a dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Describe {
    /// The keys. There may be none.
    pub keys: Vec<Key>,
    /// Form of the descriptions.
    pub form: DumpForm,
    /// These are the last keys of the dump.
    pub ends: bool,
}

/// Description of an item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// The key.
    pub key: Key,
    /// Expiry time in seconds since 1970. `None`: the item does not expire.
    pub expires: Option<u32>,
    /// Time of the last read or store, in seconds since 1970.
    pub used: u32,
    /// The unique number.
    pub cas: u64,
    /// A client has read the item since it was stored.
    pub hit: bool,
    /// The number of its class.
    pub class: usize,
    /// Bytes that the item takes.
    pub takes: u64,
}

impl Described {
    pub(super) fn encode(&self, form: DumpForm, out: &mut Vec<u8>) {
        let Self { expires, used, cas, class, takes, .. } = self;
        match form {
            DumpForm::Meta => {
                let expires = expires.map_or(-1, i64::from);
                let (key, fetched) = (Percent(&self.key), if self.hit { "yes" } else { "no" });
                // A write to a vector cannot fail. Memcached ends these lines with a line feed alone.
                let _ = writeln!(
                    out,
                    "key={key} exp={expires} la={used} cas={cas} fetch={fetched} cls={class} size={takes}"
                );
            }
            DumpForm::Get => {
                let spelling = if is_word(&self.key) { Spelling::Plain } else { Spelling::Base64 };
                out.extend_from_slice(b"mg ");
                write_key(out, &self.key, spelling);
                out.extend_from_slice(if spelling == Spelling::Base64 { b" b\r\n" } else { b"\r\n" });
            }
        }
    }
}

//! Descriptions of items, as `lru_crawler` shows them.

use super::command::Key;
use super::keys::{Percent, Spelling, is_word, write_key};
use std::io::Write;

/// What a dump has of each item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpForm {
    /// `metadump`: the key and what there is to know.
    Meta,
    /// `mgdump`: an `mg` command that asks for it.
    Get,
}

/// A part of a dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Describe {
    /// Which keys. It may be none.
    pub keys: Vec<Key>,
    /// What of them.
    pub form: DumpForm,
    /// These are the last ones.
    pub ends: bool,
}

/// What there is to know of an item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// The key.
    pub key: Key,
    /// When it goes, in seconds since 1970. `None`: it stays.
    pub expires: Option<u32>,
    /// When it was last asked for or stored, in seconds since 1970.
    pub used: u32,
    /// The unique number.
    pub cas: u64,
    /// It was asked for since it was stored.
    pub hit: bool,
    /// The number of its class.
    pub class: usize,
    /// Bytes that it takes.
    pub takes: u64,
}

impl Described {
    pub(super) fn encode(&self, form: DumpForm, out: &mut Vec<u8>) {
        let Self { expires, used, cas, class, takes, .. } = self;
        match form {
            DumpForm::Meta => {
                let expires = expires.map_or(-1, i64::from);
                let (key, fetched) = (Percent(&self.key), if self.hit { "yes" } else { "no" });
                // A vector takes all that is written to it. Memcached ends these lines so.
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

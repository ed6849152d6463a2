//! Stored and sent form of the directory's data. Bytes that are read come from other processes: they are parsed into a
//! value here, or into an error with the reason.

use crate::addresses::HeapRange;
use crate::entry::{Address, Target, Who};
use portcullis_protocol::TenantName;
use serde::{Deserialize, Serialize};

/// Stored form of a [`Target`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoredTarget {
    Channel {
        address: String,
    },
    Node {
        addresses: Vec<String>,
        /// An earlier version has stored none.
        #[serde(default)]
        memory_bytes: u64,
    },
    Heap {
        address: u64,
        bytes: u64,
    },
    Object {
        node: String,
        object: String,
    },
}

/// Stored form of a [`Who`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoredWho {
    Everybody,
    Tenants(Vec<String>),
}

impl StoredTarget {
    pub fn of(target: &Target) -> Self {
        match target {
            Target::Channel { address } => Self::Channel { address: address.to_string() },
            Target::Node { addresses, memory_bytes } => Self::Node {
                addresses: addresses.iter().map(Address::to_string).collect(),
                memory_bytes: *memory_bytes,
            },
            Target::Heap { range } => Self::Heap { address: range.address, bytes: range.bytes },
            Target::Object { node, object } => {
                Self::Object { node: node.to_string(), object: object.to_string() }
            }
        }
    }

    pub fn read(self) -> Result<Target, String> {
        let address = |text: &str| Address::new(text).map_err(|error| error.to_string());
        Ok(match self {
            Self::Channel { address: text } => Target::Channel { address: address(&text)? },
            Self::Node { addresses, memory_bytes } => {
                let read = addresses.iter().map(|text| address(text));
                Target::Node { addresses: read.collect::<Result<_, _>>()?, memory_bytes }
            }
            Self::Heap { address, bytes } => Target::Heap { range: HeapRange { address, bytes } },
            Self::Object { node, object } => {
                let object = object
                    .parse()
                    .map_err(|error: portcullis_protocol::UnknownObjectRef| error.to_string())?;
                Target::Object { node: address(&node)?, object }
            }
        })
    }
}

impl StoredWho {
    pub fn of(who: &Who) -> Self {
        match who {
            Who::Everybody => Self::Everybody,
            Who::Tenants(tenants) => Self::Tenants(tenants.iter().map(TenantName::to_string).collect()),
        }
    }

    pub fn read(self) -> Result<Who, String> {
        match self {
            Self::Everybody => Ok(Who::Everybody),
            Self::Tenants(tenants) => {
                let tenants =
                    tenants.iter().map(|name| TenantName::new(name).map_err(|error| error.to_string()));
                Who::tenants(tenants.collect::<Result<Vec<_>, _>>()?).map_err(|error| error.to_string())
            }
        }
    }
}

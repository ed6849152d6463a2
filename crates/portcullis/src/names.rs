//! Nodes by name: a session looks up `name:TENANT/NODE` in the cluster's directory.
//!
//! A name is looked up once, when a session is opened. Connections that the session opens later use the same address. A
//! name stands for addresses and never for another name.

use crate::{Address, UnknownAddress};
pub use portcullis_directory::{
    Access, Change, Directory, DirectoryAddress, DirectoryError, Embedded, EntryError, Holding, Name,
    NameError, OpenOptions, Registration, ScopedAddress, Server as DirectoryServer, Space, Target, Trust,
};
use portcullis_directory::{Entry, Found, NotHere, Watch};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The environment variable with the address of the directory, for example `etcd:http://127.0.0.1:2379`.
pub const DIRECTORY_VARIABLE: &str = "PORTCULLIS_DIRECTORY";
/// The environment variable that names a folder with `ca.pem`, `client.pem` and `client-key.pem`, for a directory at `https://`.
pub const CERTIFICATES_VARIABLE: &str = "PORTCULLIS_DIRECTORY_CERTIFICATES";

/// Prefix of a name in a text that may also be a node's address.
const NAME: &str = "name:";

/// The directory in which a session looks up the names of nodes.
#[derive(Clone, Debug, Default)]
pub enum Names {
    /// The directory that the environment names: [`DIRECTORY_VARIABLE`], [`CERTIFICATES_VARIABLE`].
    #[default]
    OfEnvironment,
    /// The directory at an address, opened with these options.
    At(DirectoryAddress, OpenOptions),
    /// This directory.
    In(Arc<dyn Directory>),
}

/// The reason why no node was found by its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The caller's mistake: the text is no name.
    #[error("{text:?} is not the name of a node: {source}")]
    Name {
        /// The text.
        text: String,
        /// The reason why it is no name.
        source: NameError,
    },
    /// The caller's mistake: neither the environment nor the options name a directory.
    #[error(
        "name:{0} cannot be looked up, because the directory's address is not set: set {DIRECTORY_VARIABLE}, \
         for example to etcd:http://127.0.0.1:2379, or SessionOptions::names"
    )]
    NoDirectory(Name),
    /// The directory cannot be reached, or has no such name for this tenant.
    #[error("name:{name}: {source}{}", advice(.source, .name))]
    Directory {
        /// The name.
        name: Name,
        /// The error of the directory.
        source: DirectoryError,
    },
    /// The caller's mistake: the name stands for something other than a node.
    #[error("name:{name} is {kind}, not a memory node")]
    AnotherKind {
        /// The name.
        name: Name,
        /// The kind of thing that the name stands for.
        kind: &'static str,
    },
    /// None of the node's addresses leads to it from here.
    #[error("name:{name} is registered, and none of its addresses leads to a node from here{}", listed(.tried))]
    Nowhere {
        /// The name.
        name: Name,
        /// Each address, and the reason why it does not lead to the node.
        tried: Vec<(String, String)>,
    },
}

impl Coded for FindError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Name { source, .. } => source.code(),
            Self::NoDirectory(_) => ErrorCode::NoDirectory,
            Self::Directory { source, .. } => source.code(),
            Self::AnotherKind { .. } => ErrorCode::NameOfAnotherKind,
            Self::Nowhere { .. } => ErrorCode::NameLeadsNowhere,
        }
    }
}

impl FindError {
    /// Returns whether the caller must change the call. Otherwise the cluster must be repaired.
    #[must_use]
    pub const fn is_callers(&self) -> bool {
        match self {
            Self::Name { .. } | Self::NoDirectory(_) | Self::AnotherKind { .. } => true,
            Self::Directory { source, .. } => {
                matches!(source, DirectoryError::BadEndpoint { .. } | DirectoryError::WithoutEtcd { .. })
            }
            Self::Nowhere { .. } => false,
        }
    }
}

fn advice(source: &DirectoryError, name: &Name) -> String {
    match source {
        DirectoryError::NoSuchName(_) => {
            format!(
                ". Its node registers it with `portcullis serve --directory ADDRESS --name {name}`, and it ends some \
                     seconds after the node"
            )
        }
        DirectoryError::Away { .. } => {
            format!(". A client that has the node's address needs no directory: see {DIRECTORY_VARIABLE}")
        }
        _ => String::new(),
    }
}

fn listed(tried: &[(String, String)]) -> String {
    tried.iter().fold(String::new(), |mut text, (address, why)| {
        let _ = write!(text, "\n  {address}: {why}");
        text
    })
}

/// Returns the name in a text that may also be a node's address. `None`: the text does not begin with `name:`.
pub(crate) fn name_in(text: &str) -> Option<Result<Name, FindError>> {
    let name = text.strip_prefix(NAME)?;
    let error = |source| FindError::Name { text: text.to_owned(), source };
    Some(Name::new(name).map_err(error))
}

/// The addresses found under a name: those that may lead to the node from here, the nearest first, and those that do
/// not, with the reasons.
#[derive(Debug)]
pub(crate) struct Candidates {
    pub addresses: Vec<Address>,
    pub left_out: Vec<(String, String)>,
}

impl Names {
    fn open(&self, name: &Name) -> Result<Arc<dyn Directory>, FindError> {
        let of_name = |source| FindError::Directory { name: name.clone(), source };
        match self {
            Self::In(directory) => Ok(Arc::clone(directory)),
            Self::At(address, options) => address.open(options).map_err(of_name),
            Self::OfEnvironment => {
                let text = std::env::var(DIRECTORY_VARIABLE).unwrap_or_default();
                if text.is_empty() {
                    return Err(FindError::NoDirectory(name.clone()));
                }
                let address: DirectoryAddress = text.parse().map_err(of_name)?;
                let folder = std::env::var_os(CERTIFICATES_VARIABLE).filter(|folder| !folder.is_empty());
                let options = open_options(folder.as_deref().map(Path::new)).map_err(of_name)?;
                address.open(&options).map_err(of_name)
            }
        }
    }

    /// Watches the nodes whose names are below `above`, as the tenant of this process's user sees them.
    ///
    /// # Errors
    /// No directory is set, or it is away.
    pub fn watch_nodes(&self, above: &Name) -> Result<NodesBelow, FindError> {
        let watch = self.open(above)?.watch_list(&own_tenant(), above);
        let watch = watch.map_err(|source| FindError::Directory { name: above.clone(), source })?;
        Ok(NodesBelow { watch })
    }

    /// Looks a node's name up, for the tenant of this process's user.
    pub(crate) fn find(&self, name: &Name) -> Result<Candidates, FindError> {
        let directory = self.open(name)?;
        let found = directory.look_up(&own_tenant(), name);
        let found = found.map_err(|source| FindError::Directory { name: name.clone(), source })?;
        let Target::Node { addresses, .. } = found.target else {
            return Err(FindError::AnotherKind { name: name.clone(), kind: found.target.kind() });
        };
        let (mut here, mut left_out) = (Vec::new(), Vec::new());
        for registered in &addresses {
            match usable(registered) {
                Ok(address) => here.push(address),
                Err(why) => left_out.push((registered.to_string(), why)),
            }
        }
        here.sort_by_key(distance);
        Ok(Candidates { addresses: here, left_out })
    }
}

/// A watch on the nodes below a name.
#[derive(Debug)]
pub struct NodesBelow {
    watch: Box<dyn Watch<BTreeMap<Name, Found>>>,
}

impl NodesBelow {
    /// Returns the nodes that were seen last, with the bytes of memory that each lends. 0: a node of an earlier version,
    /// which has not said how many.
    #[must_use]
    pub fn seen(&self) -> BTreeMap<Name, u64> {
        nodes_of(self.watch.seen())
    }

    /// Waits until something has changed below the name, for at most this time, and returns the nodes. `None`: nothing has
    /// changed.
    ///
    /// # Errors
    /// The directory is away. No change is lost: the next call continues from the nodes that were seen last.
    pub fn next(&mut self, at_most: Duration) -> Result<Option<BTreeMap<Name, u64>>, DirectoryError> {
        Ok(self.watch.next(at_most)?.as_ref().map(nodes_of))
    }
}

fn nodes_of(entries: &BTreeMap<Name, Found>) -> BTreeMap<Name, u64> {
    let node = |(name, found): (&Name, &Found)| match found.target {
        Target::Node { memory_bytes, .. } => Some((name.clone(), memory_bytes)),
        _ => None,
    };
    entries.iter().filter_map(node).collect()
}

/// Returns the options for opening a directory with the certificates in this folder, if there is one.
///
/// # Errors
/// The certificates cannot be used.
#[cfg(feature = "etcd")]
pub fn open_options(certificates: Option<&Path>) -> Result<OpenOptions, DirectoryError> {
    let identity = certificates.map(portcullis_directory::etcd::Identity::load).transpose()?;
    Ok(OpenOptions { identity, ..OpenOptions::default() })
}

/// Returns the options for opening a directory with the certificates in this folder, if there is one.
///
/// # Errors
/// None: this program was built without directories that have certificates.
#[cfg(not(feature = "etcd"))]
pub fn open_options(_: Option<&Path>) -> Result<OpenOptions, DirectoryError> {
    Ok(OpenOptions::default())
}

/// The tenant of this process's user if the user names no other: the name that nodes give to it.
fn own_tenant() -> TenantName {
    let user = rustix::process::geteuid().as_raw();
    TenantName::new(&format!("uid:{user}")).expect("a user is a tenant")
}

/// Returns the address if it leads from here to the process that has registered it. The address is untrusted: another
/// process has written it.
fn usable(registered: &portcullis_directory::Address) -> Result<Address, String> {
    let scoped = ScopedAddress::parse(registered).ok_or("it has a scope that this program does not know")?;
    scoped.check().map_err(|error: NotHere| error.to_string())?;
    scoped.text().parse().map_err(|error: UnknownAddress| error.to_string())
}

/// The address's rank by distance. Addresses with a lower rank are tried first.
fn distance(address: &Address) -> u8 {
    match address {
        Address::Shm(_) => 0,
        #[cfg(feature = "rdma")]
        Address::Rdma(_) => 1,
        #[cfg(feature = "udp")]
        Address::Udp(_) => 2,
    }
}

/// Makes the entry that a [`Registration`] keeps for a node: the node's name, its tenant, its addresses, and
/// the memory that it lends. Every tenant may look it up, since the node itself decides which clients it accepts.
///
/// # Errors
/// The first part of the name is no tenant, or a directory does not accept the addresses.
pub fn node_holding(
    name: Name,
    addresses: &[ScopedAddress],
    memory_bytes: u64,
    time_to_live: Duration,
) -> Result<Holding, EntryError> {
    let addresses = addresses.iter().map(ScopedAddress::to_address).collect::<Result<Vec<_>, _>>()?;
    let entry = Entry { target: Target::Node { addresses, memory_bytes }, access: Access::public() };
    entry.check()?;
    let tenant = name.tenant();
    Ok(Holding { tenant, time_to_live, entry: Some((name, entry)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(target: Target) -> Result<Candidates, FindError> {
        let (directory, name) = (Embedded::new(Space::usual()), Name::new("bank/n1").expect("a name"));
        let lease = directory.open_lease(&name.tenant(), Duration::from_secs(60)).expect("room");
        directory
            .register(&lease, &name, &Entry { target, access: Access::public() })
            .expect("the name is free");
        Names::In(Arc::new(directory)).find(&name)
    }

    fn node(addresses: &[&str]) -> Target {
        let address = |text: &&str| portcullis_directory::Address::new(text).expect("an address");
        Target::Node { addresses: addresses.iter().map(address).collect(), memory_bytes: 1 << 30 }
    }

    #[test]
    fn what_others_have_registered_is_an_address_or_left_out() {
        let wrong = ["name:bank/n2", "tcp:a:1", "shm:/a", "udp:127.0.0.1:1?boot=another", "udp:a:1?boot="];
        let Candidates { addresses, left_out } = find(node(&wrong)).expect("it is there");
        assert!(addresses.is_empty(), "{addresses:?}");
        assert_eq!(left_out.iter().map(|(address, _)| &**address).collect::<Vec<_>>(), wrong);
        let error = FindError::Nowhere { name: Name::new("bank/n1").expect("a name"), tried: left_out };
        assert_eq!(error.code(), ErrorCode::NameLeadsNowhere);
        assert!(
            error.to_string().contains("\n  name:bank/n2: \"name:bank/n2\" is not a node's address"),
            "{error}"
        );
        assert!(error.to_string().contains("another machine"), "{error}");
    }

    #[cfg(all(feature = "rdma", feature = "udp"))]
    #[test]
    fn the_nearest_comes_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let socket = ScopedAddress::of_socket(&path).expect("it is there").to_string();
        let there = node(&["udp:b:1", "udp:a:1", "rdma:a:1", &socket]);
        let found = find(there).expect("it is there").addresses;
        let near = [format!("shm:{}", path.display()), "rdma:a:1".into(), "udp:b:1".into(), "udp:a:1".into()];
        assert_eq!(found.iter().map(Address::to_string).collect::<Vec<_>>(), near);
    }

    #[test]
    fn a_name_of_something_else_is_no_node() {
        let address = portcullis_directory::Address::new("shm:/a").expect("an address");
        let told = find(Target::Channel { address }).expect_err("it is a channel");
        assert_eq!((told.code(), told.is_callers()), (ErrorCode::NameOfAnotherKind, true));
    }

    #[test]
    fn a_text_is_a_name_only_with_its_prefix() {
        assert!(name_in("shm:/a").is_none());
        assert_eq!(name_in("name:a/b").expect("one").expect("a name").as_str(), "a/b");
        for wrong in ["name:", "name:a//b", "name:a b", "name:../b"] {
            let told = name_in(wrong).expect("one").expect_err(wrong);
            assert!(told.is_callers() && told.to_string().contains("is not the name of a node"), "{told}");
        }
    }
}

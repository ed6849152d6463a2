//! Addresses of directories, as people write them: `etcd:http://127.0.0.1:2379`, `unix:/run/portcullis.directory`.

use crate::addresses::Space;
use crate::directory::Directory;
use crate::error::DirectoryError;
#[cfg(feature = "etcd")]
use crate::etcd::{Etcd, EtcdOptions, Identity};
use crate::socket::Remote;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The address of a directory. A parsed address can be opened, if the directory is there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DirectoryAddress {
    /// `etcd:URL,URL…`: a directory in the etcd with these members.
    #[cfg(feature = "etcd")]
    Etcd(String),
    /// `unix:PATH`: a directory that a process of this machine serves at that socket.
    Unix(PathBuf),
}

/// Options for opening a directory.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Maximum duration of a call.
    pub patience: Duration,
    /// The addresses that it allocates to heaps. All users of the directory must give the same.
    pub space: Space,
    /// The expected identity of etcd at `https://` addresses, and the client's own certificate.
    #[cfg(feature = "etcd")]
    pub identity: Option<Identity>,
}

impl Default for OpenOptions {
    /// Returns five seconds, the usual space, and no identity.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(5),
            space: Space::usual(),
            #[cfg(feature = "etcd")]
            identity: None,
        }
    }
}

/// Prefix of the address of a directory at a Unix socket.
const UNIX: &str = "unix:";
/// Prefix of the address of a directory in etcd.
const ETCD: &str = "etcd:";

impl FromStr for DirectoryAddress {
    type Err = DirectoryError;

    fn from_str(text: &str) -> Result<Self, DirectoryError> {
        if let Some(endpoints) = text.strip_prefix(ETCD) {
            return in_etcd(text, endpoints);
        }
        if let Some(path) = text.strip_prefix(UNIX).filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let why = "give etcd:http://HOST:PORT or unix:PATH";
        Err(DirectoryError::BadEndpoint { text: text.to_owned(), why })
    }
}

#[cfg(feature = "etcd")]
fn in_etcd(_: &str, endpoints: &str) -> Result<DirectoryAddress, DirectoryError> {
    EtcdOptions::new(endpoints).check()?;
    Ok(DirectoryAddress::Etcd(endpoints.to_owned()))
}

#[cfg(not(feature = "etcd"))]
fn in_etcd(text: &str, _: &str) -> Result<DirectoryAddress, DirectoryError> {
    Err(DirectoryError::WithoutEtcd { text: text.to_owned() })
}

impl fmt::Display for DirectoryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(endpoints) => write!(f, "{ETCD}{endpoints}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl DirectoryAddress {
    /// Opens the directory at this address.
    ///
    /// # Errors
    /// The options are not valid, the directory is away, or it allocates other addresses.
    pub fn open(&self, options: &OpenOptions) -> Result<Arc<dyn Directory>, DirectoryError> {
        match self {
            Self::Unix(path) => Ok(Arc::new(Remote::connect(path, options.patience, options.space)?)),
            #[cfg(feature = "etcd")]
            Self::Etcd(endpoints) => {
                let OpenOptions { patience, space, identity } = options.clone();
                let options = EtcdOptions { patience, identity, ..EtcdOptions::new(endpoints) };
                Ok(Arc::new(Etcd::connect(&options, space)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_errors::{Coded, ErrorCode};

    #[test]
    fn what_is_no_address_of_a_directory_is_told_what_is_one() {
        for text in
            ["", "etcd", "unix:", "/run/a.directory", "127.0.0.1:2379", "http://127.0.0.1:2379", "name:a/b"]
        {
            let told = text.parse::<DirectoryAddress>().expect_err(text);
            assert_eq!(told.code(), ErrorCode::UnknownAddress, "{text}");
            assert!(told.to_string().contains("etcd:http://HOST:PORT"), "{told}");
        }
    }

    #[test]
    fn a_directory_at_a_socket_that_nobody_serves_is_away() {
        let address: DirectoryAddress = "unix:/run/none/a.directory".parse().expect("an address");
        assert_eq!(address.to_string(), "unix:/run/none/a.directory");
        let told = address.open(&OpenOptions::default()).expect_err("nobody serves there");
        assert_eq!(told.code(), ErrorCode::DirectoryAway);
        assert!(told.to_string().contains("unix:/run/none/a.directory"), "{told}");
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn an_address_of_etcd_reads_back_and_is_checked_at_once() {
        let text = "etcd:http://127.0.0.1:2379,https://b.example:2379";
        assert_eq!(text.parse::<DirectoryAddress>().expect("an address").to_string(), text);
        for text in ["etcd:", "etcd:127.0.0.1:2379", "etcd:http://10.0.0.7:2379"] {
            assert_eq!(
                text.parse::<DirectoryAddress>().expect_err(text).code(),
                ErrorCode::UnknownAddress,
                "{text}"
            );
        }
    }

    #[cfg(not(feature = "etcd"))]
    #[test]
    fn an_address_of_etcd_names_the_feature_that_is_missing() {
        let told = "etcd:http://127.0.0.1:2379".parse::<DirectoryAddress>().expect_err("built without");
        assert_eq!(told.code(), ErrorCode::WithoutEtcd);
        assert!(told.to_string().contains("feature \"etcd\""), "{told}");
    }
}

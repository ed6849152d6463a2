//! The addresses of etcd, and the identities that are accepted there.

use crate::error::DirectoryError;
use portcullis_attach::identity_file::{self, Holds, Unread};
use rustls::crypto::ring;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// The members of one etcd cluster, by their addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoints(Vec<String>);

impl Endpoints {
    /// Parses a list of addresses with commas between them.
    pub(super) fn parse(text: &str) -> Result<Self, DirectoryError> {
        let addresses = text.split(',').map(|address| {
            let bad = |why| DirectoryError::BadEndpoint { text: address.to_owned(), why };
            let address = address.trim_end_matches('/');
            let uri: ureq::http::Uri =
                address.parse().map_err(|_| bad("it is not an http:// or https:// address"))?;
            let host = uri.host().ok_or_else(|| bad("it names no host"))?;
            if uri.path() != "/" && !uri.path().is_empty() {
                return Err(bad("it has a path behind the host"));
            }
            match uri.scheme_str() {
                Some("https") => Ok(address.to_owned()),
                Some("http") if is_loopback(host) => Ok(address.to_owned()),
                Some("http") => Err(bad("without TLS a directory is reached on loopback only: use https://")),
                _ => Err(bad("it is not an http:// or https:// address")),
            }
        });
        Ok(Self(addresses.collect::<Result<_, _>>()?))
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, number: usize) -> &str {
        &self.0[number]
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The expected identity of etcd at an `https://` address, and the client's own certificate. All are PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificates of the authorities that etcd's certificate may be from.
    pub authorities: Vec<u8>,
    /// The client's certificate for etcd (`--client-cert-auth`).
    pub certificate: Vec<u8>,
    /// The certificate's private key.
    pub key: Vec<u8>,
}

impl Identity {
    /// Reads the identity from three files of a folder: `ca.pem`, `client.pem` and `client-key.pem`.
    ///
    /// # Errors
    /// A file cannot be read, or other users may read the key's file.
    pub fn load(folder: &Path) -> Result<Self, DirectoryError> {
        let read = |name: &'static str, holds| {
            let mut bytes = Vec::new();
            match identity_file::read(&folder.join(name), holds, &mut bytes) {
                Ok(()) => Ok(bytes),
                Err(unread) => Err(DirectoryError::BadIdentity { what: name, why: in_words(unread) }),
            }
        };
        let key = read(KEY, Holds::PrivateKey)?;
        let authorities = read("ca.pem", Holds::Certificates)?;
        Ok(Self { authorities, certificate: read("client.pem", Holds::Certificates)?, key })
    }
}

fn in_words(unread: Unread) -> String {
    match unread {
        Unread::Exposed { mode, group } => format!(
            "others than its owner may use it (its mode is {mode:04o}, its group {group}): chmod 600, or 640 with a \
             group of this process's user"
        ),
        Unread::NoText(why) => why,
        Unread::Machine(error) => error.to_string(),
    }
}

/// The file of the client's private key.
const KEY: &str = "client-key.pem";

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Returns an HTTP client.
pub(super) fn agent(identity: Option<&Identity>) -> Result<Agent, DirectoryError> {
    let tls = TlsConfig::builder().unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()));
    let tls = match identity {
        None => tls.root_certs(RootCerts::new_with_certs(&[])),
        Some(identity) => {
            let chain = certificates("the certificate", &identity.certificate)?;
            let key = PrivateKey::from_pem(&identity.key).map_err(|error| bad("the key", &error))?;
            let authorities = certificates("the authorities' certificates", &identity.authorities)?;
            tls.root_certs(RootCerts::new_with_certs(&authorities))
                .client_cert(Some(ClientCert::new_with_certs(&chain, key)))
        }
    };
    let config = Agent::config_builder()
        .tls_config(tls.build())
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // A directory is reached directly, even if the environment sets a proxy.
        .proxy(None);
    Ok(config.build().into())
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<Certificate<'static>>, DirectoryError> {
    let mut certificates = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| bad(what, &error))? {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(DirectoryError::BadIdentity { what, why: "there is none".to_owned() }),
        false => Ok(certificates),
    }
}

fn bad(what: &'static str, error: &ureq::Error) -> DirectoryError {
    DirectoryError::BadIdentity { what, why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tls_etcd_is_reached_on_loopback_only() {
        for text in [
            "http://127.0.0.1:2379",
            "http://[::1]:2379",
            "http://localhost:2379/",
            "https://10.0.0.7:2379",
            "https://a.example:2379,https://b.example:2379",
        ] {
            assert!(Endpoints::parse(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "127.0.0.1:2379",
            "http://10.0.0.7:2379",
            "http://127.0.0.1.example:2379",
            "http://127.0.0.1:2379,http://10.0.0.7:2379",
            "ftp://127.0.0.1",
            "http://127.0.0.1:2379/v3",
            "http://",
        ] {
            let told = Endpoints::parse(text);
            assert!(matches!(told, Err(DirectoryError::BadEndpoint { .. })), "{text}: {told:?}");
        }
    }

    #[test]
    fn an_identity_has_three_files_and_a_key_that_nobody_else_reads() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, mode| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).expect("a file");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        let told = || Identity::load(folder.path()).expect_err("it is not whole").to_string();
        assert!(told().contains(KEY), "{}", told());
        write(KEY, 0o644);
        assert!(told().contains("chmod 600"), "{}", told());
        // The file has the group of this process.
        write(KEY, 0o640);
        write("ca.pem", 0o644);
        assert!(told().contains("client.pem"), "{}", told());
        write("client.pem", 0o644);
        assert_eq!(Identity::load(folder.path()).expect("it is whole").certificate, b"client.pem");
    }

    #[test]
    fn an_identity_that_is_none_is_refused() {
        let identity = Identity { authorities: Vec::new(), certificate: b"x".to_vec(), key: Vec::new() };
        assert!(matches!(agent(Some(&identity)), Err(DirectoryError::BadIdentity { .. })));
        assert_eq!(format!("{identity:?}"), "Identity { .. }");
    }
}

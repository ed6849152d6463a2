//! Certificates and keys, from the files that `portcullis certificates` writes.

use crate::identity_file::{self, Holds, Unread};
use crate::tls::subject::{Role, tenant_of, validity_of};
use crate::tls::trust::{NodesOnly, TenantsOnly, provider};
use portcullis_errors::{Coded, ErrorCode};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

/// Reason for which the files cannot be used as an identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}. `portcullis certificates` makes such files")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The machine's error.
        source: std::io::Error,
    },
    /// Users other than the owner and the members of a group of this process can use the private key.
    #[error(
        "{path} is a private key that others can use (its mode is {mode:04o}, its group {group}): `chmod 600 {path}`, or \
             `chmod 640 {path}` with a group of this process's user; if another user may have read it, make a new one with \
             `portcullis certificates`"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
        /// The file's group, by number.
        group: u32,
    },
    /// A file holds other content.
    #[error("{path} holds no {what} in PEM: {reason}. `portcullis certificates` makes such files")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Kind of content that was looked for.
        what: &'static str,
        /// Reason for the failure.
        reason: String,
    },
    /// Peers will not accept the certificate.
    #[error("peers will not accept {path}: {reason}. Make a new one with `portcullis certificates`")]
    Unacceptable {
        /// The file of the certificate, or of the authority.
        path: PathBuf,
        /// Reason for the failure.
        reason: String,
    },
    /// The private key belongs to another certificate.
    #[error("{key} is not the key of {certificate}: {reason}")]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Reason for the failure.
        reason: String,
    },
}

impl Coded for IdentityError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unreadable { .. } => ErrorCode::IdentityUnreadable,
            Self::Exposed { .. } => ErrorCode::KeyExposed,
            Self::Malformed { .. } => ErrorCode::IdentityMalformed,
            Self::Unacceptable { .. } => ErrorCode::IdentityUnacceptable,
            Self::Mismatch { .. } => ErrorCode::IdentityMismatch,
        }
    }
}

/// Period in which peers accept an identity: all of its certificates are valid then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// Beginning of the period.
    pub from: SystemTime,
    /// End of the period.
    pub until: SystemTime,
}

/// The identity of a node, and the authority whose tenants it accepts.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    pub(crate) config: Arc<ServerConfig>,
    validity: Validity,
}

impl NodeIdentity {
    /// Reads the authority's certificate, the node's (followed by intermediate ones, if any) and its private key. An
    /// identity that peers would not accept is refused here already.
    ///
    /// # Errors
    /// The error names the file that cannot be used, the reason, and the remedy.
    pub fn load(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        let papers = Papers::read(authority, certificate, key)?;
        papers.check(Role::Node)?;
        let validity = papers.validity();
        let Papers { roots, chain, key: private, .. } = papers;
        let verifier = TenantsOnly::new(roots).map_err(|error| malformed(authority, AUTHORITY, &error))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| malformed(certificate, CERTIFICATE, &error))?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(chain, private)
            .map_err(|error| mismatch(certificate, key, &error))?;
        // No session is resumed: that would admit a tenant whose certificate has expired since. Without tickets the
        // node sends no bytes on its own after the handshake, so that any byte means something.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), validity })
    }

    /// Returns the period in which clients accept the identity.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }
}

/// The tenant that a client acts for, and the authority whose nodes it accepts.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    pub(crate) config: Arc<ClientConfig>,
    tenant: String,
    validity: Validity,
}

impl ClientIdentity {
    /// Reads the authority's certificate, the tenant's (followed by intermediate ones, if any) and its private key. An
    /// identity that peers would not accept is refused here already.
    ///
    /// # Errors
    /// The error names the file that cannot be used, the reason, and the remedy.
    pub fn load(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        let papers = Papers::read(authority, certificate, key)?;
        papers.check(Role::Tenant)?;
        let validity = papers.validity();
        let Papers { roots, chain, key: private, .. } = papers;
        let tenant = tenant_of(&chain[0]).map_err(|reason| unacceptable(certificate, &reason))?;
        let verifier = NodesOnly::new(roots).map_err(|error| malformed(authority, AUTHORITY, &error))?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| malformed(certificate, CERTIFICATE, &error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, private)
            .map_err(|error| mismatch(certificate, key, &error))?;
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), tenant, validity })
    }

    /// Returns the period in which nodes accept the identity.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Returns the tenant that the certificate names.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
}

/// A time beyond the expiry of every certificate: the end of the year 9999, the last year that one can name.
const FOREVER: Duration = Duration::from_secs(253_402_300_799);

pub(crate) const AUTHORITY: &str = "certificate of an authority";
const CERTIFICATE: &str = "certificate";
pub(crate) const KEY: &str = "private key";

/// Content of the three files of an identity.
struct Papers {
    authority_path: PathBuf,
    certificate_path: PathBuf,
    authorities: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    /// The chain of certificates, which is never empty.
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Papers {
    fn read(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        let authorities = read_certificates(authority, AUTHORITY)?;
        let roots = roots_of(&authorities).map_err(|error| malformed(authority, AUTHORITY, &error))?;
        Ok(Self {
            authority_path: authority.to_owned(),
            certificate_path: certificate.to_owned(),
            authorities,
            roots,
            chain: read_certificates(certificate, CERTIFICATE)?,
            key: read_key(key)?,
        })
    }

    /// Checks this process's own certificate as a peer would. Also checks that the authority has not expired, which a
    /// handshake does not.
    fn check(&self, role: Role) -> Result<(), IdentityError> {
        let (certificate, between) = (&self.chain[0], &self.chain[1..]);
        let ours = |reason: String| unacceptable(&self.certificate_path, &reason);
        let is_current = |one| {
            let now = SystemTime::now();
            validity_of(one).is_some_and(|(from, until)| (from..=until).contains(&now))
        };
        if !self.authorities.iter().any(is_current) {
            return Err(unacceptable(&self.authority_path, "the authority is not valid now"));
        }
        verify(certificate, between, &self.roots, role, UnixTime::now()).map_err(ours)
    }
}

impl Papers {
    /// Returns the period in which the whole chain, and the authority that lasts longest, are valid.
    fn validity(&self) -> Validity {
        let mut authorities: Vec<_> = self.authorities.iter().filter_map(validity_of).collect();
        authorities.sort_by_key(|&(_, until)| until);
        let all = self.chain.iter().filter_map(validity_of).chain(authorities.pop());
        let whole = Validity { from: SystemTime::UNIX_EPOCH, until: SystemTime::UNIX_EPOCH + FOREVER };
        all.fold(whole, |it, (from, until)| Validity { from: it.from.max(from), until: it.until.min(until) })
    }
}

/// Returns the trusted authorities. There are several while one replaces another.
pub(crate) fn roots_of(authorities: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(Arc::new(roots))
}

/// Checks a certificate as a peer does, except the host that it is for.
///
/// # Errors
/// The reason for which a peer would not accept it.
pub(crate) fn verify(
    certificate: &CertificateDer<'_>,
    between: &[CertificateDer<'_>],
    roots: &Arc<RootCertStore>,
    role: Role,
    now: UnixTime,
) -> Result<(), String> {
    if Role::of(certificate) != Some(role) {
        return Err(match role {
            Role::Node => "it is not a node's (its extended key usage must be serverAuth alone)",
            Role::Tenant => "it is not a tenant's (its extended key usage must be clientAuth alone)",
        }
        .to_owned());
    }
    let verified = match role {
        Role::Node => ParsedCertificate::try_from(certificate).and_then(|parsed| {
            let algorithms = provider().signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, between, now, algorithms)
        }),
        Role::Tenant => TenantsOnly::new(Arc::clone(roots))
            .map_err(|error| rustls::Error::General(error.to_string()))
            .and_then(|verifier| verifier.verify_client_cert(certificate, between, now))
            .map(|_| ()),
    };
    verified.map_err(|error| in_words(&error))
}

/// Describes in plain words an error of rustls about a certificate.
pub(crate) fn in_words(error: &rustls::Error) -> String {
    use rustls::CertificateError as E;
    let rustls::Error::InvalidCertificate(error) = error else { return error.to_string() };
    let ago = |time: &UnixTime, other: &UnixTime| {
        let seconds = time.as_secs().abs_diff(other.as_secs());
        Duration::from_secs(seconds)
    };
    match error {
        E::Expired => "the certificate has expired".to_owned(),
        E::ExpiredContext { time, not_after } => {
            format!("the certificate has expired ({:?} ago)", ago(time, not_after))
        }
        E::NotValidYet => "the certificate is not valid yet: do the clocks agree?".to_owned(),
        E::NotValidYetContext { time, not_before } => {
            format!("the certificate is valid in {:?} only: do the clocks agree?", ago(time, not_before))
        }
        E::UnknownIssuer | E::BadSignature => "the certificate is of another authority".to_owned(),
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "the certificate is for another role (nodes and tenants have different ones)".to_owned()
        }
        other => other.to_string(),
    }
}

fn read(path: &Path, holds: Holds, what: &'static str) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    let mut bytes = Zeroizing::new(Vec::new());
    identity_file::read(path, holds, &mut bytes).map_err(|unread| match unread {
        Unread::Machine(source) => IdentityError::Unreadable { path: path.to_owned(), source },
        Unread::Exposed { mode, group } => IdentityError::Exposed { path: path.to_owned(), mode, group },
        Unread::NoText(why) => malformed(path, what, &why),
    })?;
    Ok(bytes)
}

pub(crate) fn read_certificates(
    path: &Path,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let bytes = read(path, Holds::Certificates, what)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| malformed(path, what, &error))?;
    if certificates.is_empty() {
        return Err(malformed(path, what, &"there is none"));
    }
    Ok(certificates)
}

/// Reads the text of a private key that no other user can read.
pub(crate) fn read_key_text(path: &Path) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    read(path, Holds::PrivateKey, KEY)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    PrivateKeyDer::from_pem_slice(&read_key_text(path)?).map_err(|error| malformed(path, KEY, &error))
}

pub(crate) fn malformed(path: &Path, what: &'static str, reason: &impl ToString) -> IdentityError {
    IdentityError::Malformed { path: path.to_owned(), what, reason: reason.to_string() }
}

fn unacceptable(path: &Path, reason: &str) -> IdentityError {
    IdentityError::Unacceptable { path: path.to_owned(), reason: reason.to_owned() }
}

fn mismatch(certificate: &Path, key: &Path, error: &rustls::Error) -> IdentityError {
    let (certificate, key) = (certificate.to_owned(), key.to_owned());
    IdentityError::Mismatch { certificate, key, reason: error.to_string() }
}

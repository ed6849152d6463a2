//! Creates a private authority, and its certificates for nodes and tenants, as files in one directory:
//!
//! | file | content | needed by |
//! | --- | --- | --- |
//! | `ca.pem` | the authority's certificate | every node and every client |
//! | `ca-key.pem` | its private key | only the person who makes certificates |
//! | `node-NAME.pem`, `node-NAME-key.pem` | a node's certificate and key | that node |
//! | `tenant-NAME.pem`, `tenant-NAME-key.pem` | a tenant's certificate and key | that tenant's clients |
//!
//! Private keys can be read only by their owner, and nothing is ever overwritten.

use crate::tls::IdentityError;
use crate::tls::identity::{AUTHORITY, KEY, malformed, read_certificates, read_key_text, roots_of, verify};
use crate::tls::subject::{Role, check_tenant_name, common_name, validity_of};
use portcullis_errors::{Coded, ErrorCode};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use zeroize::Zeroizing;

/// The longest validity in days: a hundred years.
pub const DAYS_MAX: u32 = 36_500;
/// Time by which the start of a certificate's validity is backdated: the clocks of other machines may be behind.
const BACKDATED: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const AUTHORITY_NAME: &str = "Portcullis authority";

/// Period for which a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// The present time.
    pub now: SystemTime,
    /// Days from now: 1 to [`DAYS_MAX`]. A certificate ends with its authority's at the latest.
    pub days: u32,
}

/// A certificate that was created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// The file of the certificate.
    pub certificate: PathBuf,
    /// The file of its private key.
    pub key: PathBuf,
    /// Time at which the certificate expires.
    pub expires: SystemTime,
}

/// Reason for which no certificate was created. No file is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The name, the hosts or the days are not valid.
    #[error("{0}")]
    Call(String),
    /// A file exists already.
    #[error("{0} already exists and is not overwritten: move it away first, or choose another name")]
    Exists(PathBuf),
    /// The authority cannot be used.
    #[error("the authority cannot be used: {0}")]
    Authority(#[from] IdentityError),
    /// The authority cannot sign this.
    #[error("the authority in {directory} cannot sign this: {reason}")]
    Unsigned {
        /// The directory of the authority.
        directory: PathBuf,
        /// Reason for the failure.
        reason: String,
    },
    /// The machine refused.
    #[error("cannot write {path}: {source}")]
    Machine {
        /// The file.
        path: PathBuf,
        /// The machine's error.
        source: std::io::Error,
    },
}

impl Coded for CertificateError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Call(_) => ErrorCode::CertificateCall,
            Self::Exists(_) => ErrorCode::CertificateExists,
            Self::Authority(error) => error.code(),
            Self::Unsigned { .. } => ErrorCode::CertificateUnsigned,
            Self::Machine { .. } => ErrorCode::Machine,
        }
    }
}

/// Creates an authority in `directory`. Creates the directory if necessary.
///
/// # Errors
/// An authority exists already, or the machine refuses.
pub fn make_authority(directory: &Path, validity: Validity) -> Result<Made, CertificateError> {
    let (from, until) = validity.period()?;
    let mut wanted = params(AUTHORITY_NAME, from, until);
    wanted.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    wanted.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let unsigned = |error: rcgen::Error| unsigned(directory, &error);
    let key = KeyPair::generate().map_err(unsigned)?;
    let certificate = wanted.self_signed(&key).map_err(unsigned)?;
    let machine = |source| CertificateError::Machine { path: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(machine)?;
    write(directory, "ca", &certificate.pem(), &key, until)
}

/// Creates a node's certificate, for the names and addresses that clients connect to.
///
/// # Errors
/// A certificate of this name exists, a host is not valid, the authority cannot be used, or the machine refuses.
pub fn make_node(
    directory: &Path,
    name: &str,
    hosts: &[String],
    validity: Validity,
) -> Result<Made, CertificateError> {
    if hosts.is_empty() {
        return Err(CertificateError::Call("a node needs at least one host that clients dial".to_owned()));
    }
    if let Some(host) = hosts.iter().find(|host| ServerName::try_from(host.as_str()).is_err()) {
        return Err(CertificateError::Call(format!("{host:?} is neither a host name nor an address")));
    }
    let sans = CertificateParams::new(hosts).map_err(|error| CertificateError::Call(error.to_string()))?;
    make(directory, Role::Node, name, validity, |wanted| wanted.subject_alt_names = sans.subject_alt_names)
}

/// Creates a tenant's certificate. A process that has its key acts for the tenant.
///
/// # Errors
/// A certificate of this name exists, the name is not valid, the authority cannot be used, or the machine refuses.
pub fn make_tenant(directory: &Path, name: &str, validity: Validity) -> Result<Made, CertificateError> {
    make(directory, Role::Tenant, name, validity, |_| ())
}

fn make(
    directory: &Path,
    role: Role,
    name: &str,
    validity: Validity,
    complete: impl FnOnce(&mut CertificateParams),
) -> Result<Made, CertificateError> {
    check_file_name(name)?;
    let (from, until) = validity.period()?;
    let authority = Authority::open(directory)?;
    let (since, ends) = authority.validity;
    if !(since..=ends).contains(&validity.now) {
        return Err(unsigned(directory, &"it is not valid now"));
    }
    let until = until.min(ends);
    let mut wanted = params(name, from, until);
    let (prefix, usage) = match role {
        Role::Node => ("node", ExtendedKeyUsagePurpose::ServerAuth),
        Role::Tenant => ("tenant", ExtendedKeyUsagePurpose::ClientAuth),
    };
    wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    wanted.extended_key_usages = vec![usage];
    wanted.use_authority_key_identifier_extension = true;
    complete(&mut wanted);
    let key = KeyPair::generate().map_err(|error| unsigned(directory, &error))?;
    let certificate =
        wanted.signed_by(&key, &authority.issuer).map_err(|error| unsigned(directory, &error))?;
    // An authority that was made elsewhere may have names or keys that are not reproduced here. This check detects it.
    let roots = roots_of(&authority.certificates).map_err(|error| unsigned(directory, &error))?;
    let now = UnixTime::since_unix_epoch(validity.now.duration_since(UNIX_EPOCH).unwrap_or_default());
    verify(certificate.der(), &[], &roots, role, now).map_err(|reason| unsigned(directory, &reason))?;
    write(directory, &format!("{prefix}-{name}"), &certificate.pem(), &key, until)
}

impl Validity {
    fn period(self) -> Result<(SystemTime, SystemTime), CertificateError> {
        if !(1..=DAYS_MAX).contains(&self.days) {
            let days = self.days;
            return Err(CertificateError::Call(format!(
                "a certificate is valid for 1 to {DAYS_MAX} days, not {days}"
            )));
        }
        let period = self.now.checked_sub(BACKDATED).zip(self.now.checked_add(DAY * self.days));
        period.ok_or_else(|| CertificateError::Call("the clock of this machine is wrong".to_owned()))
    }
}

/// An authority that can sign.
struct Authority {
    certificates: Vec<CertificateDer<'static>>,
    validity: (SystemTime, SystemTime),
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn open(directory: &Path) -> Result<Self, CertificateError> {
        let (certificate_path, key_path) = (directory.join("ca.pem"), directory.join("ca-key.pem"));
        let certificates = read_certificates(&certificate_path, AUTHORITY)?;
        let text = read_key_text(&key_path)?;
        let no_key = |reason: String| malformed(&key_path, KEY, &reason);
        let key = std::str::from_utf8(&text).map_err(|error| no_key(error.to_string()))?;
        let key = KeyPair::from_pem(key).map_err(|error| no_key(error.to_string()))?;
        let own = certificates
            .iter()
            .find(|certificate| is_for(certificate, &key))
            .ok_or_else(|| no_key(format!("it is not the key of {}", certificate_path.display())))?;
        let parts = common_name(own).zip(validity_of(own));
        let (name, validity) = parts
            .ok_or_else(|| malformed(&certificate_path, AUTHORITY, &"its subject has no common name"))?;
        let issuer = Issuer::new(params(&name, validity.0, validity.1), key);
        Ok(Self { certificates, validity, issuer })
    }
}

/// Whether the certificate is for this key.
fn is_for(certificate: &CertificateDer<'_>, key: &KeyPair) -> bool {
    Certificate::from_der(certificate).is_ok_and(|certificate| {
        let public = certificate.tbs_certificate().subject_public_key_info();
        public.subject_public_key.raw_bytes() == rcgen::PublicKeyData::der_bytes(key)
    })
}

fn params(name: &str, from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = from.into();
    params.not_after = until.into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Checks that a name fits a certificate and the names of its files.
fn check_file_name(name: &str) -> Result<(), CertificateError> {
    check_tenant_name(name).map_err(|error| CertificateError::Call(error.to_string()))?;
    if name.contains('/') {
        return Err(CertificateError::Call(format!(
            "{name:?} is also part of file names: it must not contain \"/\""
        )));
    }
    // `tenant-a-key.pem` is the key of `a`.
    if name.ends_with("-key") {
        return Err(CertificateError::Call(format!(
            "{name:?} would be mistaken for a key: choose another name"
        )));
    }
    Ok(())
}

fn write(
    directory: &Path,
    name: &str,
    certificate_pem: &str,
    key: &KeyPair,
    expires: SystemTime,
) -> Result<Made, CertificateError> {
    let (certificate, key_path) =
        (directory.join(format!("{name}.pem")), directory.join(format!("{name}-key.pem")));
    let key_pem = Zeroizing::new(key.serialize_pem());
    write_new(&key_path, key_pem.as_bytes(), 0o600)?;
    if let Err(error) = write_new(&certificate, certificate_pem.as_bytes(), 0o644) {
        let _ = std::fs::remove_file(&key_path);
        return Err(error);
    }
    Ok(Made { certificate, key: key_path, expires })
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CertificateError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = opened.map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => CertificateError::Exists(path.to_owned()),
        _ => CertificateError::Machine { path: path.to_owned(), source },
    })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|source| {
        let _ = std::fs::remove_file(path);
        CertificateError::Machine { path: path.to_owned(), source }
    })
}

fn unsigned(directory: &Path, reason: &impl ToString) -> CertificateError {
    CertificateError::Unsigned { directory: directory.to_owned(), reason: reason.to_string() }
}

//! The tenant or node that a certificate stands for, and its role. Only for certificates that have been verified.

use portcullis_errors::{Coded, ErrorCode};
use rustls::pki_types::CertificateDer;
use std::time::SystemTime;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::ext::pkix::ExtendedKeyUsage;
use x509_cert::ext::pkix::name::DirectoryString;

/// The longest name of a tenant, in letters: the limit of an X.520 common name.
pub const TENANT_LETTERS_MAX: usize = 64;
/// Prefixes of tenants' names that do not come from certificates: users of the node's machine, and addresses without
/// certificates. No certificate may pass for one of them.
const RESERVED: [&str; 2] = ["uid:", "address:"];

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// Use that a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Serves clients: extended key usage serverAuth.
    Node,
    /// Attaches to nodes: extended key usage clientAuth.
    Tenant,
}

impl Role {
    /// Returns the role of a certificate that has exactly one. A certificate without a role could be used for either,
    /// and a node's stolen key would then give access to other nodes.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let usage = certificate.tbs_certificate().get_extension::<ExtendedKeyUsage>().ok()??.1;
        match usage.0.as_slice() {
            [usage] if *usage == SERVER_AUTH => Some(Self::Node),
            [usage] if *usage == CLIENT_AUTH => Some(Self::Tenant),
            _ => None,
        }
    }
}

/// Reason for which a tenant may not have this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadTenantName {
    /// The name is too long, or empty.
    #[error("a tenant's name has 1 to {TENANT_LETTERS_MAX} letters, not {letters}")]
    Length {
        /// Number of letters in the name.
        letters: usize,
    },
    /// The name has letters that look like others, or that are not visible.
    #[error("{0:?} is not a tenant's name: use printable ASCII letters only, and no space at either end")]
    Letters(String),
    /// The name is reserved for tenants without certificates.
    #[error("{name:?} is not a tenant's name: names that start with {reserved:?} are reserved")]
    Reserved {
        /// The name.
        name: String,
        /// The reserved prefix.
        reserved: &'static str,
    },
}

impl Coded for BadTenantName {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Length { .. } => ErrorCode::TenantNameLength,
            Self::Letters(_) => ErrorCode::TenantNameLetters,
            Self::Reserved { .. } => ErrorCode::TenantNameReserved,
        }
    }
}

/// Checks a tenant's name: 1 to [`TENANT_LETTERS_MAX`] printable ASCII letters, no space at either end, no reserved
/// prefix. Only ASCII is allowed, so that names that look alike in an audit log are the same.
///
/// # Errors
/// The fault of the name, in words for the person who chose it.
pub fn check_tenant_name(name: &str) -> Result<(), BadTenantName> {
    let letters = name.chars().count();
    if !(1..=TENANT_LETTERS_MAX).contains(&letters) {
        return Err(BadTenantName::Length { letters });
    }
    if !name.chars().all(|c| c == ' ' || c.is_ascii_graphic()) || name.trim() != name {
        return Err(BadTenantName::Letters(name.to_owned()));
    }
    match RESERVED.into_iter().find(|reserved| name.starts_with(reserved)) {
        Some(reserved) => Err(BadTenantName::Reserved { name: name.to_owned(), reserved }),
        None => Ok(()),
    }
}

/// Returns the common name of a certificate's subject, if it has exactly one.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let mut names = certificate.tbs_certificate().subject().iter().filter(|part| part.oid == COMMON_NAME);
    let (name, None) = (names.next()?, names.next()) else { return None };
    match name.value.decode_as::<DirectoryString>().ok()? {
        DirectoryString::Utf8String(name) => Some(name),
        DirectoryString::PrintableString(name) => Some(name.to_string()),
        // Old encodings can write one name in several ways.
        _ => None,
    }
}

/// Returns the tenant that a verified certificate stands for.
///
/// # Errors
/// The reason for which it stands for no tenant.
pub(crate) fn tenant_of(certificate: &CertificateDer<'_>) -> Result<String, String> {
    let name = common_name(certificate)
        .ok_or("the certificate names no tenant: its subject needs one common name, as UTF-8")?;
    check_tenant_name(&name).map_err(|error| error.to_string())?;
    Ok(name)
}

/// Returns the beginning and the end of a certificate's validity.
pub(crate) fn validity_of(certificate: &CertificateDer<'_>) -> Option<(SystemTime, SystemTime)> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let validity = certificate.tbs_certificate().validity();
    Some((validity.not_before.to_system_time(), validity.not_after.to_system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_certificate_or_none(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let certificate = CertificateDer::from(bytes);
            prop_assert!(Role::of(&certificate).is_none());
            prop_assert!(tenant_of(&certificate).is_err());
        }

        #[test]
        fn a_name_that_passes_is_short_and_printable(name in any::<String>()) {
            if check_tenant_name(&name).is_ok() {
                prop_assert!(name.len() <= TENANT_LETTERS_MAX);
                prop_assert!(name.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
            }
        }
    }

    #[test]
    fn names_that_others_give_are_refused() {
        for name in ["orange", "a", "team blue", "x@y/z", &"n".repeat(64)] {
            assert_eq!(check_tenant_name(name), Ok(()), "{name}");
        }
        for name in
            ["", "uid:0", "address:1.2.3.4", " a", "a ", "a\nb", "a\u{202e}b", "größe", &"n".repeat(65)]
        {
            assert!(check_tenant_name(name).is_err(), "{name}");
        }
    }
}

//! The check of peers in a TLS handshake: a peer needs a certificate of the private authority, in the one role that is
//! expected. rustls checks chains, times, names and signatures. Only the role is checked here, since rustls accepts a
//! certificate without a usage as either.

use crate::tls::subject::Role;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;

/// Returns the cryptography of all connections.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn has_role(certificate: &CertificateDer<'_>, role: Role) -> Result<(), Error> {
    if Role::of(certificate) == Some(role) {
        Ok(())
    } else {
        Err(Error::InvalidCertificate(CertificateError::InvalidPurpose))
    }
}

/// Returns the error for TLS 1.2, which is not even compiled in.
fn no_such_version() -> Error {
    Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled)
}

/// The signature checks of TLS 1.3, as rustls makes them, the same on both sides.
macro_rules! signatures_of_tls_1_3 {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(no_such_version())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.0.verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.supported_verify_schemes()
        }
    };
}

/// Verifier with which a client checks a node's certificate.
#[derive(Debug)]
pub(crate) struct NodesOnly(Arc<WebPkiServerVerifier>);

impl NodesOnly {
    pub fn new(roots: Arc<RootCertStore>) -> Result<Self, VerifierBuilderError> {
        Ok(Self(WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?))
    }
}

impl ServerCertVerifier for NodesOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        has_role(end_entity, Role::Node)?;
        Ok(verified)
    }

    signatures_of_tls_1_3!();
}

/// Verifier with which a node checks a client's certificate. A client must have one.
#[derive(Debug)]
pub(crate) struct TenantsOnly(Arc<dyn ClientCertVerifier>);

impl TenantsOnly {
    pub fn new(roots: Arc<RootCertStore>) -> Result<Self, VerifierBuilderError> {
        Ok(Self(WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?))
    }
}

impl ClientCertVerifier for TenantsOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        has_role(end_entity, Role::Tenant)?;
        Ok(verified)
    }

    signatures_of_tls_1_3!();
}

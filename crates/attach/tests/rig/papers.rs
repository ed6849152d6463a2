//! Certificates: honest ones, made by the crate, and others made by hand.

use portcullis_attach::tls::certificates::{Validity, make_authority, make_node, make_tenant};
use portcullis_attach::tls::{ClientIdentity, NodeIdentity};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

pub fn today(days: u32) -> Validity {
    Validity { now: SystemTime::now(), days }
}

pub fn past(ago: u32, days: u32) -> Validity {
    Validity { now: SystemTime::now() - DAY * ago, days }
}

pub fn future(from: u32, days: u32) -> Validity {
    Validity { now: SystemTime::now() + DAY * from, days }
}

/// An authority in its own folder, with a node for localhost and 127.0.0.1.
pub struct Papers(pub tempfile::TempDir);

/// A certificate and its key, from any source.
pub struct Pair {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Papers {
    pub fn new() -> Self {
        let papers = Self(tempfile::tempdir().expect("a folder"));
        let folder = papers.0.path();
        make_authority(folder, past(100, 1000)).expect("an authority");
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        make_node(folder, "one", &hosts, today(10)).expect("a node's certificate");
        papers
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn node(&self) -> NodeIdentity {
        NodeIdentity::load(&self.path("ca.pem"), &self.path("node-one.pem"), &self.path("node-one-key.pem"))
            .expect("a node's identity")
    }

    /// The identity of a tenant. It is made if it does not exist.
    pub fn tenant(&self, name: &str) -> ClientIdentity {
        if !self.path(&format!("tenant-{name}.pem")).exists() {
            self.make_tenant(name, today(10));
        }
        let (certificate, key) = (format!("tenant-{name}.pem"), format!("tenant-{name}-key.pem"));
        ClientIdentity::load(&self.path("ca.pem"), &self.path(&certificate), &self.path(&key))
            .expect("a tenant's identity")
    }

    pub fn make_tenant(&self, name: &str, validity: Validity) {
        make_tenant(self.0.path(), name, validity).expect("a tenant's certificate");
    }

    pub fn pair(&self, name: &str) -> Pair {
        Pair {
            chain: vec![CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).expect("one")],
            key: PrivateKeyDer::from_pem_file(self.path(&format!("{name}-key.pem"))).expect("a key"),
        }
    }

    /// A certificate signed by the authority with these common names and usages, which it would not make itself.
    pub fn forge(&self, names: &[&str], usages: &[ExtendedKeyUsagePurpose]) -> Pair {
        let mut wanted = params(names, usages);
        wanted.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        let text = std::fs::read_to_string(self.path("ca-key.pem")).expect("the authority's key");
        let authority = KeyPair::from_pem(&text).expect("a key");
        let issuer = Issuer::new(params(&["Portcullis authority"], &[]), authority);
        let key = KeyPair::generate().expect("a key");
        let certificate = wanted.signed_by(&key, &issuer).expect("signed");
        Pair {
            chain: vec![certificate.into()],
            key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).expect("one")).expect("an authority");
        roots
    }

    /// Connects a TLS client that does not check its own certificate.
    pub fn call(&self, address: SocketAddr, pair: Option<Pair>) -> StreamOwned<ClientConnection, TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a version")
            .with_root_certificates(self.roots());
        let config = match pair {
            Some(Pair { chain, key }) => {
                // The node must detect whether the key fits the chain.
                let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("a key");
                let pair = SingleCertAndKey::from(CertifiedKey::new(chain, key));
                config.with_client_cert_resolver(Arc::new(pair))
            }
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(super::PATIENCE)).expect("a timeout");
        StreamOwned::new(connection, stream)
    }

    /// Returns the configuration of a node that does not check its own certificate and requests none from the client.
    pub fn server_config(&self, pair: Pair) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a version")
            .with_no_client_auth()
            .with_single_cert(pair.chain, pair.key)
            .expect("a pair");
        Arc::new(config)
    }
}

/// A self-signed certificate.
pub fn self_signed(name: &str) -> Pair {
    let key = KeyPair::generate().expect("a key");
    let certificate =
        params(&[name], &[ExtendedKeyUsagePurpose::ClientAuth]).self_signed(&key).expect("signed");
    Pair {
        chain: vec![certificate.into()],
        key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
    }
}

fn params(names: &[&str], usages: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let types = [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])];
    for (name, kind) in names.iter().zip(types) {
        params.distinguished_name.push(kind, *name);
    }
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    params
}

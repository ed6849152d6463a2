//! etcd over TLS: both sides prove their identity.

use crate::promises::{lease, space};
use crate::rig::Server;
use portcullis_directory::etcd::Identity;
use portcullis_directory::{Directory, Who};
use portcullis_errors::{Coded, ErrorCode};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no hosts");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed"))
    }

    fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// Returns a certificate of this authority, and its key.
    fn sign(&self) -> [Vec<u8>; 2] {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
        // etcd's gateway is a client of etcd, with etcd's own certificate.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        [certificate.pem(), key.serialize_pem()].map(String::into_bytes)
    }

    fn identity(&self, trusts: &Self) -> Identity {
        let [certificate, key] = self.sign();
        Identity { authorities: trusts.pem(), certificate, key }
    }
}

#[test]
fn only_who_shows_a_certificate_reaches_etcd_and_only_the_right_etcd() {
    let (authority, other) = (Authority::new(), Authority::new());
    let folder = TempDir::new().expect("a folder");
    let [certificate, key] = authority.sign();
    let files = [("ca.pem", &authority.pem()), ("cert.pem", &certificate), ("key.pem", &key)];
    for (file, content) in files {
        std::fs::write(folder.path().join(file), content).expect("the folder is ours");
    }
    let Some(server) = Server::start_with_tls(folder, "ca.pem", "cert.pem", "key.pem") else { return };
    let etcd =
        server.connect_as(Some(authority.identity(&authority)), space()).expect("both are of the authority");
    let bank = lease(&etcd, "bank");
    let heap = etcd.create_heap(&bank, 4096, &Who::nobody()).expect("room");
    assert_eq!(etcd.heaps(&bank).expect("it lives"), [heap]);
    let strangers = [None, Some(other.identity(&authority)), Some(authority.identity(&other))];
    for stranger in strangers {
        let told =
            server.connect_as(stranger, space()).expect_err("one side is not of the other's authority");
        assert_eq!(told.code(), ErrorCode::DirectoryAway, "{told}");
    }
}

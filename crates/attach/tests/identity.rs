//! Files of certificates and keys: how they are made, and which are refused.

use crate::rig;

use portcullis_attach::tls::certificates::{CertificateError, make_authority, make_node, make_tenant};
use portcullis_attach::tls::{ClientIdentity, ClientSecurity, IdentityError, NodeIdentity};
use rig::papers::{Papers, future, past, today};
use rig::{Rig, UNHURRIED};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

fn load(papers: &Papers, name: &str) -> Result<ClientIdentity, IdentityError> {
    let (certificate, key) = (papers.path(&format!("{name}.pem")), papers.path(&format!("{name}-key.pem")));
    ClientIdentity::load(&papers.path("ca.pem"), &certificate, &key)
}

fn load_node(papers: &Papers, name: &str) -> Result<NodeIdentity, IdentityError> {
    let (certificate, key) = (papers.path(&format!("{name}.pem")), papers.path(&format!("{name}-key.pem")));
    NodeIdentity::load(&papers.path("ca.pem"), &certificate, &key)
}

#[test]
fn a_key_that_others_can_read_is_refused_with_what_to_do() {
    let papers = Papers::new();
    papers.make_tenant("orange", today(10));
    let key = papers.path("tenant-orange-key.pem");
    for mode in [0o604, 0o660, 0o666, 0o610, 0o620] {
        std::fs::set_permissions(&key, Permissions::from_mode(mode)).expect("set");
        let error = load(&papers, "tenant-orange").expect_err("refused");
        assert!(matches!(error, IdentityError::Exposed { .. }), "{error}");
        assert!(
            error.to_string().contains("chmod 600") && error.to_string().contains("chmod 640"),
            "{error}"
        );
    }
    // Files of a test have the group of its process.
    std::fs::set_permissions(&key, Permissions::from_mode(0o640)).expect("set");
    load(&papers, "tenant-orange").expect("its group is one of this process");
    std::fs::set_permissions(papers.path("node-one-key.pem"), Permissions::from_mode(0o644)).expect("set");
    assert!(matches!(load_node(&papers, "node-one"), Err(IdentityError::Exposed { .. })));
    std::fs::set_permissions(papers.path("ca-key.pem"), Permissions::from_mode(0o644)).expect("set");
    let made = make_tenant(papers.0.path(), "blue", today(1));
    assert!(matches!(made, Err(CertificateError::Authority(IdentityError::Exposed { .. }))));
}

#[test]
fn each_file_that_is_missing_or_holds_something_else_is_named() {
    let papers = Papers::new();
    papers.make_tenant("orange", today(10));
    let files = ["ca.pem", "tenant-orange.pem", "tenant-orange-key.pem"];
    for file in files {
        let path = papers.path(file);
        let text = std::fs::read(&path).expect("read");
        let broken: [&[u8]; 4] =
            [b"", b"no PEM at all", b"-----BEGIN CERTIFICATE-----\nAAAA\n", &text[..text.len() / 2]];
        for bytes in broken {
            std::fs::write(&path, bytes).expect("written");
            let error = load(&papers, "tenant-orange").expect_err("refused").to_string();
            assert!(error.contains(file) && error.contains("portcullis certificates"), "{error}");
        }
        std::fs::remove_file(&path).expect("removed");
        let error = load(&papers, "tenant-orange").expect_err("refused");
        assert!(
            matches!(error, IdentityError::Unreadable { .. }) && error.to_string().contains(file),
            "{error}"
        );
        std::fs::write(&path, &text).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
    }
    assert_eq!(load(&papers, "tenant-orange").expect("as before").tenant(), "orange");
}

#[test]
fn what_peers_would_not_accept_is_refused_before_they_are_asked() {
    let (papers, others) = (Papers::new(), Papers::new());
    papers.make_tenant("orange", today(10));
    papers.make_tenant("late", past(50, 10));
    papers.make_tenant("early", future(50, 10));
    others.make_tenant("orange", today(10));
    let reason = |error: IdentityError| match error {
        IdentityError::Unacceptable { reason, .. } => reason,
        other => panic!("{other}"),
    };
    for (name, why) in
        [("tenant-late", "expired"), ("tenant-early", "valid in"), ("node-one", "not a tenant's")]
    {
        let reason = reason(load(&papers, name).expect_err(name));
        assert!(reason.contains(why), "{name}: {reason}");
    }
    assert!(reason(load_node(&papers, "tenant-orange").expect_err("a tenant's")).contains("not a node's"));
    let theirs = ClientIdentity::load(
        &papers.path("ca.pem"),
        &others.path("tenant-orange.pem"),
        &others.path("tenant-orange-key.pem"),
    );
    assert!(reason(theirs.expect_err("another authority's")).contains("another authority"));
    let mismatch = ClientIdentity::load(
        &papers.path("ca.pem"),
        &papers.path("tenant-orange.pem"),
        &others.path("tenant-orange-key.pem"),
    );
    assert!(matches!(mismatch, Err(IdentityError::Mismatch { .. })), "{mismatch:?}");
}

#[test]
fn an_authority_whose_time_is_over_makes_and_proves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let papers = Papers(folder);
    make_authority(papers.0.path(), past(20, 10)).expect("an authority");
    assert!(matches!(make_tenant(papers.0.path(), "late", today(1)), Err(CertificateError::Unsigned { .. })));
    make_tenant(papers.0.path(), "orange", past(15, 1000)).expect("made while it was valid");
    assert!(matches!(load(&papers, "tenant-orange"), Err(IdentityError::Unacceptable { .. })));
}

#[test]
fn no_certificate_outlives_its_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = make_authority(folder.path(), today(10)).expect("an authority");
    let made = make_tenant(folder.path(), "orange", today(365)).expect("made");
    // Certificates count time in seconds.
    let second = Duration::from_secs(1);
    assert!(made.expires <= authority.expires && made.expires + second >= authority.expires);
    let short = make_tenant(folder.path(), "short", today(5)).expect("made");
    assert!(short.expires < SystemTime::now() + Duration::from_secs(6 * 24 * 3600));
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_half_made() {
    let papers = Papers::new();
    let folder = papers.0.path();
    papers.make_tenant("orange", today(10));
    let listing = || {
        let entries = std::fs::read_dir(folder).expect("listed").map(|entry| entry.expect("one").path());
        let mut files: Vec<_> = entries.map(|path| (std::fs::read(&path).expect("read"), path)).collect();
        files.sort();
        files
    };
    let hosts = ["localhost".to_owned()];
    let before = listing();
    assert!(matches!(make_authority(folder, today(1)), Err(CertificateError::Exists(_))));
    assert!(matches!(make_tenant(folder, "orange", today(1)), Err(CertificateError::Exists(_))));
    assert!(matches!(make_node(folder, "one", &hosts, today(1)), Err(CertificateError::Exists(_))));
    assert_eq!(listing(), before);
    // The certificate exists and its key does not. Then no key may be left behind either.
    std::fs::remove_file(papers.path("tenant-orange-key.pem")).expect("removed");
    let before = listing();
    assert!(matches!(make_tenant(folder, "orange", today(1)), Err(CertificateError::Exists(_))));
    assert_eq!(listing(), before);
}

#[test]
fn only_the_owner_can_read_a_key() {
    let papers = Papers::new();
    papers.make_tenant("orange", today(10));
    for key in ["ca-key.pem", "node-one-key.pem", "tenant-orange-key.pem"] {
        let mode = std::fs::metadata(papers.path(key)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}

#[test]
fn names_hosts_and_days_that_make_no_sense_are_refused() {
    let papers = Papers::new();
    let folder = papers.0.path();
    let long = "n".repeat(65);
    for name in ["", "uid:0", "address:1", "a/b", "../a", "a\n", " a", "a-key", &long] {
        assert!(matches!(make_tenant(folder, name, today(1)), Err(CertificateError::Call(_))), "{name:?}");
    }
    for hosts in [&["a host"][..], &[""], &["*.example"], &["host:7471"], &[]] {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        assert!(
            matches!(make_node(folder, "two", &hosts, today(1)), Err(CertificateError::Call(_))),
            "{hosts:?}"
        );
    }
    for days in [0, 36_501, u32::MAX] {
        assert!(matches!(make_tenant(folder, "a", today(days)), Err(CertificateError::Call(_))), "{days}");
    }
    let nowhere = make_tenant(Path::new("/nonexistent"), "a", today(1));
    assert!(matches!(nowhere, Err(CertificateError::Authority(IdentityError::Unreadable { .. }))));
}

#[test]
fn one_authority_can_take_over_from_another() {
    let (old, new) = (Papers::new(), Papers::new());
    let both =
        [&old, &new].map(|papers| std::fs::read_to_string(papers.path("ca.pem")).expect("read")).concat();
    for papers in [&old, &new] {
        papers.make_tenant("orange", today(10));
        std::fs::write(papers.path("ca.pem"), &both).expect("written");
        papers.make_tenant("blue", today(10));
    }
    let rig = Rig::secured(&old, UNHURRIED);
    for (papers, tenant) in [(&old, "orange"), (&new, "orange"), (&old, "blue"), (&new, "blue")] {
        let security = ClientSecurity::Tls(papers.tenant(tenant));
        drop(rig.attach_as(&security, &rig.address.to_string()).expect("attached"));
    }
    rig.assert_untouched();
}

/// Checks with openssl what is made here. Passes without a check if there is no openssl.
#[test]
fn openssl_accepts_what_is_made() {
    let papers = Papers::new();
    papers.make_tenant("orange", today(10));
    for (purpose, good, bad) in [
        ("sslserver", "node-one.pem", "tenant-orange.pem"),
        ("sslclient", "tenant-orange.pem", "node-one.pem"),
    ] {
        let verify = |file: &str| {
            Command::new("openssl")
                .args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"])
                .args([papers.path("ca.pem"), papers.path(file)])
                .output()
        };
        let Ok(output) = verify(good) else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!verify(bad).expect("openssl").status.success(), "{bad} passes for {purpose}");
    }
}

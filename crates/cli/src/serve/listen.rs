//! `--listen`: where clients come to, and whom they act for.

use portcullis::Address;
use portcullis::host::Listen;

/// What stands between the address and the tenant's name.
const TENANT: &str = "?tenant=";
/// How tenants are called that the kernel names: nobody else is called so.
const USERS: &str = "uid:";

/// A listener, from `shm:PATH` or `shm:PATH?tenant=NAME`.
///
/// # Errors
/// What was wrong, for the person who typed it.
pub fn parse(text: &str) -> Result<Listen, String> {
    let (address, tenant) = match text.split_once(TENANT) {
        Some((address, tenant)) => (address, Some(tenant)),
        None => (text, None),
    };
    if let Some((_, rest)) = address.split_once('?') {
        return Err(format!("{rest:?} is nothing that can be said about a socket: write ?tenant=NAME"));
    }
    let Address::Shm(path) =
        address.parse().map_err(|error: portcullis::UnknownAddress| error.to_string())?;
    match tenant {
        Some("") => Err("the tenant has no name: write ?tenant=NAME, or leave it out".to_owned()),
        Some(name) if name.starts_with(USERS) => Err(format!(
            "{name:?} is kept for users, who are told by the kernel: leave ?tenant= out for them"
        )),
        tenant => Ok(Listen { path, tenant: tenant.map(str::to_owned) }),
    }
}

/// The same, as it was written.
pub fn written(listen: &Listen) -> String {
    let tenant = listen.tenant.as_ref().map(|name| format!("{TENANT}{name}")).unwrap_or_default();
    format!("{}{tenant}", Address::Shm(listen.path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_read_back_as_they_were_written() {
        for text in ["shm:/run/a.sock", "shm:/run/a.sock?tenant=orange"] {
            assert_eq!(written(&parse(text).expect("a listener")), text);
        }
        assert_eq!(parse("shm:/a?tenant=orange").expect("a listener").tenant.as_deref(), Some("orange"));
    }

    #[test]
    fn others_are_told_what_to_write() {
        for wrong in ["", "shm:", "/run/a.sock", "rdma:host:1", "shm:?tenant=a"] {
            assert!(parse(wrong).expect_err(wrong).contains("shm:PATH"), "{wrong}");
        }
        for wrong in ["shm:/a?tenant=", "shm:/a?tenant=uid:0", "shm:/a?owner=me", "shm:/a?b?tenant=c"] {
            assert!(parse(wrong).expect_err(wrong).contains("?tenant="), "{wrong}");
        }
    }
}

//! Gives the shared library the name that programs look for when they start: scripts/install-capi installs it under that name.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo says it");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libportcullis.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
}

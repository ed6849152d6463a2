//! Gives the shared library the name for which the loader looks when a program starts. scripts/install-capi installs
//! the library under that name.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo says it");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libportcullis.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
}

//! Tests of the header. The header is generated from the sources, and kept in the repository so that users need no Rust
//! to read or use it.

use portcullis_errors::ErrorCode;
use std::fmt::Write;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn made() -> String {
    let mut config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).expect("it is read");
    config.after_includes.get_or_insert_default().push_str(&errors());
    let bindings = cbindgen::Builder::new().with_crate(folder()).with_config(config).generate();
    let mut header = Vec::new();
    bindings.expect("the sources are read").write(&mut header);
    String::from_utf8(header).expect("a header is text")
}

/// Returns an enumeration of the errors' numbers by their names: C programs compare results with them.
fn errors() -> String {
    let mut errors =
        "\n// The numbers of errors. docs/errors.md says whose fault each is.\nenum {\n".to_owned();
    for code in ErrorCode::ALL {
        let name = code.name().replace('-', "_").to_uppercase();
        writeln!(errors, "  // {}\n  PORTCULLIS_ERROR_{name} = {},", code.meaning(), code.number())
            .expect("a text has room");
    }
    errors + "};\n"
}

/// With `PORTCULLIS_BLESS=1` this test first writes the header.
#[test]
fn the_header_in_the_repository_is_what_the_sources_say() {
    let path = folder().join("include/portcullis.h");
    let made = made();
    if std::env::var_os("PORTCULLIS_BLESS").is_some() {
        std::fs::write(&path, &made).expect("it is written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "include/portcullis.h is old: PORTCULLIS_BLESS=1 cargo test -p portcullis-capi --test promises header"
    );
}

/// Largest number of functions: a reader must be able to read the whole library in one sitting. The arena of a session
/// has a function of its own: options of a session cannot return its address.
const FUNCTIONS_MAX: usize = 67;

#[test]
fn there_are_few_functions() {
    let header = made();
    let functions = header.matches("portcullis_").count();
    assert!(functions > 0);
    let count = header.lines().filter(|line| is_function(line)).count();
    assert!((50..=FUNCTIONS_MAX).contains(&count), "{count}");
}

/// Whether a line begins the declaration of a function.
fn is_function(line: &str) -> bool {
    let declares = line.starts_with("int portcullis_")
        || line.starts_with("void portcullis_")
        || line.starts_with("const char *portcullis_");
    declares && line.contains('(')
}

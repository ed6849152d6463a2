//! The extent of a run of these tests: a sample (`make test`), or everything (`make test-all`).

/// Whether the environment requests everything: `PORTCULLIS_TESTS=all`.
pub fn is_all() -> bool {
    std::env::var("PORTCULLIS_TESTS").is_ok_and(|extent| extent == "all")
}

/// Returns how many seeds to run: the number that `PORTCULLIS_SEEDS` requests, or `all` of them, or a tenth of `all`
/// as a sample.
pub fn seeds(all: u64) -> u64 {
    let asked = std::env::var("PORTCULLIS_SEEDS").ok().and_then(|number| number.parse().ok());
    asked.unwrap_or(if is_all() { all } else { all.div_ceil(10) })
}

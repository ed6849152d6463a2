//! A node's counters as one line of JSON.

use portcullis_node::Counters;
use serde::Serialize;

/// The counters, with the names that the library gives them.
#[derive(Serialize)]
#[serde(remote = "Counters")]
struct Fields {
    rpcs: u64,
    window_operations: u64,
    grants: u64,
    revokes: u64,
    expiries: u64,
    extensions: u64,
    violations: u64,
    recoveries: u64,
    clients: u64,
    tenants: u64,
    permissions: u64,
    objects: u64,
    bytes_used: u64,
    headers_used: u64,
    windows: u64,
    postponed: u64,
}

#[derive(Serialize)]
struct Words {
    #[serde(with = "Fields")]
    counters: Counters,
}

/// `{"counters":{...}}`.
pub fn line(counters: Counters) -> String {
    serde_json::to_string(&Words { counters }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_go_by_their_names() {
        let line = super::line(portcullis_node::Counters { grants: 3, ..Default::default() });
        assert!(line.starts_with("{\"counters\":{\"rpcs\":0,"), "{line}");
        assert!(line.contains("\"grants\":3,"), "{line}");
    }
}

//! What a node has counted, as one line of JSON.

use portcullis::host::{AuditStatus, Host};
use portcullis_node::Counters;
use serde::Serialize;

#[derive(Serialize)]
struct Words {
    counters: Counters,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<AuditStatus>,
}

/// `{"counters":{...},"audit":{...}}`, the second where there is a log.
pub fn line(host: &Host) -> String {
    told(host.counters(), host.audit_status())
}

fn told(counters: Counters, audit: Option<AuditStatus>) -> String {
    serde_json::to_string(&Words { counters, audit }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_by_their_names() {
        let line = told(Counters { grants: 3, ..Default::default() }, None);
        assert!(line.starts_with("{\"counters\":{\"rpcs\":0,") && !line.contains("audit\":"), "{line}");
        assert!(line.contains("\"grants\":3,"), "{line}");
    }

    #[test]
    fn an_audit_log_that_cannot_be_written_is_told_with_the_reason() {
        let status = AuditStatus { failures: 2, failing: Some("full".to_owned()), ..Default::default() };
        let line = told(Counters::default(), Some(status));
        let expected = "\"audit\":{\"written\":0,\"failures\":2,\"lost\":0,\"failing\":\"full\"}}";
        assert!(line.ends_with(expected), "{line}");
    }
}

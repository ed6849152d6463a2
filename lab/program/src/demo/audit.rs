//! Part 8: compares the audit log with what the demo did.

use super::figures::{Audit, Offender};
use super::offences::Offence;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A line of the log, with the fields that matter here.
#[derive(Deserialize)]
struct Line {
    event: String,
    tenant: Option<String>,
    client: Option<u64>,
}

/// Reads the log of a node that has stopped.
///
/// # Errors
/// There is no log.
pub fn examine(log: &Path, offences: &[Offence], stopped_cleanly: bool) -> std::io::Result<Audit> {
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    let mut blamed: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let mut unreadable = 0;
    for line in BufReader::new(std::fs::File::open(log)?).lines() {
        let Ok(line) = serde_json::from_str::<Line>(&line?) else {
            unreadable += 1;
            continue;
        };
        if line.event == "violation" {
            let who = (line.tenant.unwrap_or_default(), line.client.unwrap_or_default());
            *blamed.entry(who).or_default() += 1;
        }
        *events.entry(line.event).or_default() += 1;
    }
    let offenders = offences
        .iter()
        .map(|offence| Offender {
            tenant: offence.tenant.to_owned(),
            client: offence.client,
            seen: offence.count,
            logged: blamed.remove(&(offence.tenant.to_owned(), offence.client)).unwrap_or_default(),
        })
        .collect();
    let unexplained = blamed.values().sum();
    Ok(Audit { events, offenders, unexplained, unreadable, stopped_cleanly })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::figures::Figures;

    fn holds(log: &str, offences: &[Offence]) -> bool {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), log).expect("written");
        let audit = examine(file.path(), offences, true).expect("a log");
        audit.findings().iter().all(|finding| finding.holds)
    }

    #[test]
    fn a_log_holds_when_it_blames_those_who_did_it_and_nobody_else() {
        let offences = [Offence { tenant: "orange", client: 7, count: 2 }];
        let line = |tenant: &str, client: u64| {
            format!("{{\"at_us\":1,\"event\":\"violation\",\"tenant\":\"{tenant}\",\"client\":{client}}}\n")
        };
        let right = line("orange", 7).repeat(2);
        assert!(holds(&right, &offences));
        assert!(!holds(&line("orange", 7), &offences), "one is missing");
        assert!(!holds(&line("orange", 8).repeat(2), &offences), "another client");
        assert!(!holds(&line("blue", 7).repeat(2), &offences), "another tenant");
        assert!(!holds(&format!("{right}{}", line("blue", 9)), &offences), "somebody innocent too");
        assert!(!holds(&format!("{right}garbage\n"), &offences), "not a record");
        assert!(!holds("", &[]), "nothing at all");
    }
}

//! Objects of this machine's RDMA devices that are in use, as counted by the kernel.

use std::process::Command;

/// Counts of all kinds of objects on all devices, by the kernel's names for the kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InUse(Vec<(String, u64)>);

impl InUse {
    /// Reads the output of `rdma resource show`, which has a line for each device, such as `0: rxe0: pd 1 cq 1 qp 1
    /// cm_id 0 mr 0 ctx 1 srq 0`.
    pub fn now() -> Self {
        let said = Command::new("rdma").args(["resource", "show"]).output().expect("iproute2 is installed");
        assert!(said.status.success(), "rdma resource show: {said:?}");
        let text = String::from_utf8(said.stdout).expect("numbers and names");
        let mut in_use = Vec::new();
        for line in text.lines() {
            let (device, counts) =
                line.split_once(": ").and_then(|(_, rest)| rest.split_once(": ")).expect(line);
            let words: Vec<&str> = counts.split_whitespace().collect();
            for pair in words.chunks(2) {
                let count = pair[1].parse().expect(line);
                in_use.push((format!("{device} {}", pair[0]), count));
            }
        }
        assert!(in_use.iter().any(|(kind, _)| kind.ends_with(" qp")), "{text}");
        Self(in_use)
    }
}

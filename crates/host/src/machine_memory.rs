//! Checks that the machine has the memory that a node is to lend.
//!
//! The pool's pages are taken when clients first use them, so a node of any size could start. The kernel would kill a
//! node that lends more memory than exists in the middle of its clients' work, so such a node is refused at the start.

use portcullis_errors::{Coded, ErrorCode};
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::path::{Path, PathBuf};

const HUGE_PAGE_BYTES: u64 = 2 << 20;
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// The resource that has less memory than a node is to lend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scarce {
    /// The machine: the memory that the kernel counts as available, and free swap.
    Machine,
    /// A control group (version 2) of the process.
    ControlGroup(PathBuf),
    /// The limit on the process's address space or data.
    Limit(&'static str),
}

impl fmt::Display for Scarce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("this machine has available, free swap included,"),
            Self::ControlGroup(path) => {
                write!(f, "the control group {} (memory.max) leaves", path.display())
            }
            Self::Limit(option) => write!(f, "this process's limit (`ulimit {option}`) leaves"),
        }
    }
}

/// The node is to lend memory that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {wanted} bytes, and {scarce} {there} bytes: ask for less or make room for it", told(settings))]
pub struct NotEnoughMemory {
    /// The settings and their values.
    pub settings: Vec<(&'static str, u64)>,
    /// Bytes that the node needs in all.
    pub wanted: u64,
    /// Bytes that exist.
    pub there: u64,
    /// The resource that lacks them.
    pub scarce: Scarce,
}

impl Coded for NotEnoughMemory {
    fn code(&self) -> ErrorCode {
        ErrorCode::NotEnoughMemory
    }
}

impl NotEnoughMemory {
    /// Whether [`HostConfig::overcommit`](super::HostConfig::overcommit) would start the node all the same.
    #[must_use]
    pub fn may_be_overcommitted(&self) -> bool {
        !matches!(self.scarce, Scarce::Limit(_))
    }
}

fn told(settings: &[(&'static str, u64)]) -> String {
    match settings {
        [(setting, _)] => format!("{setting} is"),
        several => {
            let each: Vec<_> =
                several.iter().map(|(setting, bytes)| format!("{setting} ({bytes})")).collect();
            format!("{} come to", each.join(" and "))
        }
    }
}

/// Checks that the machine has the memory that the settings require. With `overcommit`, checks only limits that the
/// kernel enforces. A limit that cannot be determined is not a reason to refuse.
pub(super) fn check(settings: &[(&'static str, u64)], overcommit: bool) -> Result<(), NotEnoughMemory> {
    let wanted = settings.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    let mut seen = limits();
    if !overcommit && !on_huge_pages(wanted) {
        seen.extend(available().map(|there| (Scarce::Machine, there)));
    }
    if !overcommit {
        seen.extend(control_group(Path::new(CONTROL_GROUPS)));
    }
    judge(settings, wanted, seen)
}

fn judge(
    settings: &[(&'static str, u64)],
    wanted: u64,
    seen: Vec<(Scarce, u64)>,
) -> Result<(), NotEnoughMemory> {
    match seen.into_iter().min_by_key(|(_, there)| *there) {
        Some((scarce, there)) if there < wanted => {
            Err(NotEnoughMemory { settings: settings.to_vec(), wanted, there, scarce })
        }
        _ => Ok(()),
    }
}

/// Returns the address space and the data that the limits of `setrlimit` leave.
fn limits() -> Vec<(Scarce, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let left = |resource, field: &str, option| {
        let limit = getrlimit(resource).current?;
        Some((Scarce::Limit(option), limit.saturating_sub(kibibytes(&status, field)?)))
    };
    [left(Resource::As, "VmSize:", "-v"), left(Resource::Data, "VmData:", "-d")]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the memory in bytes that this process and its children can still take: the least that the machine and the
/// control groups leave. `None` if neither can be determined.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let group = control_group(Path::new(CONTROL_GROUPS)).map(|(_, left)| left);
    available().into_iter().chain(group).min()
}

/// Returns the memory that the kernel could give without swapping, plus free swap.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(kibibytes(&info, "MemAvailable:")? + kibibytes(&info, "SwapFree:").unwrap_or(0))
}

/// Whether `wanted` bytes fit on free huge pages. Those do not count as available memory.
fn on_huge_pages(wanted: u64) -> bool {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let size = kibibytes(&info, "Hugepagesize:");
    let pages = |field: &str| number(&info, field).unwrap_or(0);
    let free = pages("HugePages_Free:").saturating_sub(pages("HugePages_Rsvd:"));
    size == Some(HUGE_PAGE_BYTES) && free.saturating_mul(HUGE_PAGE_BYTES) >= wanted
}

fn kibibytes(text: &str, field: &str) -> Option<u64> {
    number(text, field).map(|kibibytes| kibibytes << 10)
}

fn number(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the control group around this process that leaves the least memory.
fn control_group(root: &Path) -> Option<(Scarce, u64)> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(own);
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    let left = groups.filter_map(|group| Some((Scarce::ControlGroup(group.to_owned()), left_in(group)?)));
    left.min_by_key(|(_, left)| *left)
}

/// Returns the bytes that processes of a control group may still take: up to its limit, counting caches that would be
/// dropped.
fn left_in(group: &Path) -> Option<u64> {
    let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
    // Without a limit the file contains "max".
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let caches = number(&read("memory.stat").unwrap_or_default(), "inactive_file ").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(caches)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_scarcest_is_told_with_both_numbers() {
        let seen = || vec![(Scarce::Machine, 4096), (Scarce::Limit("-v"), 8192)];
        let judge = |wanted, seen| judge(&[("pool_bytes", wanted)], wanted, seen);
        assert_eq!(judge(4096, seen()), Ok(()));
        let refused = judge(4097, seen()).expect_err("more than there is");
        assert_eq!((refused.wanted, refused.there), (4097, 4096));
        let told = refused.to_string();
        assert!(told.starts_with("pool_bytes is 4097 bytes") && told.contains("4096 bytes"), "{told}");
        assert_eq!(judge(u64::MAX, Vec::new()), Ok(()), "what cannot be seen is no reason");
    }

    #[test]
    fn this_machine_has_some_memory_and_not_all_of_it() {
        let one = |bytes| [("pool_bytes", 1), ("ports_bytes_max", bytes)];
        assert_eq!(check(&one(1), false), Ok(()));
        let refused = check(&one(1 << 60), false).expect_err("an exbibyte");
        assert!(refused.there < 1 << 60 && refused.wanted == (1 << 60) + 1);
        let told = refused.to_string();
        assert!(
            told.starts_with("pool_bytes (1) and ports_bytes_max (1152921504606846976) come to"),
            "{told}"
        );
    }

    #[test]
    fn the_available_memory_is_no_more_than_the_machine_has() {
        let there = available_memory().expect("every Linux reports it");
        assert!(0 < there && there < 1 << 60, "{there}");
    }

    #[test]
    fn a_control_group_leaves_what_it_does_not_use_and_could_push_out() {
        let group = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| std::fs::write(group.path().join(file), text).expect("a file");
        assert_eq!(left_in(group.path()), None, "no such controller");
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        assert_eq!(left_in(group.path()), Some(300));
        write("memory.stat", "anon 5\ninactive_file 200\nactive_file 9\n");
        assert_eq!(left_in(group.path()), Some(500));
        write("memory.max", "max\n");
        assert_eq!(left_in(group.path()), None);
    }
}

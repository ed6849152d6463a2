//! `portcullis doctor`: what of all that a permission rests on holds on the device at hand.

mod device;
mod told;

use clap::Args;
use device::Device;
use indicatif::{ProgressBar, ProgressStyle};
use portcullis::Mechanism;
use portcullis_nic::examination::{Examination, Verdict, names, rests_on};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  portcullis doctor                     an RDMA device of this machine, else the software NIC
  portcullis doctor --device software   the software NIC: everything holds there
  portcullis doctor --json | jq -r '.guarantees[] | select(.verdict == \"broken\") | .name'

Each guarantee is tried with real queue pairs, regions and windows, in loopback on the device;
nothing that is on it already is touched. What a device is known not to survive is not done to it.
A line says `holds`, or `does not hold` with what that means for you and what to do, or `not tried`
and why. Then come the times of some steps, and the mechanism that `serve` takes by itself.

JSON: {\"device\", \"guarantees\": [{\"name\", \"verdict\", \"detail\"}], \"times\": [{\"name\",
\"median_us\", \"least_us\", \"most_us\", \"rounds\"}], \"mechanism\"}. A verdict is \"holds\", \"broken\"
or \"untried\". A step that could not be measured is not among the times.

Exit codes: 0 all that the mechanism rests on holds; 1 something is broken that memory windows
rest on, or the mechanism does; 2 the call was wrong; 3 the machine refused.";

/// What to examine.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The device, by its name, or `software` [default: an RDMA device if there is one, else `software`].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The device's port, from one [default: the one with a link].
    #[arg(long, value_name = "N")]
    device_port: Option<u8>,
    /// The index of the port's address [default: RoCE v2 over IPv4, if there is one].
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Examines a device.
pub fn run(options: &Options) -> ExitCode {
    let device = match Device::choose(options.device.as_deref(), options.device_port, options.gid_index) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("portcullis doctor: {error}");
            return ExitCode::from(2);
        }
    };
    let bar = progress();
    let examined = device.examine(|finding| {
        if !options.json {
            bar.suspend(|| told::finding(finding));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    match examined {
        Ok(examination) => report(&examination, options.json),
        Err(error) => {
            eprintln!("portcullis doctor: {device}: {error}");
            ExitCode::from(3)
        }
    }
}

/// On standard error, and only on a terminal.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} guarantees tried, {elapsed}");
    let bar = ProgressBar::new(names().len() as u64);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn report(examination: &Examination, json: bool) -> ExitCode {
    if json {
        told::json(examination);
    } else {
        told::times(examination);
        told::mechanism(examination);
    }
    let code = code(examination);
    if code == REFUSED {
        let reason = examination.findings.first().map_or("", |finding| &finding.detail);
        eprintln!("portcullis doctor: {}: nothing could be tried: {reason}", examination.device);
    }
    ExitCode::from(code)
}

/// The machine refused: the exit code for that.
const REFUSED: u8 = 3;

fn code(examination: &Examination) -> u8 {
    if examination.findings.iter().all(|finding| finding.verdict == Verdict::Untried) {
        return REFUSED;
    }
    let (mechanism, _) = examination.mechanism();
    let missing = |guarantee| examination.capabilities.unenforced.contains(guarantee);
    let sound = examination.broken(Mechanism::MemoryWindow).next().is_none()
        && examination.broken(mechanism).next().is_none()
        && !rests_on(mechanism).iter().any(missing);
    u8::from(!sound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_nic::Guarantee;

    /// The software NIC's, with some findings changed.
    fn examination(name: &str, verdict: Verdict, unenforced: &[Guarantee]) -> Examination {
        let mut examination = Device::Software.examine(|_| {}).expect("it is there");
        for finding in &mut examination.findings {
            if finding.name == name || name == "*" {
                finding.verdict = verdict;
            }
        }
        examination.capabilities.unenforced = unenforced.to_vec();
        examination
    }

    #[test]
    fn only_what_windows_or_the_mechanism_rest_on_is_an_error() {
        use Guarantee::{RegionRange, WindowRange};
        let broken = |name, unenforced: &[_]| code(&examination(name, Verdict::Broken, unenforced));
        assert_eq!(broken("", &[]), 0);
        assert_eq!(broken("range-window-1", &[WindowRange]), 1);
        assert_eq!(broken("many-binds", &[]), 1);
        assert_eq!(broken("range-region", &[RegionRange]), 0);
        assert_eq!(broken("window-count", &[]), 0);
    }

    #[test]
    fn a_device_without_windows_is_sound_if_its_regions_are() {
        use Guarantee::{QueuePairRights, RegionRange};
        let mut examination = examination("range-window-1", Verdict::Untried, &[]);
        examination.capabilities.window_type_1 = false;
        assert_eq!((code(&examination), examination.mechanism().0), (0, Mechanism::MemoryRegion));
        examination.capabilities.unenforced = vec![RegionRange];
        assert_eq!((code(&examination), examination.mechanism().0), (0, Mechanism::Rpc));
        examination.capabilities.unenforced = vec![RegionRange, QueuePairRights];
        assert_eq!(code(&examination), 1);
    }

    #[test]
    fn a_device_on_which_nothing_could_be_tried_is_the_machines_fault() {
        assert_eq!(code(&examination("*", Verdict::Untried, &[])), REFUSED);
    }
}

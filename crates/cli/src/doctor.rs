//! `portcullis doctor`: examines which of the guarantees that permissions need hold on a device.

mod device;
mod told;
mod udp;

use crate::network::{DeviceOptions, NicKind};
use crate::output::complain;
use clap::Args;
use device::{Chosen, Device, NoDevice};
use indicatif::{ProgressBar, ProgressStyle};
use portcullis::Mechanism;
use portcullis_examination::{Examination, Verdict, names, rests_on};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  portcullis doctor                     # the only RDMA device of this machine
  portcullis doctor --device mlx5_0
  portcullis doctor --nic software      # all guarantees hold there
  portcullis doctor --nic udp           # region keys, and the support for UDP
  portcullis doctor --nic software --json \\
      | jq -r '.guarantees[] | select(.verdict == \"broken\") | .name'

The first line names the device, the reason for the choice, and the guarantees.
Each guarantee is tried with real queue pairs, regions and windows, in loopback
on the device; existing objects on the device are not touched. Steps that a
device is known not to survive are left out. Each line has `holds`, or `does not
hold` with the consequence and the remedy, or `not tried` with the reason. The
times of some steps follow, and the mechanism that `serve` uses by default.

JSON: {\"device\", \"chosen\", \"guarantees\": [{\"name\", \"verdict\", \"detail\"}],
\"times\": [{\"name\", \"median_us\", \"least_us\", \"most_us\", \"rounds\"}],
\"mechanism\"}. A verdict is \"holds\", \"broken\" or \"untried\". A step that could
not be measured is not among the times.

Exit codes: 0 all guarantees that the mechanism needs hold; 1 a guarantee that
memory windows or the mechanism need is broken; 2 the call was wrong; 3 the
machine refused; 4 nothing was tried: no device, or nothing could be tried.";

/// The device to examine, and how.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorOptions {
    /// The NIC to examine.
    #[arg(long, value_enum, default_value_t = NicKind::Ibverbs)]
    nic: NicKind,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Examines a device.
pub fn run(options: &DoctorOptions) -> ExitCode {
    if options.nic == NicKind::Udp {
        return udp::run(options.json);
    }
    let chosen = match Device::choose(options.nic, &options.device) {
        Ok(chosen) => chosen,
        Err(error) => {
            complain(format_args!("portcullis doctor: {error}"));
            return ExitCode::from(if matches!(error, NoDevice::None { .. }) { NOTHING_TRIED } else { 2 });
        }
    };
    if !options.json {
        told::subject(&chosen);
    }
    let bar = progress();
    let examined = chosen.device.examine(|finding| {
        if !options.json {
            bar.suspend(|| told::finding(finding));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    match examined {
        Ok(examination) => report(&chosen, &examination, options.json),
        Err(error) => {
            complain(format_args!("portcullis doctor: {}: {error}", chosen.device));
            ExitCode::from(3)
        }
    }
}

/// A progress bar on standard error, on terminals only.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} guarantees tried, {elapsed}");
    let bar = ProgressBar::new(names().len() as u64);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn report(chosen: &Chosen, examination: &Examination, json: bool) -> ExitCode {
    if json {
        told::json(chosen, examination);
    } else {
        told::times(examination);
        told::mechanism(examination);
    }
    let code = code(examination);
    if code == NOTHING_TRIED {
        let reason = examination.findings.first().map_or("", |finding| &finding.detail);
        complain(format_args!("portcullis doctor: {}: nothing could be tried: {reason}", examination.device));
    }
    ExitCode::from(code)
}

/// The exit code if nothing was tried.
const NOTHING_TRIED: u8 = 4;

fn code(examination: &Examination) -> u8 {
    if examination.findings.iter().all(|finding| finding.verdict == Verdict::Untried) {
        return NOTHING_TRIED;
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

    /// The software NIC's examination, with some findings changed.
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
        let capabilities = &mut examination.capabilities;
        (capabilities.window_type_1, capabilities.window_type_2) = (false, false);
        assert_eq!((code(&examination), examination.mechanism().0), (0, Mechanism::MemoryRegion));
        examination.capabilities.unenforced = vec![RegionRange];
        assert_eq!((code(&examination), examination.mechanism().0), (0, Mechanism::NodeCopy));
        examination.capabilities.unenforced = vec![RegionRange, QueuePairRights];
        assert_eq!(code(&examination), 1);
    }

    #[test]
    fn a_device_on_which_nothing_could_be_tried_proves_nothing() {
        assert_eq!(code(&examination("*", Verdict::Untried, &[])), NOTHING_TRIED);
    }
}

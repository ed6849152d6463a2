//! The choice of the device to examine.

use crate::network::{DeviceOptions, NicKind};
use portcullis_examination::{Examination, Finding, examine};
use portcullis_ibverbs::{DeviceChoice, DeviceSummary, IbNic, WorkRequests, devices};
use portcullis_nic::VerbsError;
use portcullis_softnic::SoftNic;
use std::fmt;

/// A device to examine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// The software NIC.
    Software,
    /// The RDMA device of this name, with this port and address.
    Rdma(DeviceChoice),
}

/// A device, and why it was chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// The device.
    pub device: Device,
    /// The reason, in a few words.
    pub reason: &'static str,
}

/// A reason why no device is examined.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDevice {
    /// There is no device.
    #[error(
        "no RDMA device on this machine{why}: nothing was tried. `portcullis doctor --nic software` tries the software \
         NIC, where everything holds"
    )]
    None {
        /// The message of libibverbs, after a colon.
        why: String,
    },
    /// There is no device of that name, or the choice is ambiguous.
    #[error("{problem}: there is {}", there.join(", "))]
    Unclear {
        /// The problem.
        problem: String,
        /// The devices of the machine.
        there: Vec<String>,
    },
    /// The software NIC has no such options.
    #[error("--nic software has no --device, --device-port or --gid-index: leave them out, or --nic")]
    Software,
}

impl Device {
    /// The device that the options name. Without a name: the only RDMA device of this machine.
    pub fn choose(nic: NicKind, asked: &DeviceOptions) -> Result<Chosen, NoDevice> {
        if nic == NicKind::Software {
            let DeviceOptions { device, device_port, gid_index } = asked;
            let said = device.is_some() || device_port.is_some() || gid_index.is_some();
            let chosen = Chosen { device: Self::Software, reason: "chosen with --nic software" };
            return if said { Err(NoDevice::Software) } else { Ok(chosen) };
        }
        let (found, why) = match devices() {
            Ok(found) => (found.into_iter().map(|DeviceSummary { name, .. }| name).collect(), String::new()),
            Err(error) => (Vec::new(), format!(" ({error})")),
        };
        let (name, reason) = Self::choose_among(found, why, asked.device.as_deref())?;
        let choice = DeviceChoice { device: Some(name), ..asked.choice() };
        Ok(Chosen { device: Self::Rdma(choice), reason })
    }

    fn choose_among(
        there: Vec<String>,
        why: String,
        named: Option<&str>,
    ) -> Result<(String, &'static str), NoDevice> {
        match (named, &there[..]) {
            (_, []) => Err(NoDevice::None { why }),
            (Some(name), devices) if devices.iter().any(|device| device == name) => {
                Ok((name.to_owned(), "named with --device"))
            }
            (Some(name), _) => {
                Err(NoDevice::Unclear { problem: format!("there is no device {name:?}"), there })
            }
            (None, [only]) => Ok((only.clone(), "the only RDMA device of this machine")),
            (None, _) => {
                let problem = "there are several devices, name one with --device".to_owned();
                Err(NoDevice::Unclear { problem, there })
            }
        }
    }

    /// Examines the device.
    pub fn examine(&self, progress: impl FnMut(&Finding)) -> Result<Examination, VerbsError> {
        match self {
            Self::Software => examine(|| Ok(SoftNic::self_driven()), progress),
            Self::Rdma(choice) => examine(|| Ok(IbNic::open(choice, WorkRequests::default())?), progress),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Software => f.write_str("the software NIC"),
            Self::Rdma(choice) => f.write_str(choice.device.as_deref().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(there: &[&str], named: Option<&str>) -> Result<(String, &'static str), NoDevice> {
        let there = there.iter().map(ToString::to_string).collect();
        Device::choose_among(there, ": no libibverbs".to_owned(), named)
    }

    #[test]
    fn the_only_device_needs_no_name_and_says_that_it_is_the_only_one() {
        let (name, reason) = chosen(&["mlx5_0"], None).expect("a device");
        assert_eq!((name.as_str(), reason), ("mlx5_0", "the only RDMA device of this machine"));
        let (name, reason) = chosen(&["mlx5_0", "mlx5_1"], Some("mlx5_1")).expect("a device");
        assert_eq!((name.as_str(), reason), ("mlx5_1", "named with --device"));
    }

    #[test]
    fn what_is_unclear_is_listed() {
        for named in [None, Some("mlx4_0")] {
            let said = chosen(&["mlx5_0", "mlx5_1"], named).expect_err("unclear").to_string();
            assert!(said.ends_with("there is mlx5_0, mlx5_1"), "{said}");
        }
    }

    #[test]
    fn without_a_device_the_software_nic_is_offered_and_not_taken() {
        for named in [None, Some("mlx5_0")] {
            let said = chosen(&[], named).expect_err("none").to_string();
            assert!(
                said.contains("no libibverbs: nothing was tried") && said.contains("--nic software"),
                "{said}"
            );
        }
        let asked = DeviceOptions { device: Some("mlx5_0".to_owned()), ..DeviceOptions::default() };
        assert_eq!(Device::choose(NicKind::Software, &asked), Err(NoDevice::Software));
    }
}

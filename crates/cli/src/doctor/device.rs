//! Which device is meant.

use portcullis_ibverbs::{DeviceChoice, DeviceSummary, IbNic, WorkRequests, devices};
use portcullis_nic::VerbsError;
use portcullis_nic::examination::{Examination, Finding, examine};
use portcullis_softnic::SoftNic;
use std::fmt;

/// The name of the NIC that every machine has.
const SOFTWARE: &str = "software";

/// A device to examine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// The software NIC.
    Software,
    /// The RDMA device of this name, with this port and address.
    Rdma(DeviceChoice),
}

/// There is no such device, or it is not clear which one is meant.
#[derive(Debug, thiserror::Error)]
#[error("{problem}: there is {}", there.join(", "))]
pub struct Unclear {
    problem: String,
    there: Vec<String>,
}

impl Device {
    /// The device of this name; without one, the machine's RDMA device, or the software NIC where there is none.
    pub fn choose(named: Option<&str>, port: Option<u8>, gid_index: Option<u8>) -> Result<Self, Unclear> {
        // Without libibverbs there are no others.
        let found = devices().unwrap_or_default();
        let found = found.into_iter().map(|DeviceSummary { name, .. }| name).collect();
        Ok(match Self::choose_among(found, named)? {
            Self::Software => Self::Software,
            Self::Rdma(choice) => Self::Rdma(DeviceChoice { port, gid_index, ..choice }),
        })
    }

    fn choose_among(rdma: Vec<String>, named: Option<&str>) -> Result<Self, Unclear> {
        let unclear = |problem: String| {
            let there = rdma.iter().cloned().chain([SOFTWARE.to_owned()]).collect();
            Err(Unclear { problem, there })
        };
        match (named, &rdma[..]) {
            (Some(SOFTWARE), _) | (None, []) => Ok(Self::Software),
            (Some(name), devices) if devices.iter().any(|device| device == name) => Ok(Self::rdma(name)),
            (Some(name), _) => unclear(format!("there is no device {name:?}")),
            (None, [only]) => Ok(Self::rdma(only)),
            (None, _) => unclear("there are several devices, name one with --device".to_owned()),
        }
    }

    fn rdma(name: &str) -> Self {
        Self::Rdma(DeviceChoice { device: Some(name.to_owned()), ..DeviceChoice::default() })
    }

    /// Examines it.
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
            Self::Software => f.write_str(SOFTWARE),
            Self::Rdma(choice) => f.write_str(choice.device.as_deref().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(rdma: &[&str], named: Option<&str>) -> Result<Device, String> {
        let rdma = rdma.iter().map(ToString::to_string).collect();
        Device::choose_among(rdma, named).map_err(|unclear| unclear.to_string())
    }

    #[test]
    fn the_only_rdma_device_comes_before_the_software_nic() {
        assert_eq!(chosen(&[], None), Ok(Device::Software));
        assert_eq!(chosen(&["mlx5_0"], None), Ok(Device::rdma("mlx5_0")));
        assert_eq!(chosen(&["mlx5_0"], Some("software")), Ok(Device::Software));
        assert_eq!(chosen(&["mlx5_0", "mlx5_1"], Some("mlx5_1")), Ok(Device::rdma("mlx5_1")));
    }

    #[test]
    fn what_is_unclear_is_listed() {
        for named in [None, Some("mlx4_0")] {
            let said = chosen(&["mlx5_0", "mlx5_1"], named).expect_err("unclear");
            assert!(said.ends_with("there is mlx5_0, mlx5_1, software"), "{said}");
        }
    }
}

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
    /// The RDMA device of this name.
    Rdma(String),
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
    pub fn choose(named: Option<&str>) -> Result<Self, Unclear> {
        // Without libibverbs there are no others.
        let found = devices().unwrap_or_default();
        Self::choose_among(found.into_iter().map(|DeviceSummary { name, .. }| name).collect(), named)
    }

    fn choose_among(rdma: Vec<String>, named: Option<&str>) -> Result<Self, Unclear> {
        let unclear = |problem: String| {
            let there = rdma.iter().cloned().chain([SOFTWARE.to_owned()]).collect();
            Err(Unclear { problem, there })
        };
        match (named, &rdma[..]) {
            (Some(SOFTWARE), _) | (None, []) => Ok(Self::Software),
            (Some(name), devices) if devices.iter().any(|device| device == name) => {
                Ok(Self::Rdma(name.to_owned()))
            }
            (Some(name), _) => unclear(format!("there is no device {name:?}")),
            (None, [only]) => Ok(Self::Rdma(only.clone())),
            (None, _) => unclear("there are several devices, name one with --device".to_owned()),
        }
    }

    /// Examines it.
    pub fn examine(&self, progress: impl FnMut(&Finding)) -> Result<Examination, VerbsError> {
        match self {
            Self::Software => examine(|| Ok(SoftNic::self_driven()), progress),
            Self::Rdma(name) => {
                let choice = DeviceChoice { device: Some(name.clone()), ..DeviceChoice::default() };
                examine(|| Ok(IbNic::open(&choice, WorkRequests::default())?), progress)
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Software => f.write_str(SOFTWARE),
            Self::Rdma(name) => f.write_str(name),
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
        assert_eq!(chosen(&["mlx5_0"], None), Ok(Device::Rdma("mlx5_0".to_owned())));
        assert_eq!(chosen(&["mlx5_0"], Some("software")), Ok(Device::Software));
        assert_eq!(chosen(&["mlx5_0", "mlx5_1"], Some("mlx5_1")), Ok(Device::Rdma("mlx5_1".to_owned())));
    }

    #[test]
    fn what_is_unclear_is_listed() {
        for named in [None, Some("mlx4_0")] {
            let said = chosen(&["mlx5_0", "mlx5_1"], named).expect_err("unclear");
            assert!(said.ends_with("there is mlx5_0, mlx5_1, software"), "{said}");
        }
    }
}

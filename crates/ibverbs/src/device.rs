//! The choice of a device, one of its ports, and one of that port's addresses.

use crate::sys::bindings::{
    IBV_ATOMIC_GLOB, IBV_ATOMIC_HCA, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE,
};
use crate::sys::{Context, DeviceList, NoLibrary, Route, library};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::{AtomicScope, VerbsError};
use std::fmt::{self, Write};
use std::net::Ipv6Addr;
use std::sync::Arc;

/// READs and atomics that a queue pair may have under way in each direction, unless the device supports fewer.
const READS_MAX: u8 = 16;
/// Number of entries of a GID table that are read.
const GIDS_MAX: u32 = 256;
/// The kernel's numbers of the kinds of GID (`enum ibv_gid_type`).
const ROCE_V1: u32 = 1;
const ROCE_V2: u32 = 2;

/// The device to open. Fields that are not given are chosen: the only active port, and that address of it that reaches
/// furthest (RoCE v2 over IPv4, then over IPv6, then an address that only the link knows).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device's name, as `ibv_devices` lists it.
    pub device: Option<String>,
    /// The port, from one.
    pub port: Option<u8>,
    /// The index in the port's GID table.
    pub gid_index: Option<u8>,
}

/// The reason for which no device was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// This machine has no libibverbs.
    #[error(transparent)]
    NoLibrary(#[from] NoLibrary),
    /// No device was found, or several to choose from. The text lists the devices found.
    #[error("{problem}. {found}")]
    Choice {
        /// The problem of the choice.
        problem: String,
        /// The devices that were found.
        found: String,
    },
    /// The machine refuses to open the device.
    #[error("cannot open {device}: {reason}")]
    Machine {
        /// The device.
        device: String,
        /// The machine's error.
        reason: String,
    },
}

impl Coded for OpenError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoLibrary(error) => error.code(),
            Self::Choice { .. } => ErrorCode::DeviceChoice,
            Self::Machine { .. } => ErrorCode::DeviceUnusable,
        }
    }
}

/// A port's address, and the kind of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address's index in the table.
    pub index: u8,
    /// The address.
    pub gid: [u8; 16],
    /// The kind of packets sent with the address.
    pub kind: GidKind,
}

/// The kind of packets sent with a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: Ethernet, within one subnet.
    RoceV1,
    /// RoCE v2: over UDP.
    RoceV2,
}

impl GidEntry {
    /// A rank of the address: a larger number means that packets reach further.
    fn reach(&self) -> u8 {
        let address = Ipv6Addr::from(self.gid);
        match self.kind {
            GidKind::InfiniBand => 5,
            GidKind::RoceV2 if address.to_ipv4_mapped().is_some() => 4,
            GidKind::RoceV2 if !address.is_unicast_link_local() => 3,
            GidKind::RoceV2 => 2,
            GidKind::RoceV1 => 1,
        }
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.gid);
        let kind = match self.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        match address.to_ipv4_mapped() {
            Some(address) => write!(f, "GID {} {address} ({kind})", self.index),
            None => write!(f, "GID {} {address} ({kind})", self.index),
        }
    }
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port's number, from one.
    pub number: u8,
    /// Whether the port has a link.
    pub active: bool,
    /// The port's addresses.
    pub gids: Vec<GidEntry>,
    lid: u16,
    mtu: u32,
}

/// A device, as it reports itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The device's name.
    pub name: String,
    /// The device's ports.
    pub ports: Vec<Port>,
}

/// Returns the RDMA devices of this machine that can be opened.
///
/// # Errors
/// This machine has no libibverbs.
pub fn devices() -> Result<Vec<DeviceSummary>, NoLibrary> {
    library()?;
    let Ok(list) = DeviceList::new() else { return Ok(Vec::new()) };
    Ok(list.names().into_iter().filter_map(|name| summary(&list, name)).collect())
}

fn summary(list: &DeviceList, name: String) -> Option<DeviceSummary> {
    let context = Context::open(list, &name).ok()??;
    let count = context.device_attributes().ok()?.phys_port_cnt;
    Some(DeviceSummary { name, ports: (1..=count).filter_map(|number| port(&context, number)).collect() })
}

fn port(context: &Context, number: u8) -> Option<Port> {
    let attributes = context.port_attributes(number).ok()?;
    let ethernet = u32::from(attributes.link_layer) == IBV_LINK_LAYER_ETHERNET;
    let count = u32::try_from(attributes.gid_tbl_len).unwrap_or(0).min(GIDS_MAX);
    let gids = (0..count).filter_map(|index| {
        let entry = context.gid_entry(number, index)?;
        let gid = crate::sys::gid_bytes(&entry.gid);
        let kind = match entry.gid_type {
            ROCE_V2 => GidKind::RoceV2,
            ROCE_V1 => GidKind::RoceV1,
            _ if ethernet => GidKind::RoceV1,
            _ => GidKind::InfiniBand,
        };
        (gid != [0; 16]).then_some(GidEntry { index: u8::try_from(index).ok()?, gid, kind })
    });
    Some(Port {
        number,
        active: attributes.state == IBV_PORT_ACTIVE,
        gids: gids.collect(),
        lid: attributes.lid,
        mtu: attributes.active_mtu,
    })
}

/// Lists the devices as text, a line for each port.
fn listed(devices: &[DeviceSummary]) -> String {
    if devices.is_empty() {
        return "This machine has no RDMA device: `ibv_devices` lists none".to_owned();
    }
    let mut text = "There is:".to_owned();
    for device in devices {
        for port in &device.ports {
            let link = if port.active { "active" } else { "no link" };
            let gids: Vec<String> = port.gids.iter().map(ToString::to_string).collect();
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {} port {}, {link}: {}", device.name, port.number, gids.join(", "));
        }
    }
    text
}

/// Returns the device, the port and the GID that a choice stands for.
pub(crate) fn choose(
    devices: &[DeviceSummary],
    choice: &DeviceChoice,
) -> Result<(String, Port, GidEntry), OpenError> {
    let wrong = |problem: String| OpenError::Choice { problem, found: listed(devices) };
    if let Some(name) = &choice.device
        && !devices.iter().any(|device| device.name == *name)
    {
        return Err(wrong(format!("there is no RDMA device {name:?}")));
    }
    let named =
        devices.iter().filter(|device| choice.device.as_ref().is_none_or(|name| device.name == *name));
    let ports = named.flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let ports: Vec<_> =
        ports.filter(|(_, port)| choice.port.map_or(port.active, |number| port.number == number)).collect();
    let (device, port) = match ports[..] {
        [only] => only,
        [] if choice.port.is_some() => return Err(wrong("there is no such port".to_owned())),
        [] => return Err(wrong("no RDMA device has a port with a link".to_owned())),
        // If the configuration names the device, the first port is the usual choice.
        [first, ..] if choice.device.is_some() => first,
        _ => return Err(wrong("there are several RDMA devices: name one".to_owned())),
    };
    let gid = match choice.gid_index {
        Some(index) => port.gids.iter().find(|gid| gid.index == index),
        // The reversal makes the first of the best addresses win.
        None => port.gids.iter().rev().max_by_key(|gid| gid.reach()),
    };
    let gid = gid.ok_or_else(|| {
        let which = choice.gid_index.map_or("any GID".to_owned(), |index| format!("GID {index}"));
        wrong(format!("port {} of {} does not have {which}", port.number, device.name))
    })?;
    Ok((device.name.clone(), port.clone(), *gid))
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub window_type_1: bool,
    pub window_type_2: bool,
    pub atomics: AtomicScope,
    pub windows_max: u32,
    pub send_depth_max: u32,
    pub completion_depth_max: u32,
    pub vendor: u32,
    pub part: u32,
}

/// A device that was opened, and the address at which peers reach it.
pub(crate) struct Opened {
    pub context: Arc<Context>,
    pub name: String,
    pub route: Route,
    pub gid: [u8; 16],
    pub lid: u16,
    pub limits: Limits,
}

pub(crate) fn open(choice: &DeviceChoice) -> Result<Opened, OpenError> {
    let (device, port, gid) = choose(&devices()?, choice)?;
    let failed =
        |error: std::io::Error| OpenError::Machine { device: device.clone(), reason: error.to_string() };
    let list = DeviceList::new().map_err(failed)?;
    let context = Context::open(&list, &device).map_err(failed)?;
    let context = context.ok_or_else(|| failed(std::io::Error::other("it is gone")))?;
    let said = context.device_attributes().map_err(failed)?;
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    let atomics = match said.atomic_cap {
        IBV_ATOMIC_HCA => AtomicScope::Nic,
        IBV_ATOMIC_GLOB => AtomicScope::System,
        _ => AtomicScope::None,
    };
    let flags = said.device_cap_flags;
    let limits = Limits {
        window_type_1: flags & IBV_DEVICE_MEM_WINDOW != 0,
        window_type_2: flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0,
        atomics,
        windows_max: number(said.max_mw),
        send_depth_max: number(said.max_qp_wr),
        completion_depth_max: number(said.max_cqe),
        vendor: said.vendor_id,
        part: said.vendor_part_id,
    };
    let reads_max = u8::try_from(said.max_qp_rd_atom).unwrap_or(READS_MAX).min(READS_MAX);
    let route = Route { port: port.number, gid_index: gid.index, mtu: port.mtu, reads_max };
    Ok(Opened { context, name: device, route, gid: gid.gid, lid: port.lid, limits })
}

impl From<OpenError> for VerbsError {
    fn from(error: OpenError) -> Self {
        Self::Machine(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, kind: GidKind, address: &str) -> GidEntry {
        GidEntry { index, gid: address.parse::<Ipv6Addr>().expect("an address").octets(), kind }
    }

    fn device(name: &str, links: &[bool]) -> DeviceSummary {
        let gids = vec![
            gid(0, GidKind::RoceV1, "fe80::1"),
            gid(1, GidKind::RoceV2, "fe80::1"),
            gid(2, GidKind::RoceV1, "::ffff:10.0.0.1"),
            gid(3, GidKind::RoceV2, "::ffff:10.0.0.1"),
            gid(5, GidKind::RoceV2, "::ffff:10.0.0.2"),
        ];
        let port = |(number, &active)| Port { number, active, gids: gids.clone(), lid: 0, mtu: 3 };
        DeviceSummary { name: name.to_owned(), ports: (1..).zip(links).map(port).collect() }
    }

    fn chosen(devices: &[DeviceSummary], choice: DeviceChoice) -> Result<(String, u8, u8), String> {
        let chosen = choose(devices, &choice).map_err(|error| error.to_string())?;
        Ok((chosen.0, chosen.1.number, chosen.2.index))
    }

    #[test]
    fn the_only_port_with_a_link_is_chosen_and_its_routable_address() {
        let devices = [device("mlx5_0", &[false, true]), device("mlx5_1", &[false])];
        let found = chosen(&devices, DeviceChoice::default());
        assert_eq!(found, Ok(("mlx5_0".to_owned(), 2, 3)));
    }

    #[test]
    fn what_is_named_is_taken() {
        let devices = [device("mlx5_0", &[true]), device("mlx5_1", &[true, true])];
        let choice = DeviceChoice { device: Some("mlx5_1".to_owned()), port: Some(2), gid_index: Some(1) };
        assert_eq!(chosen(&devices, choice), Ok(("mlx5_1".to_owned(), 2, 1)));
        let choice = DeviceChoice { device: Some("mlx5_1".to_owned()), ..DeviceChoice::default() };
        assert_eq!(chosen(&devices, choice), Ok(("mlx5_1".to_owned(), 1, 3)));
    }

    #[test]
    fn what_cannot_be_chosen_is_listed() {
        let devices = [device("mlx5_0", &[true]), device("mlx5_1", &[true])];
        let several = chosen(&devices, DeviceChoice::default()).expect_err("two links");
        assert!(several.contains("name one") && several.contains("mlx5_0 port 1, active"), "{several}");
        let named = |device: Option<&str>, port, gid_index| DeviceChoice {
            device: device.map(str::to_owned),
            port,
            gid_index,
        };
        let cases = [
            (named(Some("mlx4_0"), None, None), "no RDMA device \"mlx4_0\""),
            (named(Some("mlx5_0"), Some(9), None), "no such port"),
            (named(Some("mlx5_0"), None, Some(77)), "does not have GID 77"),
        ];
        for (choice, problem) in cases {
            let said = chosen(&devices, choice).expect_err(problem);
            assert!(said.contains(problem) && said.contains("GID 3 10.0.0.1 (RoCE v2)"), "{said}");
        }
        let none = chosen(&[], DeviceChoice::default()).expect_err("no device");
        assert!(none.contains("no RDMA device"), "{none}");
        let down = chosen(&[device("mlx5_0", &[false])], DeviceChoice::default()).expect_err("no link");
        assert!(down.contains("no link"), "{down}");
    }
}

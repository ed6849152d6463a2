//! The output of a node when it listens: a line for people, or one JSON object for programs.

use super::{ListenAddress, ServeOptions};
use portcullis::host::Host;
use portcullis::{Address, Mechanism};
use portcullis_program::output::{print_json, say};
use portcullis_program::sockets::audience;
use serde::Serialize;
use std::net::SocketAddr;

/// The output of `--json`.
#[derive(Serialize)]
struct Listening {
    listening: Vec<String>,
    process: u32,
    protection: String,
    /// The guarantees that the protection needs and the device does not give.
    unenforced: Vec<&'static str>,
    sockets: Vec<Socket>,
    /// Bytes for the ports of all clients, if the node provides the ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    ports_memory: Option<u64>,
    /// Number of tenants that the node's locked memory is enough for, if it is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenants_max: Option<u64>,
}

/// A socket, and the users who may open it.
#[derive(Serialize)]
struct Socket {
    path: String,
    mode: String,
    open_to: String,
}

impl ServeOptions {
    /// Whether clients of this machine attach at sockets: the node provides their ports.
    fn has_sockets(&self) -> bool {
        self.listen.iter().any(|listen_address| listen_address.socket().is_some())
    }

    /// The mechanism that enforces permissions. For clients over UDP it is always region keys.
    fn protection_of(&self, host: &Host) -> String {
        let (region_key, other) = (Mechanism::RegionKey.name(), host.mechanism().name());
        let over_udp = self.listen.iter().filter(|listen_address| listen_address.is_over_udp()).count();
        match over_udp {
            0 => other.to_owned(),
            all if all == self.listen.len() => region_key.to_owned(),
            _ => format!("{other}, over UDP {region_key}"),
        }
    }

    /// The addresses in the order of the command line, each with its bound address if it is on a network.
    pub fn bound(&self, host: &Host) -> Vec<(&ListenAddress, Option<SocketAddr>)> {
        let over_udp = self.listen.iter().filter(|listen_address| listen_address.is_over_udp()).count();
        // The node lists the addresses over UDP last.
        let got = host.network_addresses();
        let (on_device, over_udp) = got.split_at(got.len() - over_udp);
        let (mut on_device, mut over_udp) = (on_device.iter().copied(), over_udp.iter().copied());
        let mut got = |listen_address: &ListenAddress| match listen_address.address {
            Address::Shm(_) => None,
            Address::Udp(_) => over_udp.next(),
            #[allow(unreachable_patterns, reason = "a build without RDMA has no other addresses")]
            _ => on_device.next(),
        };
        self.listen.iter().map(|listen_address| (listen_address, got(listen_address))).collect()
    }

    /// The bound addresses, in the order of the command line.
    fn addresses(&self, host: &Host) -> Vec<String> {
        self.bound(host).into_iter().map(|(listen_address, got)| listen_address.written(got)).collect()
    }

    /// The sockets, each with the users who may open it.
    fn audiences(&self) -> Vec<Socket> {
        let listens = self.listen.iter().filter_map(ListenAddress::socket);
        let told = listens.map(|listen| {
            let access = self.sockets.sockets().access(&listen);
            let (path, mode) = (listen.path.display().to_string(), format!("{:04o}", access.mode));
            Socket { path, mode, open_to: audience(&listen.path, access) }
        });
        told.collect()
    }
}

/// Prints the addresses of a node, the users who may open its sockets, and its protection.
pub fn announce(options: &ServeOptions, host: &Host) {
    let unenforced = host.unenforced().iter().map(|guarantee| guarantee.name()).collect();
    let said = Listening {
        listening: options.addresses(host),
        process: std::process::id(),
        protection: options.protection_of(host),
        unenforced,
        sockets: options.audiences(),
        ports_memory: options.has_sockets().then_some(options.ports_memory),
        tenants_max: host.tenants_max(),
    };
    if options.json {
        print_json(&said);
    } else {
        say(said.in_words(options.memory));
    }
}

impl Listening {
    fn in_words(&self, memory: u64) -> String {
        let without = match &self.unenforced[..] {
            [] => String::new(),
            lacking => format!(" WITHOUT {}, which this device does not keep", lacking.join(", ")),
        };
        let mut words = format!(
            "listening at {}: {} of memory, protected by {}{without}",
            self.listening.join(" and "),
            size_of(memory),
            self.protection
        );
        for socket in &self.sockets {
            words += &format!("\n  {}: mode {}, {}", socket.path, socket.mode, socket.open_to);
        }
        if let Some(bytes) = self.ports_memory {
            words += &format!("\n  up to {} beside it for clients' ports (--ports-memory)", size_of(bytes));
        }
        if let Some(tenants) = self.tenants_max {
            words += &format!(
                "\n  the limit on locked memory is enough for {tenants} tenants at a time (ulimit -l)"
            );
        }
        words
    }
}

fn size_of(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes >> shift << shift == bytes && bytes >> shift > 0);
    whole.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_in_the_largest_unit_that_fits() {
        assert_eq!(size_of(1 << 30), "1 GiB");
        assert_eq!(size_of(3 << 20), "3 MiB");
        assert_eq!(size_of(1000), "1000 B");
    }
}

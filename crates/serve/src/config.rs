//! The configuration of the node's host that the options describe.

use super::{ListenAddress, ServeOptions, Technique};
#[cfg(feature = "rdma")]
use portcullis::host::RdmaConfig;
use portcullis::host::{HostConfig, NetworkListen, UdpConfig};
use portcullis::{Address, ChunkLimits, IdentityError, Reductions};
use portcullis_program::network::node_security;

impl ServeOptions {
    /// The configuration of the host: the fields of single options, and the parts that several options make up.
    pub(super) fn config(&self) -> Result<HostConfig, IdentityError> {
        let mut config = HostConfig {
            listen: self.listen.iter().filter_map(ListenAddress::socket).collect(),
            sockets: self.sockets.sockets(),
            #[cfg(feature = "rdma")]
            rdma: self.rdma()?,
            udp: self.udp()?,
            audit: self.audit.audit.clone(),
            admin: self.admin.admin.clone(),
            ..HostConfig::default()
        };
        self.set_fields(&mut config);
        self.limits.set_fields(&mut config);
        self.audit.set_events(&mut config.node);
        config.node.chunks = self.chunk_limits();
        config.node.reductions = self.reductions();
        config.node.chains = self.uses(Technique::Chains);
        Ok(config)
    }

    fn chunk_limits(&self) -> Option<ChunkLimits> {
        (self.chunks > 0).then(|| ChunkLimits {
            chunks: self.chunks,
            chunk_bytes: self.chunk_bytes,
            client_max: self.chunks_per_client.unwrap_or(self.chunks),
        })
    }

    fn reductions(&self) -> Reductions {
        Reductions {
            delayed_unbinding: self.uses(Technique::DelayedUnbinding),
            contiguity: self.uses(Technique::Contiguity),
            handover: self.uses(Technique::Handover),
        }
    }

    fn uses(&self, technique: Technique) -> bool {
        !self.without.contains(&technique)
    }

    /// The RDMA configuration, if the node listens on RDMA.
    #[cfg(feature = "rdma")]
    fn rdma(&self) -> Result<Option<RdmaConfig>, IdentityError> {
        let addresses = self.listen.iter().filter_map(|listen_address| match &listen_address.address {
            Address::Rdma(address) => Some((address.clone(), listen_address.tenant.clone())),
            Address::Shm(_) | Address::Udp(_) => None,
        });
        let listen = self.network(addresses)?;
        Ok((!listen.is_empty()).then(|| RdmaConfig {
            device: self.device.choice(),
            listen,
            pick_mechanism: self.protection.is_none(),
            allow_unenforced: self.allow_unenforced.clone(),
        }))
    }

    /// The UDP configuration, if the node listens on UDP.
    fn udp(&self) -> Result<Option<UdpConfig>, IdentityError> {
        let addresses = self.listen.iter().filter_map(|listen_address| match &listen_address.address {
            Address::Udp(address) => Some((address.clone(), listen_address.tenant.clone())),
            _ => None,
        });
        let listen = self.network(addresses)?;
        let (regions_max, datagram_max, lanes) = (self.regions, self.datagram_max, self.udp_lanes);
        Ok((!listen.is_empty()).then_some(UdpConfig { listen, regions_max, datagram_max, lanes }))
    }

    /// Addresses at which clients attach over TCP.
    fn network(
        &self,
        addresses: impl Iterator<Item = (String, Option<String>)>,
    ) -> Result<Vec<NetworkListen>, IdentityError> {
        let papers = self.certificates.as_deref().zip(self.name_of_certificate());
        let security = node_security(papers)?;
        let listen = |(address, tenant)| NetworkListen {
            address,
            security: security.clone(),
            plain_anywhere: self.dangerous_no_certificates,
            tenant,
        };
        Ok(addresses.map(listen).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::refusal::NotServed;
    use super::*;
    use clap::Parser;
    use portcullis::host::PortLimits;
    use portcullis::{AuditEvent, Mechanism, NodeConfig};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ServeOptions,
    }

    fn parsed(words: &[&str]) -> ServeOptions {
        let line = ["serve", "--listen", "shm:/a"].iter().chain(words);
        Line::try_parse_from(line).expect("a call").options
    }

    #[test]
    fn without_options_a_node_has_the_librarys_defaults() {
        let config = parsed(&[]).config().expect("no certificates");
        #[cfg(feature = "rdma")]
        assert!(config.rdma.is_none());
        assert_eq!(config.node, NodeConfig::default());
        assert_eq!(config.port, PortLimits::default());
    }

    #[test]
    fn options_reach_the_node() {
        let words =
            ["--protection", "node-copy", "--quota-bytes", "1MiB", "--without", "contiguity,handover"];
        let node = parsed(&words).config().expect("no certificates").node;
        assert_eq!(node.mechanism, Mechanism::NodeCopy);
        assert_eq!(node.quota.bytes_max, 1 << 20);
        let left = Reductions { delayed_unbinding: true, contiguity: false, handover: false };
        assert_eq!(node.reductions, left);
    }

    #[test]
    fn a_node_has_chunks_if_it_is_told_how_many() {
        let node = parsed(&["--chunks", "100", "--quota-chunks", "50"]).config().expect("a node").node;
        let limits = ChunkLimits { chunks: 100, chunk_bytes: 4096, client_max: 100 };
        assert_eq!((node.chunks, node.quota.chunks_max), (Some(limits), 50));
        assert_eq!(parsed(&["--chunk-bytes", "64"]).config().expect("a node").node.chunks, None);
    }

    #[test]
    fn the_events_that_are_written_are_chosen_by_name() {
        let node =
            parsed(&["--audit", "/a", "--audit-events", "violation,bar"]).config().expect("a node").node;
        let chosen = [AuditEvent::Violation, AuditEvent::Bar].into_iter().collect();
        assert_eq!(node.audit_events, chosen);
        let unknown = ["serve", "--listen", "shm:/a", "--audit", "/a", "--audit-events", "grants"];
        assert!(Line::try_parse_from(unknown).is_err());
        assert!(matches!(parsed(&["--audit-events", "grant"]).check(), Err(NotServed::Call(_))));
    }

    #[test]
    fn a_socket_has_one_tenant() {
        let options = parsed(&["--listen", "shm:/a?tenant=orange"]);
        assert!(matches!(options.check(), Err(NotServed::Call(_))));
    }
}

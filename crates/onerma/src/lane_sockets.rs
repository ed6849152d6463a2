//! Sockets of several lanes at one address. The system steers each datagram to one of them.

use crate::packet::LANE_OFFSET;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::AttachReusePortCbpf;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Creates `lanes` sockets at an address. The system steers a datagram by the client that it claims to be of, so that the
/// lanes are evenly loaded and a lane finds what the client has under way in its own processor's cache. The effect of a
/// packet is the same in all lanes, so nothing depends on the claim. Other sockets that join the address get nothing.
///
/// # Errors
/// The system refuses the address, or a feature that the sockets need.
pub(crate) fn bind(address: SocketAddr, lanes: u32) -> io::Result<Vec<UdpSocket>> {
    // A program that has the address already, shared or not, is an error: the first socket does not share it yet.
    let first = UdpSocket::bind(address)?;
    sockopt::set_socket_reuseport(&first, true)?;
    // With port 0 the system has chosen one.
    let local = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..lanes {
        sockets.push(bind_shared(local)?);
    }
    if let Err(error) = steer(&sockets[0], lanes) {
        // The system steers by a hash of the addresses then.
        tracing::info!(%error, "packets over UDP are not steered by client");
    }
    Ok(sockets)
}

fn bind_shared(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    net::bind(&socket, &address)?;
    Ok(socket.into())
}

/// Makes the system call a program for each datagram that returns the number of its socket, in the order in which the
/// sockets were bound. For a datagram that is too short the program returns zero.
fn steer(socket: &UdpSocket, lanes: u32) -> io::Result<()> {
    let instruction = |code: u32, k: u32| sock_filter {
        code: u16::try_from(code).expect("an instruction's code has 16 bits"),
        jt: 0,
        jf: 0,
        k,
    };
    let offset = u32::try_from(LANE_OFFSET).expect("a header is short");
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset),
        instruction(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, lanes),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let length = u16::try_from(program.len()).expect("the program is short");
    let program = sock_fprog { len: length, filter: program.as_mut_ptr() };
    Ok(setsockopt(socket, AttachReusePortCbpf, &program)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::lane_of;
    use std::time::Duration;

    #[test]
    fn a_datagram_arrives_at_the_lane_of_its_client_whichever_socket_sends_it() {
        let sockets = bind(SocketAddr::from(([127, 0, 0, 1], 0)), 3).expect("sockets");
        let to = sockets[0].local_addr().expect("an address");
        for client in [0u64, 1, 2, 3, 255, 256, 1 << 40 | 5] {
            let mut packet = [0; 64];
            packet[LANE_OFFSET..LANE_OFFSET + 8].copy_from_slice(&client.to_le_bytes());
            for _ in 0..4 {
                let sender = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
                sender.send_to(&packet, to).expect("sent");
                let lane = &sockets[lane_of(client, 3)];
                lane.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
                let mut room = [0; 64];
                assert_eq!(lane.recv(&mut room).expect("it arrives there"), packet.len());
                assert_eq!(room, packet);
            }
        }
        let sender = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
        sender.send_to(&[1], to).expect("sent");
        assert_eq!(sockets[0].recv(&mut [0; 8]).expect("a short one arrives at the first"), 1);
    }

    #[test]
    fn an_address_that_another_socket_has_is_refused_also_if_that_one_shares_it() {
        let stranger = bind_shared(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
        let taken = bind(stranger.local_addr().expect("an address"), 2).expect_err("it is taken");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_socket_that_joins_the_address_later_gets_no_datagram() {
        let sockets = bind(SocketAddr::from(([127, 0, 0, 1], 0)), 2).expect("sockets");
        let to = sockets[0].local_addr().expect("an address");
        let joined = bind_shared(to).expect("the system lets programs of one user share an address");
        joined.set_nonblocking(true).expect("a mode");
        let sender = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
        for client in 0..64 {
            sender.send_to(&[client; 64], to).expect("sent");
            let lane = &sockets[lane_of(client.into(), 2)];
            lane.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
            assert_eq!(lane.recv(&mut [0; 64]).expect("it arrives there"), 64);
        }
        let nothing = joined.recv(&mut [0; 64]).expect_err("nothing has arrived");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}

//! Datagrams over quinn: one at a time, there and back.

use super::{BYTES, CLIENT, EXCHANGES, NODE, median, micros};
use portcullis_memory::pin;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivateKeyDer;
use quinn::{ClientConfig, Endpoint, ServerConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// Fewer than of the others: one takes longer.
const DATAGRAMS: usize = EXCHANGES / 4;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Sends back what comes, until the connection ends.
fn echo(server: ServerConfig, tell: &Sender<SocketAddr>) {
    pin(NODE);
    runtime().block_on(async {
        let endpoint = Endpoint::server(server, (Ipv4Addr::LOCALHOST, 0).into()).expect("an endpoint");
        tell.send(endpoint.local_addr().expect("an address")).expect("somebody listens");
        let connection = endpoint.accept().await.expect("a client").await.expect("a connection");
        while let Ok(datagram) = connection.read_datagram().await {
            if connection.send_datagram(datagram).is_err() {
                break;
            }
        }
    });
}

/// The typical round trip of a datagram, in microseconds.
pub fn round_trip() -> f64 {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let server = ServerConfig::with_single_cert(vec![certificate.clone()], key).expect("a server's terms");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("a client's terms");
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || echo(server, &tell));
        let address = told.recv().expect("it listens");
        pin(CLIENT);
        runtime().block_on(async {
            let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("an endpoint");
            endpoint.set_default_client_config(client);
            let connecting = endpoint.connect(address, "localhost").expect("it begins");
            let connection = connecting.await.expect("a connection");
            let mut times = Vec::with_capacity(DATAGRAMS);
            for _ in 0..DATAGRAMS {
                let before = Instant::now();
                connection.send_datagram(vec![7; BYTES].into()).expect("it is small");
                let back = connection.read_datagram().await.expect("it comes back");
                assert_eq!(back.len(), BYTES);
                times.push(micros(before.elapsed()));
            }
            connection.close(0_u32.into(), b"");
            endpoint.wait_idle().await;
            median(times)
        })
    })
}

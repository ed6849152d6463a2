//! A call over iceoryx2's request-response, both ends polling.

use crate::course::BoxError;
use iceoryx2::port::client::Client as Port;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

type Calls = PortFactory<ipc::Service, u64, (), u64, ()>;

/// Both ends name the service after the path of what would be a socket elsewhere: it is unique.
fn service(path: &Path) -> Result<(Node<ipc::Service>, Calls), BoxError> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(|error| format!("{error:?}"))?;
    let name = path.to_string_lossy().into_owned();
    let name: ServiceName = name.as_str().try_into().map_err(|error| format!("{error:?}"))?;
    let calls = node.service_builder(&name).request_response::<u64, u64>().open_or_create();
    Ok((node, calls.map_err(|error| format!("{error:?}"))?))
}

/// Serves until it is told to stop.
pub fn serve(path: &Path, ready: impl FnOnce(), stop: &AtomicBool) -> Result<(), BoxError> {
    let (_node, calls) = service(path)?;
    let server = calls.server_builder().create().map_err(|error| format!("{error:?}"))?;
    ready();
    while !stop.load(Ordering::Relaxed) {
        match server.receive().map_err(|error| format!("{error:?}"))? {
            Some(request) => request.send_copy(*request).map_err(|error| format!("{error:?}"))?,
            None => std::hint::spin_loop(),
        }
    }
    Ok(())
}

/// The calling end.
pub struct Client {
    port: Port<ipc::Service, u64, (), u64, ()>,
    _calls: Calls,
    _node: Node<ipc::Service>,
}

impl Client {
    pub fn open(path: &Path) -> Result<Self, BoxError> {
        let (_node, _calls) = service(path)?;
        let port = _calls.client_builder().create().map_err(|error| format!("{error:?}"))?;
        Ok(Self { port, _calls, _node })
    }

    /// A call with a word alone.
    pub fn word(&mut self, word: u64) -> Result<u64, BoxError> {
        let pending = self.port.send_copy(word).map_err(|error| format!("{error:?}"))?;
        loop {
            match pending.receive().map_err(|error| format!("{error:?}"))? {
                Some(response) => return Ok(*response),
                None => std::hint::spin_loop(),
            }
        }
    }
}

//! The two ends of a benchmark: the node that is started for it, and this end's connection to the node.

use super::BenchError;
use super::node_process::Setup;
use crate::network::{ClientOptions, NicKind};
use clap::Args;
use portcullis::{Mechanism, SessionOptions};

/// Options of both ends.
#[derive(Args, Clone, Debug, Default)]
pub struct Ends {
    /// The NIC of the node that is started for the run.
    #[arg(long, value_enum, default_value_t)]
    pub nic: NicKind,
    #[command(flatten)]
    pub client: ClientOptions,
    /// For that node: accept that its device lacks these guarantees (see `portcullis serve --help`).
    #[arg(long, value_name = "GUARANTEES")]
    allow_unenforced: Option<String>,
}

impl Ends {
    /// The usual options, with a node on this NIC.
    pub fn on(nic: NicKind) -> Self {
        Self { nic, ..Self::default() }
    }

    /// The default options of this end's sessions.
    pub fn session_options(&self) -> Result<SessionOptions, BenchError> {
        Ok(self.client.session()?)
    }

    /// The default settings of the node for the run.
    pub fn setup(&self, protection: Mechanism) -> Setup {
        Setup {
            protection,
            nic: self.nic,
            device: self.client.device.clone(),
            allow_unenforced: self.allow_unenforced.clone(),
            ..Setup::default()
        }
    }
}

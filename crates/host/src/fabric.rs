//! The ways in which clients reach a node: a fabric makes the node's ends of their queue pairs, and destroys them
//! again.
//!
//! A new fabric is an implementation of [`Fabric`] with the [`Driver`] of its NIC, an `AdmissionPolicy` of the crate
//! `attach` for clients in other processes, and a [`LocalAdmission`](crate::LocalAdmission) for clients in the node's
//! own process. The rest is done by the [resident](crate::resident), in the same way for all fabrics.

use crate::engine::{Driver, Engine};
use crate::resident::NodeResident;
use portcullis_memory::Mapping;
use portcullis_nic::{Nic, VerbsError};
use portcullis_node::{Admission, ClientEnds};
use portcullis_softnic::core::copy_units::UnitLoad;
use portcullis_softnic::core::engines::EngineLoad;
use std::fmt::Debug;

/// A fabric. Its functions run on the node's thread, so none of them may wait for longer than a turn of a data engine.
pub(crate) trait Fabric: Debug + Send + Sync + Sized + 'static {
    type Nic: Nic<Memory = Mapping> + Debug + Send + 'static;
    /// The driver of that NIC.
    type Driver: Driver<Nic = Self::Nic>;
    /// The data that a client brings to get its end.
    type Request: Send + 'static;
    /// The data about the node's end that the client needs.
    type Reply: Send + 'static;
    /// The fabric's own objects for a client, beside the node's queue pairs.
    type End: Debug + Send + 'static;
    /// The remains of a destroyed end. Another thread frees them, since that may take long.
    type Leftovers: Debug + Send + 'static;

    /// Makes the node's end of a client, connected to the client's own.
    ///
    /// # Errors
    /// The NIC refuses. No object is left behind on it.
    fn make(
        nic: &mut Self::Nic,
        admission: Admission,
        request: Self::Request,
    ) -> Result<Made<Self>, VerbsError>;

    /// Destroys the fabric's objects for a client. The client is detached from the node already.
    fn destroy(nic: &mut Self::Nic, end: Self::End) -> Option<Self::Leftovers>;

    /// The loads of the threads that the host runs for the NIC.
    fn thread_loads(nic: &mut Self::Nic) -> ThreadLoads {
        let _ = nic;
        ThreadLoads::default()
    }
}

/// The work of the threads that a host runs for its NIC.
#[derive(Debug, Default)]
pub(crate) struct ThreadLoads {
    /// The work of each copy unit.
    pub copy_units: Vec<UnitLoad>,
    /// The work of each engine.
    pub engines: Vec<EngineLoad>,
}

/// The node's end of a client that is not attached yet.
pub(crate) struct Made<F: Fabric> {
    /// The fabric's objects for the client.
    pub end: F::End,
    /// The node's ends of the client's queue pairs. The node owns them from here on.
    pub queue_pairs: ClientEnds,
    /// The data about the node's end that the client needs.
    pub reply: F::Reply,
}

/// The thread of a node on a fabric.
pub(crate) type NodeEngine<F> = Engine<<F as Fabric>::Driver, NodeResident<F>>;

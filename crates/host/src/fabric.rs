//! How clients reach a node: what makes the node's ends of their queue pairs, and destroys them again.
//!
//! A new fabric is an implementation of [`Fabric`] with the [`Driver`] of its NIC, a way to attach for clients in other
//! processes (an `AdmissionPolicy` of the crate `attach`) and one for those in the node's own
//! ([`LocalDoor`](crate::LocalDoor)). The rest is the [resident](crate::resident)'s, the same for all.

use crate::engine::{Driver, Engine};
use crate::resident::NodeResident;
use portcullis_memory::Mapping;
use portcullis_nic::{Nic, VerbsError};
use portcullis_node::{Admission, ClientEnds};
use std::fmt::Debug;

/// A fabric. Its functions run on the node's thread, so none of them may wait.
pub(crate) trait Fabric: Debug + Send + Sync + Sized + 'static {
    type Nic: Nic<Memory = Mapping> + Debug + Send + 'static;
    /// What drives that NIC.
    type Driver: Driver<Nic = Self::Nic>;
    /// What a client brings to get its end.
    type Request: Send + 'static;
    /// What a client has to know of the node's end.
    type Reply: Send + 'static;
    /// What the fabric has for a client beside the node's queue pairs.
    type End: Debug + Send + 'static;
    /// The rest of a destroyed end. Another thread frees it, since that may take long.
    type Leftovers: Debug + Send + 'static;

    /// Makes the node's end of a client, connected to the client's own.
    ///
    /// # Errors
    /// The NIC refuses. Nothing is left behind on it.
    fn make(
        nic: &mut Self::Nic,
        admission: Admission,
        request: Self::Request,
    ) -> Result<Made<Self>, VerbsError>;

    /// Destroys what the fabric has for a client. The client is detached from the node already.
    fn destroy(nic: &mut Self::Nic, end: Self::End) -> Option<Self::Leftovers>;
}

/// The node's end of a client that is not attached yet.
pub(crate) struct Made<F: Fabric> {
    /// What the fabric has for it.
    pub end: F::End,
    /// The node's ends of its queue pairs, which become the node's.
    pub queue_pairs: ClientEnds,
    /// What the client has to know of it.
    pub reply: F::Reply,
}

/// The thread of a node on a fabric.
pub(crate) type NodeEngine<F> = Engine<<F as Fabric>::Driver, NodeResident<F>>;

//! A running node's operator interface: attached clients, barred tenants and clients, and lifting bars.
//!
//! [`Host::admin`](crate::Host::admin) is for programs that contain a node. Other processes use a socket, which
//! [`Admin::at`] connects to. The node opens it at the path in [`HostConfig::admin`](crate::HostConfig::admin).

mod orders;
mod reports;
mod server;
mod socket;

pub use reports::{
    Bar, ClientReport, CopyUnitLoad, Counted, EngineReport, Standing, Turns, UdpLaneLoad, Violations,
};
pub use socket::NoNode;

pub(super) use orders::{Order, OrderOutcome};
pub(super) use server::AdminServer;

use super::audit::AuditWatch;
use super::backend::RunningNode;
pub(crate) use orders::NodeLoad;
use orders::Told;
use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Error of an order that was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The node has ended.
    #[error("the node has ended")]
    Ended,
    /// No node listens at that path, or the node does not answer.
    #[error(transparent)]
    NoNode(#[from] NoNode),
    /// The node refuses the order.
    #[error("the node refuses: {0}")]
    Refused(String),
}

impl Coded for AdminError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Ended => ErrorCode::NodeEnded,
            Self::NoNode(error) => error.code(),
            Self::Refused(_) => ErrorCode::OperatorRefused,
        }
    }
}

#[derive(Clone)]
enum AdminTarget {
    Inside { node: Arc<dyn RunningNode>, audit: Option<AuditWatch> },
    Socket(PathBuf),
}

/// The operator's view of a node.
#[derive(Clone)]
pub struct Admin {
    target: AdminTarget,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match &self.target {
            AdminTarget::Inside { .. } => "a node of this process".to_owned(),
            AdminTarget::Socket(path) => path.display().to_string(),
        };
        f.debug_tuple("Admin").field(&target).finish()
    }
}

impl Admin {
    pub(super) fn inside(node: Arc<dyn RunningNode>, audit: Option<AuditWatch>) -> Self {
        Self { target: AdminTarget::Inside { node, audit } }
    }

    /// Returns a view of the node whose operator socket is at `path`. Nothing is connected yet.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { target: AdminTarget::Socket(path.into()) }
    }

    /// Returns the tenants, by name, and the clients, by number, that are barred or paused now.
    ///
    /// # Errors
    /// The order cannot be sent to the node, or the node does not answer.
    pub fn bars(&self) -> Result<Vec<Bar>, AdminError> {
        match self.order(Order::List)? {
            Told::Bars(bars) => Ok(bars),
            other => Err(beside_the_point(other)),
        }
    }

    /// Lifts the bars and pauses of the tenant called `tenant` and of its clients, as if none of them had ever broken a
    /// rule. Returns whether any bar or pause was lifted.
    ///
    /// # Errors
    /// The order cannot be sent to the node, or the node does not answer.
    pub fn unbar(&self, tenant: &str) -> Result<bool, AdminError> {
        match self.order(Order::Unbar { tenant: tenant.to_owned() })? {
            Told::Unbarred(lifted) => Ok(lifted),
            other => Err(beside_the_point(other)),
        }
    }

    /// Returns the attached clients, by number.
    ///
    /// # Errors
    /// The order cannot be sent to the node, or the node does not answer.
    pub fn clients(&self) -> Result<Vec<ClientReport>, AdminError> {
        match self.order(Order::Clients)? {
            Told::Clients(clients) => Ok(clients),
            other => Err(beside_the_point(other)),
        }
    }

    /// Returns the node's counters and the state of its audit log.
    ///
    /// # Errors
    /// The order cannot be sent to the node, or the node does not answer.
    pub fn counted(&self) -> Result<Counted, AdminError> {
        match self.order(Order::Counters)? {
            Told::Counted(counted) => Ok(*counted),
            other => Err(beside_the_point(other)),
        }
    }

    fn order(&self, order: Order) -> Result<Told, AdminError> {
        match &self.target {
            AdminTarget::Inside { node, audit } => {
                let answer = node.carry_out(order).ok_or(AdminError::Ended)?;
                Ok(answer.told(audit.as_ref().map(AuditWatch::status)))
            }
            AdminTarget::Socket(path) => Ok(socket::ask(path, &order)?),
        }
    }
}

fn beside_the_point(told: Told) -> AdminError {
    AdminError::Refused(match told {
        Told::Refused(reason) => reason,
        _ => "its answer does not fit the request: it is of another version".to_owned(),
    })
}

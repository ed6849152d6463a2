//! A NIC around another NIC: it carries out some verbs in its own way and passes the others on.

use portcullis_nic::{
    Access, Capabilities, ChainNic, Completion, CqId, Event, Nic, PdId, QpAddress, QpAttributes, QpChange,
    QpId, QpState, ReceiveRequest, Region, RegionId, RemoteAddress, VerbsError, Window, WindowId, WindowKind,
    WorkRequest,
};
use std::ops::Range;

/// A NIC whose verbs go through a [`Hook`].
#[derive(Debug, Default)]
pub struct Around<N: Nic, H: Hook<N>> {
    /// The NIC inside. A call to it directly bypasses the hook.
    pub nic: N,
    /// The hook: the verbs that are carried out in another way.
    pub hook: H,
}

impl<N: Nic, H: Hook<N>> Drop for Around<N, H> {
    fn drop(&mut self) {
        self.hook.end(&mut self.nic);
    }
}

/// Makes [`Hook`], and the NIC that calls it, from one list of verbs.
macro_rules! verbs {
    (
        looks { $($look:ident($($shown:ident: $shown_type:ty),*) -> $seen:ty;)* }
        acts { $($act:ident($($given:ident: $given_type:ty),*) -> $said:ty;)* }
    ) => {
        /// Verbs that are carried out in another way than the NIC inside does. A verb that an implementation leaves out
        /// is passed on to the NIC inside.
        ///
        /// ```
        /// use portcullis_examination::{Around, Hook};
        /// use portcullis_nic::{Event, Nic};
        ///
        /// /// Reports no events.
        /// struct Silence;
        ///
        /// impl<N: Nic> Hook<N> for Silence {
        ///     fn poll_event(&mut self, _: &mut N) -> Option<Event> {
        ///         None
        ///     }
        /// }
        ///
        /// fn silent<N: Nic>(nic: N) -> impl Nic {
        ///     Around { nic, hook: Silence }
        /// }
        /// ```
        pub trait Hook<N: Nic> {
            $(
                #[doc = concat!("Carries out [`Nic::", stringify!($look), "`].")]
                fn $look(&self, nic: &N $(, $shown: $shown_type)*) -> $seen {
                    nic.$look($($shown),*)
                }
            )*
            $(
                #[doc = concat!("Carries out [`Nic::", stringify!($act), "`].")]
                fn $act(&mut self, nic: &mut N $(, $given: $given_type)*) -> $said {
                    nic.$act($($given),*)
                }
            )*

            /// The part of the NIC for chains, as [`Nic::chains`] returns it.
            fn chains(&mut self, nic: &mut N) -> Option<impl ChainNic> {
                nic.chains()
            }

            /// Called last, before the NIC is dropped.
            fn end(&mut self, nic: &mut N) {
                let _ = nic;
            }
        }

        impl<N: Nic, H: Hook<N>> Nic for Around<N, H> {
            type Memory = N::Memory;

            $(
                fn $look(&self $(, $shown: $shown_type)*) -> $seen {
                    self.hook.$look(&self.nic $(, $shown)*)
                }
            )*
            $(
                fn $act(&mut self $(, $given: $given_type)*) -> $said {
                    self.hook.$act(&mut self.nic $(, $given)*)
                }
            )*

            fn chains(&mut self) -> Option<impl ChainNic> {
                self.hook.chains(&mut self.nic)
            }
        }
    };
}

verbs! {
    looks {
        capabilities() -> Capabilities;
        qp_address(qp: QpId) -> Result<QpAddress, VerbsError>;
        qp_state(qp: QpId) -> Result<QpState, VerbsError>;
    }
    acts {
        allocate_memory(length: u64) -> Result<N::Memory, VerbsError>;
        allocate_pd() -> Result<PdId, VerbsError>;
        deallocate_pd(pd: PdId) -> Result<(), VerbsError>;
        register_region(pd: PdId, memory: &N::Memory, span: Range<u64>, base: RemoteAddress, access: Access)
            -> Result<Region, VerbsError>;
        deregister_region(region: RegionId) -> Result<(), VerbsError>;
        allocate_window(pd: PdId, kind: WindowKind) -> Result<Window, VerbsError>;
        deallocate_window(window: WindowId) -> Result<(), VerbsError>;
        create_cq(depth: u32) -> Result<CqId, VerbsError>;
        destroy_cq(cq: CqId) -> Result<(), VerbsError>;
        create_qp(pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError>;
        destroy_qp(qp: QpId) -> Result<(), VerbsError>;
        modify_qp(qp: QpId, change: QpChange) -> Result<(), VerbsError>;
        post_send(qp: QpId, requests: &[WorkRequest]) -> Result<usize, VerbsError>;
        post_receive(qp: QpId, requests: &[ReceiveRequest]) -> Result<usize, VerbsError>;
        poll(cq: CqId, most: usize, into: &mut Vec<Completion>) -> Result<usize, VerbsError>;
        poll_event() -> Option<Event>;
    }
}

//! NICs around another NIC: they change some calls and hand on the others.

/// Writes the named methods of [`Nic`](portcullis_nic::Nic) as the same calls on a field, inside an implementation of the trait
/// whose [`Memory`](portcullis_nic::Nic::Memory) is the field's.
///
/// ```
/// use portcullis_nic::{Event, Nic};
///
/// /// A NIC that never tells of anything.
/// struct Silent<N>(N);
///
/// impl<N: Nic> Nic for Silent<N> {
///     type Memory = N::Memory;
///
///     portcullis_conformance::forward_nic! { 0:
///         capabilities, allocate_memory, allocate_pd, deallocate_pd, register_region, deregister_region,
///         allocate_window, deallocate_window, create_cq, destroy_cq, create_qp, destroy_qp, qp_address, qp_state,
///         modify_qp, post_send, post_receive, poll
///     }
///
///     fn poll_event(&mut self) -> Option<Event> {
///         None
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_nic {
    ($field:tt: $($method:ident),+ $(,)?) => {
        $($crate::forward_nic!(@ $method $field);)+
    };
    (@ capabilities $field:tt) => {
        fn capabilities(&self) -> $crate::nic::Capabilities {
            self.$field.capabilities()
        }
    };
    (@ allocate_memory $field:tt) => {
        $crate::forward_nic!(@call $field allocate_memory(length: u64) -> Self::Memory);
    };
    (@ allocate_pd $field:tt) => {
        $crate::forward_nic!(@call $field allocate_pd() -> $crate::nic::PdId);
    };
    (@ deallocate_pd $field:tt) => {
        $crate::forward_nic!(@call $field deallocate_pd(pd: $crate::nic::PdId) -> ());
    };
    (@ register_region $field:tt) => {
        $crate::forward_nic!(@call $field register_region(
            pd: $crate::nic::PdId,
            memory: &Self::Memory,
            span: ::core::ops::Range<u64>,
            base: $crate::nic::RemoteAddress,
            access: $crate::nic::Access
        ) -> $crate::nic::Region);
    };
    (@ deregister_region $field:tt) => {
        $crate::forward_nic!(@call $field deregister_region(region: $crate::nic::RegionId) -> ());
    };
    (@ allocate_window $field:tt) => {
        $crate::forward_nic!(
            @call $field allocate_window(pd: $crate::nic::PdId, kind: $crate::nic::WindowKind) -> $crate::nic::Window
        );
    };
    (@ deallocate_window $field:tt) => {
        $crate::forward_nic!(@call $field deallocate_window(window: $crate::nic::WindowId) -> ());
    };
    (@ create_cq $field:tt) => {
        $crate::forward_nic!(@call $field create_cq(depth: u32) -> $crate::nic::CqId);
    };
    (@ destroy_cq $field:tt) => {
        $crate::forward_nic!(@call $field destroy_cq(cq: $crate::nic::CqId) -> ());
    };
    (@ create_qp $field:tt) => {
        $crate::forward_nic!(
            @call $field create_qp(pd: $crate::nic::PdId, attributes: $crate::nic::QpAttributes) -> $crate::nic::QpId
        );
    };
    (@ destroy_qp $field:tt) => {
        $crate::forward_nic!(@call $field destroy_qp(qp: $crate::nic::QpId) -> ());
    };
    (@ qp_address $field:tt) => {
        fn qp_address(&self, qp: $crate::nic::QpId) -> Result<$crate::nic::QpAddress, $crate::nic::VerbsError> {
            self.$field.qp_address(qp)
        }
    };
    (@ qp_state $field:tt) => {
        fn qp_state(&self, qp: $crate::nic::QpId) -> Result<$crate::nic::QpState, $crate::nic::VerbsError> {
            self.$field.qp_state(qp)
        }
    };
    (@ modify_qp $field:tt) => {
        $crate::forward_nic!(@call $field modify_qp(qp: $crate::nic::QpId, change: $crate::nic::QpChange) -> ());
    };
    (@ post_send $field:tt) => {
        $crate::forward_nic!(
            @call $field post_send(qp: $crate::nic::QpId, requests: &[$crate::nic::WorkRequest]) -> usize
        );
    };
    (@ post_receive $field:tt) => {
        $crate::forward_nic!(
            @call $field post_receive(qp: $crate::nic::QpId, requests: &[$crate::nic::ReceiveRequest]) -> usize
        );
    };
    (@ poll $field:tt) => {
        $crate::forward_nic!(
            @call $field poll(cq: $crate::nic::CqId, most: usize, into: &mut Vec<$crate::nic::Completion>) -> usize
        );
    };
    (@ poll_event $field:tt) => {
        fn poll_event(&mut self) -> Option<$crate::nic::Event> {
            self.$field.poll_event()
        }
    };
    (@call $field:tt $method:ident($($argument:ident: $type:ty),*) -> $said:ty) => {
        fn $method(&mut self, $($argument: $type),*) -> Result<$said, $crate::nic::VerbsError> {
            self.$field.$method($($argument),*)
        }
    };
}

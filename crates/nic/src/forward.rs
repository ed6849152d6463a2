//! NICs around another NIC: they change some calls and hand on the others.

/// Writes the named methods of [`Nic`](crate::Nic) as the same calls on a field, inside an implementation of the trait
/// whose [`Memory`](crate::Nic::Memory) is the field's.
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
///     portcullis_nic::forward_nic! { 0:
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
        fn capabilities(&self) -> $crate::Capabilities {
            self.$field.capabilities()
        }
    };
    (@ allocate_memory $field:tt) => {
        $crate::forward_nic!(@call $field allocate_memory(length: u64) -> Self::Memory);
    };
    (@ allocate_pd $field:tt) => {
        $crate::forward_nic!(@call $field allocate_pd() -> $crate::PdId);
    };
    (@ deallocate_pd $field:tt) => {
        $crate::forward_nic!(@call $field deallocate_pd(pd: $crate::PdId) -> ());
    };
    (@ register_region $field:tt) => {
        $crate::forward_nic!(@call $field register_region(
            pd: $crate::PdId,
            memory: &Self::Memory,
            span: ::core::ops::Range<u64>,
            base: $crate::RemoteAddress,
            access: $crate::Access
        ) -> $crate::Region);
    };
    (@ deregister_region $field:tt) => {
        $crate::forward_nic!(@call $field deregister_region(region: $crate::RegionId) -> ());
    };
    (@ allocate_window $field:tt) => {
        $crate::forward_nic!(
            @call $field allocate_window(pd: $crate::PdId, kind: $crate::WindowKind) -> $crate::Window
        );
    };
    (@ deallocate_window $field:tt) => {
        $crate::forward_nic!(@call $field deallocate_window(window: $crate::WindowId) -> ());
    };
    (@ create_cq $field:tt) => {
        $crate::forward_nic!(@call $field create_cq(depth: u32) -> $crate::CqId);
    };
    (@ destroy_cq $field:tt) => {
        $crate::forward_nic!(@call $field destroy_cq(cq: $crate::CqId) -> ());
    };
    (@ create_qp $field:tt) => {
        $crate::forward_nic!(
            @call $field create_qp(pd: $crate::PdId, attributes: $crate::QpAttributes) -> $crate::QpId
        );
    };
    (@ destroy_qp $field:tt) => {
        $crate::forward_nic!(@call $field destroy_qp(qp: $crate::QpId) -> ());
    };
    (@ qp_address $field:tt) => {
        fn qp_address(&self, qp: $crate::QpId) -> Result<$crate::QpAddress, $crate::VerbsError> {
            self.$field.qp_address(qp)
        }
    };
    (@ qp_state $field:tt) => {
        fn qp_state(&self, qp: $crate::QpId) -> Result<$crate::QpState, $crate::VerbsError> {
            self.$field.qp_state(qp)
        }
    };
    (@ modify_qp $field:tt) => {
        $crate::forward_nic!(@call $field modify_qp(qp: $crate::QpId, change: $crate::QpChange) -> ());
    };
    (@ post_send $field:tt) => {
        $crate::forward_nic!(
            @call $field post_send(qp: $crate::QpId, requests: &[$crate::WorkRequest]) -> usize
        );
    };
    (@ post_receive $field:tt) => {
        $crate::forward_nic!(
            @call $field post_receive(qp: $crate::QpId, requests: &[$crate::ReceiveRequest]) -> usize
        );
    };
    (@ poll $field:tt) => {
        $crate::forward_nic!(
            @call $field poll(cq: $crate::CqId, most: usize, into: &mut Vec<$crate::Completion>) -> usize
        );
    };
    (@ poll_event $field:tt) => {
        fn poll_event(&mut self) -> Option<$crate::Event> {
            self.$field.poll_event()
        }
    };
    (@call $field:tt $method:ident($($argument:ident: $type:ty),*) -> $said:ty) => {
        fn $method(&mut self, $($argument: $type),*) -> Result<$said, $crate::VerbsError> {
            self.$field.$method($($argument),*)
        }
    };
}

//! The software NIC with one defect, like a device with a fault of its hardware, firmware or driver.

use portcullis_examination::{Around, Hook};
use portcullis_memory::Mapping;
use portcullis_nic::{
    Access, Capabilities, ChainVerb, Completion, CqId, Misuse, Nic, Operation, PdId, QpAttributes, QpChange,
    QpId, QpState, Region, RegionId, RemoteAddress, Rkey, Status, VerbsError, Window, WindowBinding,
    WindowId, WindowKind, WorkRequest,
};
use portcullis_softnic::SoftNic;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoiler {
    WideWindows,
    WideRegions,
    AllRightsOfWindows,
    AllRightsOfRegions,
    AllRightsOfQueuePairs,
    KeyStays,
    NoUnbind,
    NoInvalidate,
    NoDeregistration,
    TypeTwoIsTypeOne,
    OneDomain,
    /// The bind with this number opens the bytes behind its range instead.
    StrayBind(u32),
    FaultsSpread,
    NobodyInError,
    FewWindows,
    AddsTwice,
    NoWindows,
    DiesOfMisuse,
    HangsOfMisuse,
    /// A long transfer continues after its key's end. Later accesses are refused.
    TransfersGoOn,
    RefusesQueuePairs,
    NeverAnswers,
    PanicsAtAtomics,
}

/// The least length of a long transfer, in bytes.
const LONG: u32 = 1 << 20;

/// Number of windows of a device that has too few.
const FEW: usize = 100;

/// The state of a NIC with a defect.
pub struct Spoilt {
    spoiler: Spoiler,
    /// Start and length of each region.
    regions: HashMap<RegionId, (u64, u64)>,
    /// The latest binding of each window. `None` for a free window.
    windows: HashMap<WindowId, Option<WindowBinding>>,
    kinds: HashMap<WindowId, WindowKind>,
    /// The key of each window's first bind.
    first_keys: HashMap<WindowId, Rkey>,
    queue_pairs: Vec<(QpId, PdId)>,
    /// Number of domains that were requested. One real domain stands for all.
    domains: u32,
    binds: u32,
    /// Windows that a chain has bound to other queue pairs. An invalidation on their own queue pairs frees none of
    /// them.
    bound_for_others: HashSet<WindowId>,
    panicked: bool,
    hung: bool,
    /// The queue pair with a long transfer under way.
    transfer: Option<QpId>,
    /// Promises of the conformance suite that the device admits to break.
    deviations: Vec<&'static str>,
}

impl Spoilt {
    /// Makes a NIC that admits its defect.
    pub fn admitting(spoiler: Spoiler, deviations: &[&'static str]) -> Around<SoftNic, Self> {
        let mut nic = Self::nic(spoiler);
        nic.hook.deviations = deviations.to_vec();
        nic
    }

    /// Makes a NIC that does not report its defect.
    pub fn nic(spoiler: Spoiler) -> Around<SoftNic, Self> {
        let hook = Self {
            spoiler,
            regions: HashMap::new(),
            windows: HashMap::new(),
            kinds: HashMap::new(),
            first_keys: HashMap::new(),
            queue_pairs: Vec::new(),
            domains: 0,
            binds: 0,
            bound_for_others: HashSet::new(),
            panicked: false,
            hung: false,
            transfer: None,
            deviations: Vec::new(),
        };
        Around { nic: SoftNic::self_driven(), hook }
    }

    /// Returns the real domain behind a domain that was requested.
    fn domain(&self, pd: PdId) -> PdId {
        if self.spoiler == Spoiler::OneDomain { PdId(0) } else { pd }
    }

    fn spoil(&mut self, nic: &mut SoftNic, qp: QpId, request: WorkRequest) -> WorkRequest {
        let operation = match request.operation {
            Operation::BindWindow(binding) if binding.length > 0 => {
                let spoilt = self.spoil_bind(binding);
                self.windows.insert(binding.window, Some(spoilt));
                Operation::BindWindow(spoilt)
            }
            Operation::BindWindow(binding) => self.spoil_unbind(binding),
            Operation::LocalInvalidate { rkey }
                if self.bound_for_others.contains(&WindowId(rkey.index())) =>
            {
                request.operation
            }
            Operation::LocalInvalidate { rkey } => {
                self.live_through(rkey);
                self.spoil_invalidate(nic, qp, rkey)
            }
            Operation::SendWithInvalidate { local, rkey } => {
                self.live_through(rkey);
                self.windows.insert(WindowId(rkey.index()), None);
                Operation::SendWithInvalidate { local, rkey }
            }
            Operation::Read { local, .. } | Operation::Write { local, .. } => {
                self.transfer = self.transfer.or((local.length >= LONG).then_some(qp));
                request.operation
            }
            Operation::FetchAndAdd { local, remote, add } if self.spoiler == Spoiler::AddsTwice => {
                Operation::FetchAndAdd { local, remote, add: 2 * add }
            }
            Operation::FetchAndAdd { .. } if self.spoiler == Spoiler::PanicsAtAtomics => {
                self.panicked = true;
                panic!("this driver knows no atomics")
            }
            Operation::Chain(verb) => {
                self.watch(verb);
                request.operation
            }
            other => other,
        };
        WorkRequest { operation, ..request }
    }

    /// Keeps track of windows that a chain binds and frees.
    fn watch(&mut self, verb: ChainVerb) {
        match verb {
            ChainVerb::BindWindow { binding, .. } => {
                self.windows.insert(binding.window, Some(binding));
                self.bound_for_others.insert(binding.window);
            }
            ChainVerb::LocalInvalidate { rkey, .. } => self.live_through(rkey),
            _ => {}
        }
    }

    fn spoil_bind(&mut self, binding: WindowBinding) -> WindowBinding {
        self.binds += 1;
        let first = *self.first_keys.entry(binding.window).or_insert(binding.rkey);
        let (base, length) = self.regions.get(&binding.region).copied().unwrap_or_default();
        match self.spoiler {
            Spoiler::WideWindows => WindowBinding { address: RemoteAddress(base), length, ..binding },
            Spoiler::AllRightsOfWindows => WindowBinding { access: Access::REMOTE, ..binding },
            Spoiler::KeyStays => WindowBinding { rkey: first, ..binding },
            Spoiler::StrayBind(number) if number == self.binds => {
                WindowBinding { address: RemoteAddress(binding.address.0 + binding.length), ..binding }
            }
            _ => binding,
        }
    }

    /// Replaces an unbind that is to have no effect by the previous bind.
    fn spoil_unbind(&mut self, binding: WindowBinding) -> Operation {
        let before = self.windows.insert(binding.window, None).flatten();
        match before {
            Some(before)
                if self.spoiler == Spoiler::NoUnbind
                    || (self.spoiler == Spoiler::TransfersGoOn && self.transfer.is_some()) =>
            {
                Operation::BindWindow(before)
            }
            _ => Operation::BindWindow(binding),
        }
    }

    /// Panics or hangs, if the defect requires it, at an invalidate of a free type-2 window, from either end.
    fn live_through(&mut self, rkey: Rkey) {
        let window = WindowId(rkey.index());
        let free = self.kinds.get(&window) == Some(&WindowKind::Two)
            && self.windows.get(&window).copied().flatten().is_none();
        assert!(!free || self.spoiler != Spoiler::DiesOfMisuse, "a free window was invalidated");
        self.hung |= free && self.spoiler == Spoiler::HangsOfMisuse;
    }

    fn spoil_invalidate(&mut self, nic: &mut SoftNic, qp: QpId, rkey: Rkey) -> Operation {
        let window = WindowId(rkey.index());
        let bound = self.windows.get(&window).copied().flatten();
        let Some(bound) = bound.filter(|bound| bound.rkey == rkey) else {
            return Operation::LocalInvalidate { rkey };
        };
        match self.spoiler {
            Spoiler::NoInvalidate => self.nothing(nic, qp, bound),
            Spoiler::TypeTwoIsTypeOne => {
                self.windows.insert(window, None);
                Operation::BindWindow(WindowBinding { length: 0, ..bound })
            }
            _ => {
                self.windows.insert(window, None);
                Operation::LocalInvalidate { rkey }
            }
        }
    }

    /// Returns a request that succeeds without an effect: it binds another window over the same bytes.
    fn nothing(&mut self, nic: &mut SoftNic, qp: QpId, like: WindowBinding) -> Operation {
        let pd = self.queue_pairs.iter().find(|(there, _)| *there == qp).expect("it was made here").1;
        let other = nic.allocate_window(pd, WindowKind::One).expect("there are enough");
        Operation::BindWindow(WindowBinding { window: other.id, rkey: other.rkey.advanced(), ..like })
    }
}

impl Hook<SoftNic> for Spoilt {
    fn capabilities(&self, nic: &SoftNic) -> Capabilities {
        let windows = self.spoiler != Spoiler::NoWindows;
        let dies = self.spoiler == Spoiler::DiesOfMisuse;
        let misuses = [Misuse::InvalidateFreeWindow, Misuse::QueuePairBeforeBoundWindow];
        Capabilities {
            name: format!("softnic with {:?}", self.spoiler),
            window_type_1: windows,
            window_type_2: windows,
            deviations: self.deviations.clone(),
            crashes_on: if dies { misuses.to_vec() } else { Vec::new() },
            ..nic.capabilities()
        }
    }

    fn allocate_pd(&mut self, nic: &mut SoftNic) -> Result<PdId, VerbsError> {
        if self.spoiler != Spoiler::OneDomain {
            return nic.allocate_pd();
        }
        if self.domains == 0 {
            assert_eq!(nic.allocate_pd()?, PdId(0));
        }
        self.domains += 1;
        Ok(PdId(self.domains - 1))
    }

    fn deallocate_pd(&mut self, nic: &mut SoftNic, pd: PdId) -> Result<(), VerbsError> {
        if self.spoiler == Spoiler::OneDomain { Ok(()) } else { nic.deallocate_pd(pd) }
    }

    fn register_region(
        &mut self,
        nic: &mut SoftNic,
        pd: PdId,
        memory: &Mapping,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        use portcullis_nic::Memory;
        let pd = self.domain(pd);
        let (span, base) = if self.spoiler == Spoiler::WideRegions {
            (0..memory.length(), RemoteAddress(base.0 - span.start))
        } else {
            (span, base)
        };
        let all = self.spoiler == Spoiler::AllRightsOfRegions && access.contains(Access::LOCAL_WRITE);
        let access = if all { access | Access::REMOTE } else { access };
        let length = span.end - span.start;
        let region = nic.register_region(pd, memory, span, base, access)?;
        self.regions.insert(region.id, (base.0, length));
        Ok(region)
    }

    fn deregister_region(&mut self, nic: &mut SoftNic, region: RegionId) -> Result<(), VerbsError> {
        if self.spoiler == Spoiler::NoDeregistration { Ok(()) } else { nic.deregister_region(region) }
    }

    fn allocate_window(
        &mut self,
        nic: &mut SoftNic,
        pd: PdId,
        kind: WindowKind,
    ) -> Result<Window, VerbsError> {
        if self.spoiler == Spoiler::FewWindows && self.kinds.len() == FEW {
            return Err(VerbsError::Exhausted { what: "memory windows", limit: FEW as u64 });
        }
        let real = if self.spoiler == Spoiler::TypeTwoIsTypeOne { WindowKind::One } else { kind };
        let window = nic.allocate_window(self.domain(pd), real)?;
        self.kinds.insert(window.id, kind);
        Ok(window)
    }

    fn deallocate_window(&mut self, nic: &mut SoftNic, window: WindowId) -> Result<(), VerbsError> {
        self.kinds.remove(&window);
        self.windows.remove(&window);
        nic.deallocate_window(window)
    }

    fn create_qp(
        &mut self,
        nic: &mut SoftNic,
        pd: PdId,
        attributes: QpAttributes,
    ) -> Result<QpId, VerbsError> {
        if self.spoiler == Spoiler::RefusesQueuePairs {
            return Err(VerbsError::Exhausted { what: "queue pairs", limit: 0 });
        }
        let pd = self.domain(pd);
        let qp = nic.create_qp(pd, attributes)?;
        self.queue_pairs.push((qp, pd));
        Ok(qp)
    }

    fn destroy_qp(&mut self, nic: &mut SoftNic, qp: QpId) -> Result<(), VerbsError> {
        assert!(!self.panicked, "nor how to go on after that");
        let said = nic.destroy_qp(qp);
        let busy = matches!(said, Err(VerbsError::Busy { .. }));
        assert!(!busy || self.spoiler != Spoiler::DiesOfMisuse, "a queue pair went before its window");
        if said.is_ok() {
            self.queue_pairs.retain(|(there, _)| *there != qp);
        }
        said
    }

    fn qp_state(&self, nic: &SoftNic, qp: QpId) -> Result<QpState, VerbsError> {
        let state = nic.qp_state(qp)?;
        let hidden = self.spoiler == Spoiler::NobodyInError && state == QpState::Error;
        Ok(if hidden { QpState::ReadyToSend } else { state })
    }

    fn modify_qp(&mut self, nic: &mut SoftNic, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        let all = self.spoiler == Spoiler::AllRightsOfQueuePairs;
        let change = match change {
            QpChange::Init { .. } if all => QpChange::Init { access: Access::REMOTE },
            QpChange::Access { .. } if all => QpChange::Access { access: Access::REMOTE },
            other => other,
        };
        nic.modify_qp(qp, change)
    }

    fn post_send(
        &mut self,
        nic: &mut SoftNic,
        qp: QpId,
        requests: &[WorkRequest],
    ) -> Result<usize, VerbsError> {
        let spoilt: Vec<_> = requests.iter().map(|request| self.spoil(nic, qp, *request)).collect();
        nic.post_send(qp, &spoilt)
    }

    fn poll(
        &mut self,
        nic: &mut SoftNic,
        cq: CqId,
        most: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        if self.spoiler == Spoiler::NeverAnswers || self.hung {
            return Ok(0);
        }
        let polled = nic.poll(cq, most, into)?;
        if into.iter().any(|completion| Some(completion.queue_pair) == self.transfer) {
            self.transfer = None;
        }
        let refused = into.iter().any(|completion| completion.status == Status::RemoteAccessError);
        if self.spoiler == Spoiler::FaultsSpread && refused {
            for (qp, _) in self.queue_pairs.clone() {
                // A queue pair that was never connected refuses the step, which does not matter.
                let _ = nic.modify_qp(qp, QpChange::Error);
            }
        }
        Ok(polled)
    }
}

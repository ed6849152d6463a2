//! Carrying out what a turn decided: windows bound, handed over and unbound in one batch a tenant (Patronus §5.4),
//! and the plainer ways of the other mechanisms.

use crate::node::Node;
use crate::permissions::Grip;
use crate::tenant::{BIND_DEPTH, Batch, Ending, Release, Tenant, connect_binder};
use crate::windows::{Residue, WindowIndex};
use portcullis_nic::{
    Access, Completion, Memory, Nic, Operation, QpChange, QpState, RemoteAddress, Status, WindowBinding,
    WorkRequest,
};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Credential, Header, LIFETIME_OFFSET, Mechanism, Moment, Refusal, Rights, Rkey};

/// The bytes of a header that a client may reach.
const EXPOSED_BYTES: u64 = Header::BYTES - LIFETIME_OFFSET;

impl<N: Nic> Node<N> {
    /// Sets up what starts and takes down what ended in this turn.
    pub(crate) fn carry_out(&mut self, nic: &mut N, now: Moment) -> bool {
        self.hurry_lingerers(now);
        let mut worked = false;
        for slot in std::mem::take(&mut self.busy) {
            // Out of the table while it is worked on, so that the rest of the node can be reached beside it.
            let Some(mut tenant) = self.tenants.get_mut(slot as usize).and_then(Option::take) else {
                continue;
            };
            worked = true;
            if self.mechanism() == Mechanism::MemoryWindow {
                let (failed, early) = self.batch(nic, &mut tenant, now);
                let stuck = !post(nic, &mut tenant);
                self.tenants[slot as usize] = Some(tenant);
                if stuck {
                    self.fail_batches(nic, slot, now);
                }
                for residue in early {
                    self.release(residue);
                }
                for permission in failed {
                    let limit = self.config.windows_max.into();
                    self.undo_start(permission, Refusal::NodeFull { limit }, now);
                }
            } else {
                let starting = std::mem::take(&mut tenant.starting);
                let ending = std::mem::take(&mut tenant.ending);
                self.tenants[slot as usize] = Some(tenant);
                self.carry_out_at_once(nic, slot, starting, ending, now);
                self.look_at_if_deserted(slot);
            }
        }
        self.retry_if_idle(now);
        worked
    }

    /// Windows that have lingered long enough, or over memory that somebody waits for, are unbound now.
    fn hurry_lingerers(&mut self, now: Moment) {
        let thirsty = self.postponed.is_thirsty() || (self.going > 0 && !self.memory_is_plentiful());
        if (now < self.linger_check && !thirsty) || planted::is(Fault::LingerForever) {
            return;
        }
        self.linger_check = now.after(portcullis_protocol::Lifetime(self.config.linger_max.0 / 4));
        let before = if thirsty { now } else { Moment(now.0.saturating_sub(self.config.linger_max.0)) };
        let mut left = self.config.steps_per_turn;
        for slot in 0..self.tenants.len() {
            let Some(tenant) = &mut self.tenants[slot] else { continue };
            while left > 0
                && let Some(overdue) = tenant.windows.lingered(before)
            {
                left -= 1;
                tenant.overdue.push(overdue);
            }
            if !tenant.overdue.is_empty() {
                self.mark_busy(u32::try_from(slot).unwrap_or(u32::MAX));
            }
        }
        if left == 0 {
            self.linger_check = now;
        }
    }

    /// Requests that wait for memory, though none is on its way: they get their answer.
    fn retry_if_idle(&mut self, now: Moment) {
        if self.going == 0 {
            self.retry_parked(now);
        }
    }

    /// One tenant's binds and unbinds of this turn. Returns the permissions that there was no window for, and what is free
    /// too early where that mistake is planted.
    fn batch(&mut self, nic: &mut N, tenant: &mut Tenant, now: Moment) -> (Vec<u32>, Vec<Residue>) {
        let mut batch = tenant.spare.pop().unwrap_or_default();
        let mut stock = std::mem::take(&mut self.stock);
        let mut starting = std::mem::take(&mut tenant.starting);
        let mut ending = std::mem::take(&mut tenant.ending);
        for (window, residue) in tenant.overdue.drain(..) {
            stock.prompt.push((window, residue));
        }
        let (mut failed, mut early) = (Vec::new(), Vec::new());
        for ended in ending.drain(..) {
            batch.answers.extend(ended.answer);
            if planted::is(Fault::WordTrustedOverUnbind) {
                let (header, object) = (Some(ended.header), Some(ended.object));
                early.push(Residue { header, object, may_linger: false });
            } else {
                stock.add(&ended);
            }
        }
        let posted_before = tenant.unposted.len();
        for slot in starting.drain(..) {
            if self.bind(nic, tenant, &mut stock, &mut batch, slot) {
                batch.starts.push(slot);
            } else {
                failed.push(slot);
            }
        }
        let delay = self.config.reductions.delayed_unbinding && self.memory_is_plentiful();
        for (window, residue) in stock.prompt.drain(..) {
            unbind(tenant, &mut batch, window, residue);
        }
        for (window, mut residue) in stock.lazy.drain(..) {
            if planted::is(Fault::ReusedBeforeUnbind) {
                early.push(std::mem::take(&mut residue));
            }
            if planted::is(Fault::HeaderReusedWhileBound)
                && let Some(header) = residue.header.take()
            {
                self.give_header(header);
            }
            if delay && !tenant.windows.is_worn(window) {
                tenant.windows.linger(window, residue, now);
            } else {
                unbind(tenant, &mut batch, window, residue);
            }
        }
        // Nothing was added to them meanwhile: their room is kept.
        (tenant.starting, tenant.ending, self.stock) = (starting, ending, stock);
        let posted = tenant.unposted.len() - posted_before;
        self.counters.window_operations += posted as u64;
        if posted == 0 {
            self.answer(batch.answers);
        } else {
            tenant.batch_count += 1;
            batch.number = tenant.batch_count;
            if let Some(last) = tenant.unposted.back_mut() {
                (last.signalled, last.id) = (true, batch.number);
            }
            tenant.batches.push_back(batch);
        }
        (failed, early)
    }

    /// Binds what a starting permission needs: windows of ended ones first (Patronus §5.4, handover).
    fn bind(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant,
        stock: &mut Stock,
        batch: &mut Batch,
        slot: u32,
    ) -> bool {
        let Some(&permission) = self.permissions.get(slot) else { return false };
        let (address, length) = self.bytes_of(&permission);
        let header = permission.id.header;
        let word = RemoteAddress(header.0 + LIFETIME_OFFSET);
        let contiguous = header.0 + Header::BYTES == address.0;
        let handover = self.config.reductions.handover;
        let Some(first) = self.take_window(nic, tenant, stock, handover) else { return false };
        let grip = if contiguous {
            Grip::Window(first.0)
        } else {
            let Some(second) = self.take_window(nic, tenant, stock, handover) else {
                stock.prompt.push(first);
                return false;
            };
            rebind(tenant, batch, second, (word, EXPOSED_BYTES), Access::REMOTE_ATOMIC);
            Grip::Windows { header: second.0, buffer: first.0 }
        };
        let narrow = !planted::is(Fault::RightsNotNarrowed);
        let access = if narrow { Access::from(permission.rights) } else { Access::REMOTE };
        let length = length + u64::from(planted::is(Fault::RangeOneByteLong));
        if contiguous {
            rebind(tenant, batch, first, (word, EXPOSED_BYTES + length), access);
        } else {
            rebind(tenant, batch, first, (address, length), access);
        }
        self.write_header(slot, grip);
        true
    }

    fn take_window(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant,
        stock: &mut Stock,
        handover: bool,
    ) -> Option<(WindowIndex, Residue)> {
        if handover && let Some(window) = stock.take(tenant) {
            return Some(window);
        }
        tenant.windows.take(nic, &mut self.gone_windows).ok()
    }

    /// Writes a permission's header (Patronus Fig. 3) while no window exposes it.
    fn write_header(&mut self, slot: u32, grip: Grip) {
        let scale = self.scale;
        let Some(permission) = self.permissions.get_mut(slot) else { return };
        permission.grip = grip;
        let windows = match grip {
            Grip::Window(window) => (window.0, window.0),
            Grip::Windows { header, buffer } => (header.0, buffer.0),
            Grip::Regions { header, buffer } => (header.id.0, buffer.id.0),
            Grip::None => (u32::MAX, u32::MAX),
        };
        let permission = *permission;
        let (id, lifetime) = (permission.id, permission.lifetime);
        let (address, length) = self.bytes_of(&permission);
        let Ok(header) = Header::new(address, length, scale, windows, id.start, lifetime) else { return };
        let at = Self::offset(id.header);
        for (offset, word) in (0..).step_by(8).zip(header.words()) {
            self.memory.store(at + offset, word);
        }
    }

    /// A batch of binds is done, or failed.
    pub(crate) fn confirm(&mut self, nic: &mut N, completion: &Completion, now: Moment) {
        let Some(&slot) = self.binders.get(&completion.queue_pair) else { return };
        if completion.status != Status::Success {
            return self.fail_batches(nic, slot, now);
        }
        let rest = self.config.window_rest;
        let Some(tenant) = self.tenant_mut(slot) else { return };
        if tenant.batches.front().is_none_or(|batch| batch.number != completion.request) {
            // Within a batch, or of one that failed: all it says is that the queue has room again.
            if !post(nic, tenant) {
                self.fail_batches(nic, slot, now);
            }
            return;
        }
        let Some(mut batch) = tenant.batches.pop_front() else { return };
        for window in batch.releases.iter().filter_map(|release| release.window) {
            tenant.windows.give(window, now, rest);
        }
        let stuck = !post(nic, tenant);
        for release in &batch.releases {
            self.release(release.residue);
        }
        for &permission in &batch.starts {
            if let Some(credential) = self.window_credential(slot, permission) {
                self.grant(permission, credential, now);
            }
        }
        self.answer(batch.answers.drain(..));
        if let Some(tenant) = self.tenant_mut(slot) {
            batch.clear();
            tenant.spare.push(batch);
        }
        self.look_at_if_deserted(slot);
        if stuck {
            self.fail_batches(nic, slot, now);
        }
        self.retry_parked(now);
    }

    fn window_credential(&self, tenant: u32, permission: u32) -> Option<Credential> {
        let (buffer, lifetime) = self.keys(tenant, self.permissions.get(permission)?.grip)?;
        Some(Credential::Keys { buffer, lifetime })
    }

    /// The keys that a live permission of a tenant's opens with: its buffer's, and its lifetime word's.
    pub(crate) fn keys(&self, tenant: u32, grip: Grip) -> Option<(Rkey, Rkey)> {
        let tenant = self.tenant(tenant)?;
        match grip {
            Grip::Window(window) => {
                let key = tenant.windows.rkey(window)?;
                Some((key, key))
            }
            Grip::Windows { header, buffer } => {
                Some((tenant.windows.rkey(buffer)?, tenant.windows.rkey(header)?))
            }
            Grip::Regions { header, buffer } => Some((buffer.rkey, header.rkey)),
            Grip::None if self.mechanism() == Mechanism::NodeCopy => None,
            // All permissions of the tenant are reached with the one key over the pool.
            Grip::None => Some((tenant.region.rkey, tenant.region.rkey)),
        }
    }

    /// A bind failed: it is not known which windows are bound to what, so all of them go, and their keys with them.
    pub(crate) fn fail_batches(&mut self, nic: &mut N, slot: u32, now: Moment) {
        let Some(tenant) = self.tenants.get_mut(slot as usize).and_then(Option::as_deref_mut) else { return };
        let batches = std::mem::take(&mut tenant.batches);
        tenant.unposted.clear();
        for &window in batches.iter().flat_map(|batch| &batch.windows) {
            tenant.windows.retire(nic, window, &mut self.gone_windows);
        }
        self.mend_binder(nic, slot);
        for batch in batches {
            for release in batch.releases {
                self.release(release.residue);
            }
            for permission in batch.starts {
                self.undo_start(permission, Refusal::NicFailed, now);
            }
            self.answer(batch.answers);
        }
    }

    /// The mechanisms without windows: each permission by itself, done when the call returns.
    fn carry_out_at_once(
        &mut self,
        nic: &mut N,
        slot: u32,
        starting: Vec<u32>,
        ending: Vec<Ending>,
        now: Moment,
    ) {
        for ended in ending {
            self.withdraw(nic, &ended);
            let (header, object) = (Some(ended.header), Some(ended.object));
            self.release(Residue { header, object, may_linger: false });
            self.answer(ended.answer);
        }
        for permission in starting {
            match self.expose(nic, slot, permission) {
                Some(credential) => self.grant(permission, credential, now),
                None => self.undo_start(permission, Refusal::NicFailed, now),
            }
        }
    }

    fn expose(&mut self, nic: &mut N, tenant: u32, slot: u32) -> Option<Credential> {
        let region = self.tenant(tenant)?.region;
        let permission = *self.permissions.get(slot)?;
        match self.mechanism() {
            Mechanism::MemoryWindow => None,
            Mechanism::MemoryRegion => self.register(nic, tenant, slot),
            Mechanism::QueuePair => {
                self.hold_rights(nic, permission.client, permission.rights, 1);
                self.write_header(slot, Grip::None);
                Some(Credential::Keys { buffer: region.rkey, lifetime: region.rkey })
            }
            Mechanism::NodeCopy => {
                self.write_header(slot, Grip::None);
                Some(Credential::Node)
            }
            Mechanism::None => {
                self.write_header(slot, Grip::None);
                Some(Credential::Keys { buffer: region.rkey, lifetime: region.rkey })
            }
        }
    }

    fn register(&mut self, nic: &mut N, tenant: u32, slot: u32) -> Option<Credential> {
        let pd = self.tenant(tenant)?.pd;
        let permission = *self.permissions.get(slot)?;
        let (address, length) = self.bytes_of(&permission);
        let word = RemoteAddress(permission.id.header.0 + LIFETIME_OFFSET);
        let memory = self.memory.clone();
        let mut make = |from: RemoteAddress, bytes: u64, access: Access| {
            let at = Self::offset(from);
            nic.register_region(pd, &memory, at..at + bytes, from, access | Access::LOCAL_WRITE).ok()
        };
        let access = Access::from(permission.rights);
        let (header, buffer) = if word.0 + EXPOSED_BYTES == address.0 {
            let both = make(word, EXPOSED_BYTES + length, access)?;
            (both, both)
        } else {
            let header = make(word, EXPOSED_BYTES, Access::REMOTE_ATOMIC)?;
            let Some(buffer) = make(address, length, access) else {
                let _ = nic.deregister_region(header.id);
                return None;
            };
            (header, buffer)
        };
        self.write_header(slot, Grip::Regions { header, buffer });
        Some(Credential::Keys { buffer: buffer.rkey, lifetime: header.rkey })
    }

    fn withdraw(&mut self, nic: &mut N, ended: &Ending) {
        match (self.mechanism(), ended.grip) {
            (_, Grip::Regions { header, buffer }) => {
                let _ = nic.deregister_region(buffer.id);
                if header.id != buffer.id {
                    let _ = nic.deregister_region(header.id);
                }
            }
            (Mechanism::QueuePair, _) => self.hold_rights(nic, ended.client, ended.rights, -1),
            _ => {}
        }
    }

    /// Mechanism `queue-pair`: the flags of a client's queue pairs follow what it holds.
    fn hold_rights(&mut self, nic: &mut N, client: u64, rights: Rights, change: i32) {
        let before = self.client_access(client);
        let Some(it) = self.clients.get_mut(client) else { return };
        for (held, right) in it.rights_held.iter_mut().zip([Rights::READ, Rights::WRITE, Rights::ATOMIC]) {
            if rights.contains(right) {
                *held = held.saturating_add_signed(change);
            }
        }
        let queue_pairs = it.ends.data.clone();
        let access = self.client_access(client);
        if access == before {
            return;
        }
        for qp in queue_pairs {
            // One that is in error gets its flags when it is rebuilt.
            if nic.qp_state(qp).is_ok_and(|state| state == QpState::ReadyToSend) {
                let changed = nic.modify_qp(qp, QpChange::Access { access });
                if changed.is_err() {
                    // Rather no access than more than is held.
                    let _ = nic.modify_qp(qp, QpChange::Error);
                }
            }
        }
    }

    /// Fills pools and ends worn windows, when there is nothing else to do.
    pub(crate) fn tend_windows(&mut self, nic: &mut N, now: Moment) -> bool {
        if self.mechanism() != Mechanism::MemoryWindow || now < self.tend_check {
            return false;
        }
        let ready = self.config.windows_ready;
        let mut more = false;
        for tenant in self.tenants.iter_mut().flatten() {
            more |= tenant.windows.tend(nic, now, ready, &mut self.gone_windows);
        }
        if !more {
            self.tend_check = now.after(TEND_EVERY);
        }
        more
    }
}

/// Requests of a batch of which one is signalled: half of what the queue holds.
const SIGNAL_EVERY: usize = BIND_DEPTH as usize / 2;

/// How often the window pools are looked after while nothing else happens.
const TEND_EVERY: portcullis_protocol::Lifetime = portcullis_protocol::Lifetime::millis(10);

/// The windows of permissions that ended in this turn.
#[derive(Default)]
pub(crate) struct Stock {
    /// To be unbound at once, if nothing starts that takes them over.
    prompt: Vec<(WindowIndex, Residue)>,
    /// May stay bound for a while.
    lazy: Vec<(WindowIndex, Residue)>,
}

impl Stock {
    fn add(&mut self, ended: &Ending) {
        let object = Some(ended.object);
        let mut put = |window, residue: Residue| {
            if residue.may_linger {
                self.lazy.push((window, residue))
            } else {
                self.prompt.push((window, residue))
            }
        };
        let header = Some(ended.header);
        match ended.grip {
            Grip::Window(window) => {
                put(window, Residue { header, object, may_linger: ended.last });
            }
            Grip::Windows { header: over_header, buffer } => {
                put(buffer, Residue { header: None, object, may_linger: ended.last });
                put(over_header, Residue { header, object: None, may_linger: true });
            }
            Grip::None | Grip::Regions { .. } => {}
        }
    }

    /// A window that has a key left for the handover and one for its unbind.
    fn take(&mut self, tenant: &Tenant) -> Option<(WindowIndex, Residue)> {
        for stock in [&mut self.prompt, &mut self.lazy] {
            if let Some(at) = stock.iter().rposition(|&(window, _)| !tenant.windows.is_worn(window)) {
                return Some(stock.swap_remove(at));
            }
        }
        None
    }
}

fn rebind(
    tenant: &mut Tenant,
    batch: &mut Batch,
    (window, residue): (WindowIndex, Residue),
    (address, length): (RemoteAddress, u64),
    access: Access,
) {
    put_binding(tenant, batch, window, (address, length), access);
    if residue != Residue::default() {
        batch.releases.push(Release { residue, window: None });
    }
}

/// Binding a window of type 1 to no bytes is its unbind.
fn unbind(tenant: &mut Tenant, batch: &mut Batch, window: WindowIndex, residue: Residue) {
    put_binding(tenant, batch, window, (RemoteAddress(0), 0), Access::empty());
    batch.releases.push(Release { residue, window: Some(window) });
}

fn put_binding(
    tenant: &mut Tenant,
    batch: &mut Batch,
    window: WindowIndex,
    (address, length): (RemoteAddress, u64),
    access: Access,
) {
    let Some((id, rkey)) = tenant.windows.advance(window) else { return };
    batch.windows.push(window);
    let binding = WindowBinding { window: id, rkey, region: tenant.region.id, address, length, access };
    let operation = Operation::BindWindow(binding);
    // A batch may be larger than the queue, which forgets requests only when one is signalled.
    let signalled = batch.windows.len().is_multiple_of(SIGNAL_EVERY);
    tenant.unposted.push_back(WorkRequest { id: 0, signalled, operation });
}

/// Posts what the queue has room for. Returns whether the queue takes requests at all.
fn post(nic: &mut impl Nic, tenant: &mut Tenant) -> bool {
    if tenant.binder_is_down && !tenant.unposted.is_empty() {
        // What the NIC refused when it broke may work by now: this batch is not to fail for that.
        tenant.binder_is_down = connect_binder(nic, tenant.binder).is_err();
    }
    while !tenant.unposted.is_empty() {
        let (front, _) = tenant.unposted.as_slices();
        match nic.post_send(tenant.binder, front) {
            Ok(0) => return true,
            Ok(posted) => drop(tenant.unposted.drain(..posted)),
            Err(_) => return false,
        }
    }
    true
}

//! Old mappings of handles that have moved.
//!
//! When a handle moves to another heap, or elsewhere in its own, its old mapping stays: if the handle is wanted there
//! again, it comes back without any call of the driver. So workloads that repeat themselves soon move nothing by mapping.
//!
//! This list is the truth about which old mappings exist; heaps know where theirs were, and ask here what has become of
//! them. An old mapping is removed only when the host has *seen* the last use through it complete. When the last use of
//! a handle where it is now is seen complete, all uses through older mappings are: each move is ordered after them.

use std::collections::BTreeMap;

use highwater_core::{Ghost, GhostState, PageId, Position, StreamIndex};
use highwater_device::{Address, Device, DeviceResult};
use parking_lot::Mutex;

/// Old mappings that one handle keeps; the oldest goes when there are more.
const KEPT: usize = 3;

/// An old mapping, and up to which position of which stream it was used. One that was never used is a mapping that came to
/// nothing and could not be removed at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Old {
    pub(crate) ghost: Ghost,
    pub(crate) used: Option<(StreamIndex, Position)>,
}

impl Old {
    /// Whether the host has seen its last use complete.
    fn is_over(&self, completed: impl Fn(StreamIndex) -> Position) -> bool {
        self.used.is_none_or(|(stream, position)| completed(stream) >= position)
    }
}

/// The old mappings of all handles, the oldest of each first.
///
/// The lock is held while the device removes one, so that whoever finds it gone may map there. It is a leaf but for that.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    by_page: Mutex<BTreeMap<PageId, Vec<Old>>>,
}

impl Aliases {
    /// A handle left a heap: its mapping there is an old one. `completed` tells how far the host has seen streams.
    pub(crate) fn add(&self, device: &dyn Device, old: Old, completed: impl Fn(StreamIndex) -> Position) {
        let mut by_page = self.by_page.lock();
        let olds = by_page.entry(old.ghost.page).or_default();
        olds.push(old);
        if olds.len() <= KEPT || !olds[0].is_over(completed) {
            return;
        }
        match unmap(device, olds[0].ghost) {
            Ok(()) => drop(olds.remove(0)),
            Err(error) => tracing::warn!(%error, "an old mapping could not be removed; it stays"),
        }
    }

    /// An old mapping is going to be the present one of its handle again. `None` when it is not there any more.
    pub(crate) fn claim(&self, page: PageId, address: u64) -> Option<Old> {
        let mut by_page = self.by_page.lock();
        let olds = by_page.get_mut(&page)?;
        let at = olds.iter().position(|old| old.ghost.address == address)?;
        let old = olds.remove(at);
        if olds.is_empty() {
            by_page.remove(&page);
        }
        Some(old)
    }

    /// What has become of an old mapping.
    pub(crate) fn state(&self, ghost: Ghost, completed: impl Fn(StreamIndex) -> Position) -> GhostState {
        let by_page = self.by_page.lock();
        let mut olds = by_page.get(&ghost.page).into_iter().flatten();
        match olds.find(|old| old.ghost.address == ghost.address) {
            None => GhostState::Gone,
            Some(old) if old.is_over(completed) => GhostState::Over,
            Some(_) => GhostState::Used,
        }
    }

    /// Removes an old mapping whose last use is seen complete, if it is still there.
    pub(crate) fn remove(&self, device: &dyn Device, ghost: Ghost) -> DeviceResult<()> {
        let mut by_page = self.by_page.lock();
        let Some(olds) = by_page.get_mut(&ghost.page) else { return Ok(()) };
        if let Some(at) = olds.iter().position(|old| old.ghost.address == ghost.address) {
            unmap(device, ghost)?;
            olds.remove(at);
        }
        if olds.is_empty() {
            by_page.remove(&ghost.page);
        }
        Ok(())
    }

    /// Removes all old mappings of a handle that is to be given back. Whether none is left: one that is still used stays.
    pub(crate) fn remove_all(
        &self,
        device: &dyn Device,
        page: PageId,
        completed: impl Fn(StreamIndex) -> Position,
    ) -> DeviceResult<bool> {
        let mut by_page = self.by_page.lock();
        let Some(olds) = by_page.get_mut(&page) else { return Ok(true) };
        while let Some(old) = olds.last().filter(|old| old.is_over(&completed)) {
            unmap(device, old.ghost)?;
            olds.pop();
        }
        let all = olds.is_empty();
        if all {
            by_page.remove(&page);
        }
        Ok(all)
    }

    /// Whether one is left in `start..end`.
    pub(crate) fn any_in(&self, start: u64, end: u64) -> bool {
        let by_page = self.by_page.lock();
        by_page.values().flatten().any(|old| (start..end).contains(&old.ghost.address))
    }

    /// Bytes of addresses that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_page.lock().values().flatten().map(|old| old.ghost.bytes).sum()
    }
}

fn unmap(device: &dyn Device, ghost: Ghost) -> DeviceResult<()> {
    device.unmap(Address(ghost.address), ghost.bytes)
}

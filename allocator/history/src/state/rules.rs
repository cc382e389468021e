//! How the allocator that wrote a snapshot rounds: a request to a block, a block to what is asked of the driver.
//!
//! Snapshots say the bytes that programs asked for. What a block took is known only for those that are live at the end;
//! for the others it follows from these rules.

use crate::{
    SegmentKind,
    read::{Loaded, Setting},
};

/// The unit of blocks, bytes.
const BLOCK_BYTES: u64 = 512;
/// Largest block that comes from a small segment, bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// Bytes of a small segment, and the unit of large ones; the unit of mapped pages too.
pub(crate) const PAGE_BYTES: u64 = 2 << 20;
/// Blocks below this come from a segment of [`LARGE_SEGMENT_BYTES`].
pub(crate) const MID_BYTES: u64 = 10 << 20;
/// Bytes of the segments that several large blocks share.
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// No size is taken to be more than this.
pub(crate) const MOST_BYTES: u64 = 1 << 50;

/// The rules of one snapshot.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rules {
    /// Whether this project's allocator wrote it, which maps pages and has no segment sizes.
    pub(crate) own: bool,
    /// Bytes of a page, the unit in which memory is mapped.
    pub(crate) page_bytes: u64,
    /// Whether segments grow by mapping pages.
    pub(crate) expandable: bool,
    /// Blocks of this size or more are neither split nor given to smaller requests, bytes.
    pub(crate) max_split_bytes: Option<u64>,
    /// Part of the memory at which cached segments are returned, 0 for never.
    pub(crate) gc_threshold: f64,
    /// Divisions of a power of two that requests are rounded to, by the size in MiB from which they hold, ascending.
    divisions: Vec<(u64, u64)>,
}

impl Rules {
    pub(crate) fn of(loaded: &Loaded) -> Self {
        let int = |name| match loaded.setting(name) {
            Some(&Setting::Int(value)) => u64::try_from(value).ok(),
            _ => None,
        };
        let mut divisions = Vec::new();
        if let Some(Setting::Map(map)) = loaded.setting("roundup_power2_divisions") {
            let known = |&(key, count): &(_, i64)| {
                Some((loaded.symbols.text(key).parse().ok()?, u64::try_from(count).ok()?)).filter(|&(_, n)| n > 1)
            };
            divisions.extend(map.iter().filter_map(known));
            divisions.sort_unstable();
        }
        Self {
            own: loaded.recorder.is_some(),
            page_bytes: noted_page(loaded).unwrap_or(PAGE_BYTES),
            expandable: matches!(loaded.setting("expandable_segments"), Some(Setting::Bool(true))),
            max_split_bytes: int("max_split_size").filter(|&bytes| bytes > 0),
            gc_threshold: match loaded.setting("garbage_collection_threshold") {
                Some(&Setting::Float(value)) => value,
                _ => 0.0,
            },
            divisions,
        }
    }

    /// Bytes of the block for a request.
    pub(crate) fn block_bytes(&self, requested: u64) -> u64 {
        let bytes = requested.clamp(1, MOST_BYTES);
        let mib = (bytes >> 20).max(1);
        if let Some(&(_, count)) = self.divisions.iter().rev().find(|&&(from, _)| from <= mib)
            && bytes > BLOCK_BYTES.saturating_mul(count)
        {
            let floor = 1 << bytes.ilog2();
            let step = floor / count;
            return if step == 0 { bytes.next_power_of_two() } else { bytes.next_multiple_of(step) };
        }
        bytes.next_multiple_of(BLOCK_BYTES)
    }

    /// Bytes that the driver is asked for when no cached block fits.
    pub(crate) fn driver_bytes(&self, block: u64) -> u64 {
        let by_pages = self.own || self.expandable;
        if block <= SMALL_BYTES {
            self.page_bytes.max(block.next_multiple_of(self.page_bytes))
        } else if block < MID_BYTES && !by_pages {
            LARGE_SEGMENT_BYTES
        } else {
            block.next_multiple_of(self.page_bytes)
        }
    }

    /// Which segments serve a block.
    pub(crate) fn kind(&self, block: u64) -> SegmentKind {
        // This project's allocator keeps them apart by address, not by kind.
        if block <= SMALL_BYTES && !self.own { SegmentKind::Small } else { SegmentKind::Large }
    }

    /// Whether a free run may serve a block: blocks above the largest split size are kept for requests like them.
    pub(crate) fn may_serve(&self, run: u64, block: u64) -> bool {
        let Some(limit) = self.max_split_bytes else { return true };
        let run_is_oversize = run >= limit;
        if block < limit { !run_is_oversize } else { run < block.saturating_add(LARGE_SEGMENT_BYTES) }
    }
}

/// The granularity of the devices, if the recorder noted it.
fn noted_page(loaded: &Loaded) -> Option<u64> {
    let noted = loaded.devices.iter().filter_map(|device| device.notes.as_ref()?.granularity_bytes).max()?;
    Some(noted.clamp(BLOCK_BYTES, MOST_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Rules {
        Rules {
            own: false,
            page_bytes: PAGE_BYTES,
            expandable: false,
            max_split_bytes: None,
            gc_threshold: 0.0,
            divisions: Vec::new(),
        }
    }

    #[test]
    fn blocks_are_multiples_of_512_bytes_or_parts_of_a_power_of_two() {
        assert_eq!([0, 1, 512, 513].map(|bytes| plain().block_bytes(bytes)), [512, 512, 512, 1024]);
        let quarters = Rules { divisions: vec![(1, 4), (256, 8)], ..plain() };
        assert_eq!(quarters.block_bytes(1200), 1536, "too small for divisions");
        assert_eq!(quarters.block_bytes((5 << 20) + 1), 6 << 20);
        assert_eq!(quarters.block_bytes((256 << 20) + 1), (256 + 32) << 20);
        assert_eq!(plain().block_bytes(u64::MAX), MOST_BYTES);
    }

    #[test]
    fn the_driver_is_asked_for_whole_segments() {
        const MIB: u64 = 1 << 20;
        let asked = |rules: Rules| [512, MIB, MIB + 512, 10 * MIB, 11 * MIB].map(|b| rules.driver_bytes(b) / MIB);
        assert_eq!(asked(plain()), [2, 2, 20, 10, 12]);
        assert_eq!(asked(Rules { own: true, ..plain() }), [2, 2, 2, 10, 12]);
    }

    #[test]
    fn oversize_blocks_are_kept_for_oversize_requests() {
        let limited = Rules { max_split_bytes: Some(128 << 20), ..plain() };
        assert!(!limited.may_serve(200 << 20, 91 << 20) && limited.may_serve(100 << 20, 91 << 20));
        assert!(limited.may_serve(150 << 20, 140 << 20) && !limited.may_serve(200 << 20, 140 << 20));
        assert!(plain().may_serve(u64::MAX, 1));
    }
}

//! The allocator's counters, by key: the one place that knows which of them say what.

use std::collections::BTreeMap;

use highwater::Allocator;

/// What an allocator counts. `None`: this allocator has no such counter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counters {
    /// Most bytes in use at once, as asked for.
    pub(crate) peak_live_bytes: u64,
    /// Most physical bytes held at once.
    pub(crate) peak_reserved_bytes: u64,
    /// Times that a request blocked the host.
    pub(crate) host_stalls: u64,
    /// Waits put on streams.
    pub(crate) waits_inserted: u64,
    /// Handles that changed their place.
    pub(crate) pages_moved: Option<u64>,
}

impl Counters {
    /// The counters of this moment.
    pub(crate) fn of(allocator: &Allocator) -> Self {
        Self::from_keys(&allocator.memory_stats().to_map())
    }

    fn from_keys(keys: &BTreeMap<String, u64>) -> Self {
        let known = |key: &str| keys.get(key).copied();
        let needed = |key: &str| known(key).expect("every allocator has this counter");
        Counters {
            peak_live_bytes: needed("requested_bytes.all.peak"),
            peak_reserved_bytes: needed("reserved_bytes.all.peak"),
            host_stalls: needed("host_stalls"),
            waits_inserted: needed("waits_inserted"),
            pages_moved: known("pages_moved"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_not_there_is_not_0() {
        let mut keys: BTreeMap<String, u64> = ["requested_bytes.all.peak", "reserved_bytes.all.peak", "host_stalls"]
            .into_iter()
            .zip(1..)
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        keys.insert("waits_inserted".into(), 4);
        let counters = Counters::from_keys(&keys);
        assert_eq!((counters.peak_live_bytes, counters.peak_reserved_bytes), (1, 2));
        assert_eq!((counters.host_stalls, counters.waits_inserted, counters.pages_moved), (3, 4, None));
        keys.insert("pages_moved".into(), 9);
        assert_eq!(Counters::from_keys(&keys).pages_moved, Some(9));
    }
}

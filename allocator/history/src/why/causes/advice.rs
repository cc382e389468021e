//! What to do, where several places say it: about causes that snapshots and texts alike show.

/// What to do about memory that other streams hold.
pub(in crate::why) const HELD: &str = "\
    let the host run less far ahead (limit_all_gathers, a wait before the peak), use fewer record_stream, or \
    allocate on the stream that uses it";
/// What to do about private pools.
pub(in crate::why) const POOL: &str = "capture fewer sizes, large ones first, share one pool, or release graphs";
/// What to do about other processes.
pub(in crate::why) const PROCESS: &str = "end or move those processes; look whether several ranks use one device";
/// What to do about memory of this process outside of the allocator.
pub(in crate::why) const OUTSIDE: &str = "\
    communication libraries, math libraries and mapped handles of other processes take it: fewer groups, \
    smaller buffers, close handles, leave room for them";
/// What to do about a limit.
pub(in crate::why) const LIMIT: &str =
    "raise the limit (set_per_process_memory_fraction, per_process_memory_fraction), if it may be";

//! What an operation does, as amounts; and what the amounts cost, as time.

/// The amounts of an operation that decide its duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: u64,
    /// Device memory read and written, bytes.
    pub memory_bytes: u64,
    /// Bytes that cross a link between devices, or between host and device.
    pub link_bytes: u64,
    /// The exact duration, ns: replaces all of the above and every latency.
    pub exact_ns: Option<u64>,
}

impl Cost {
    /// Arithmetic over memory: a kernel.
    #[must_use]
    pub fn kernel(flops: u64, memory_bytes: u64) -> Self {
        Cost { flops, memory_bytes, ..Cost::default() }
    }

    /// A transfer over a link.
    #[must_use]
    pub fn transfer(link_bytes: u64) -> Self {
        Cost { link_bytes, ..Cost::default() }
    }

    /// An exact duration in ns (or in ticks, where a test counts those).
    #[must_use]
    pub fn exact(ns: u64) -> Self {
        Cost { exact_ns: Some(ns), ..Cost::default() }
    }
}

/// What amounts cost on a device, and what calls cost on its host. Integer ns throughout.
///
/// The default is one H200 (driver 580, CUDA 13.0) with the costs of its driver calls as measured there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CostModel {
    /// Arithmetic, FLOP per µs (fp32 without tensor cores).
    pub flops_per_us: u64,
    /// Device memory, bytes per µs.
    pub memory_bytes_per_us: u64,
    /// Links between devices, bytes per µs a device and direction.
    pub link_bytes_per_us: u64,
    /// Host to device and back, bytes per µs, pinned.
    pub host_link_bytes_per_us: u64,
    /// Least duration of a kernel, ns.
    pub kernel_latency_ns: u64,
    /// Added to every collective, ns.
    pub collective_latency_ns: u64,
    /// Added to every copy between host and device, ns.
    pub copy_latency_ns: u64,
    /// Host time of a launch or an asynchronous copy, ns.
    pub launch_ns: u64,
    /// Host time of a fence record, ns.
    pub record_ns: u64,
    /// Host time of a fence query, ns.
    pub query_ns: u64,
    /// Host time of a stream wait, ns.
    pub wait_ns: u64,
    /// Host time of a blocking wait beyond the waiting, ns.
    pub synchronize_ns: u64,
    /// Host time to create a handle, ns.
    pub create_ns: u64,
    /// Host time to map a handle, ns.
    pub map_ns: u64,
    /// Host time to set access, ns a handle.
    pub set_access_ns: u64,
    /// Host time to unmap a handle, ns.
    pub unmap_ns: u64,
    /// Host time to release a handle, ns.
    pub release_ns: u64,
    /// Host time to reserve or give back addresses, ns.
    pub reserve_ns: u64,
    /// Host time to ask for free memory, ns.
    pub memory_info_ns: u64,
    /// Host time to create or destroy a stream, ns.
    pub stream_ns: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            flops_per_us: 50_000_000,
            memory_bytes_per_us: 4_200_000,
            link_bytes_per_us: 400_000,
            host_link_bytes_per_us: 50_000,
            kernel_latency_ns: 2_500,
            collective_latency_ns: 9_000,
            copy_latency_ns: 2_000,
            launch_ns: 3_500,
            record_ns: 330,
            query_ns: 290,
            wait_ns: 250,
            synchronize_ns: 4_000,
            create_ns: 15_000,
            map_ns: 1_000,
            set_access_ns: 32_000,
            unmap_ns: 21_000,
            release_ns: 30_000,
            reserve_ns: 2_000,
            memory_info_ns: 6_600,
            stream_ns: 20_000,
        }
    }
}

impl CostModel {
    /// Every call and every latency is free and amounts take no time: only [`Cost::exact`] lasts. For timelines in
    /// ticks, where the host has submitted everything at time 0.
    #[must_use]
    pub fn free() -> Self {
        CostModel {
            flops_per_us: 0,
            memory_bytes_per_us: 0,
            link_bytes_per_us: 0,
            host_link_bytes_per_us: 0,
            kernel_latency_ns: 0,
            collective_latency_ns: 0,
            copy_latency_ns: 0,
            launch_ns: 0,
            record_ns: 0,
            query_ns: 0,
            wait_ns: 0,
            synchronize_ns: 0,
            create_ns: 0,
            map_ns: 0,
            set_access_ns: 0,
            unmap_ns: 0,
            release_ns: 0,
            reserve_ns: 0,
            memory_info_ns: 0,
            stream_ns: 0,
        }
    }

    /// Communication between devices takes no time; all else is unchanged.
    #[must_use]
    pub fn without_communication(self) -> Self {
        CostModel { link_bytes_per_us: 0, collective_latency_ns: 0, ..self }
    }

    /// Duration of a kernel, ns: the slower of its arithmetic and its memory traffic (roofline), not below the latency.
    #[must_use]
    pub fn kernel_ns(&self, cost: Cost) -> u64 {
        cost.exact_ns.unwrap_or_else(|| {
            span_ns(cost.flops, self.flops_per_us)
                .max(span_ns(cost.memory_bytes, self.memory_bytes_per_us))
                .max(self.kernel_latency_ns)
        })
    }

    /// Duration of a collective, ns: latency plus the link's time for the bytes that one device sends or receives.
    #[must_use]
    pub fn collective_ns(&self, cost: Cost) -> u64 {
        cost.exact_ns.unwrap_or_else(|| self.collective_latency_ns + span_ns(cost.link_bytes, self.link_bytes_per_us))
    }

    /// Duration of a copy of `bytes` between host and device, ns.
    #[must_use]
    pub fn host_copy_ns(&self, bytes: u64) -> u64 {
        self.copy_latency_ns + span_ns(bytes, self.host_link_bytes_per_us)
    }
}

/// Time for `amount` at `per_us`, ns, rounded up; a rate of 0 means that it takes no time.
fn span_ns(amount: u64, per_us: u64) -> u64 {
    if per_us == 0 { 0 } else { amount.saturating_mul(1_000).div_ceil(per_us) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_lasts_as_its_slower_side() {
        let model = CostModel::default();
        assert_eq!(model.kernel_ns(Cost::kernel(50_000_000, 0)), model.kernel_latency_ns.max(1_000));
        assert_eq!(model.kernel_ns(Cost::kernel(500_000_000, 42_000_000)), 10_000);
        assert_eq!(model.kernel_ns(Cost::kernel(50_000_000, 84_000_000)), 20_000);
        assert_eq!(model.kernel_ns(Cost::exact(7)), 7);
    }

    #[test]
    fn without_communication_only_links_are_free() {
        let model = CostModel::default().without_communication();
        assert_eq!(model.collective_ns(Cost::transfer(1 << 30)), 0);
        assert!(model.host_copy_ns(1 << 20) > 0);
    }
}

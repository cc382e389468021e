//! Ranks as threads on one GPU, and values whose sum depends on its order.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::{Allocator, Buffer, Settings, Stream};
use highwater_fsdp::group::ThreadGroup;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// One rank: its device, allocator and stream.
pub(crate) struct Rank {
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) allocator: Allocator,
    pub(crate) stream: Stream,
}

impl Rank {
    pub(crate) fn new() -> Self {
        let device = CudaDevice::new(CudaConfig::default()).unwrap();
        let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
        let stream = allocator.create_stream("communication").unwrap();
        Rank { device, allocator, stream }
    }

    pub(crate) fn upload(&self, values: &[f32]) -> Buffer<f32> {
        let buffer = self.stream.alloc(values.len()).unwrap();
        self.fill(&buffer, values);
        buffer
    }

    pub(crate) fn fill(&self, buffer: &Buffer<f32>, values: &[f32]) {
        let staging = self.allocator.pinned(values.len());
        staging.write(|elements: &mut [f32]| elements.copy_from_slice(values)).unwrap();
        self.stream.copy_to_device(&staging, buffer).unwrap();
    }

    pub(crate) fn download(&self, buffer: &Buffer<f32>) -> Vec<f32> {
        let staging = self.allocator.pinned(buffer.len());
        self.stream.copy_to_host(buffer, &staging).unwrap();
        staging.wait(TIMEOUT).unwrap();
        staging.read(<[f32]>::to_vec).unwrap()
    }
}

/// Runs `host` on a thread for each rank.
pub(crate) fn on_ranks<R: Send>(ranks: u32, host: impl Fn(ThreadGroup, &Rank) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let host = &host;
        let spawn = |group: ThreadGroup| scope.spawn(move || host(group.with_timeout(TIMEOUT), &Rank::new()));
        let threads: Vec<_> = ThreadGroup::all(ranks).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// `elements` numbers whose sums depend on the order, another set for each `seed`.
pub(crate) fn values(elements: usize, seed: usize) -> Vec<f32> {
    const NUMBERS: [f32; 8] = [1e8, 1.0, -1e8, 3.0, 0.125, -7e7, 0.3, 7e7];
    (0..elements).map(|place| NUMBERS[(seed + place * (1 + place / 8)) % 8] * (1.0 + place as f32)).collect()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

//! What the tests of the simulated device share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use highwater_device::sim::{Executed, Mode, SimCluster, SimConfig, SimDevice};
use highwater_device::{
    Access, Address, Body, ByteRange, Cost, CostModel, Device, HostMemory, Operand, Operation, StreamId, Waited,
};

/// Calls are free and operations last exactly as long as they say.
pub(crate) fn ticks() -> SimConfig {
    SimConfig { cost: CostModel::free(), timeline: true, workers: 0, memory_bytes: 1 << 30, ..SimConfig::default() }
}

pub(crate) fn adversarial(seed: u64) -> SimConfig {
    SimConfig { mode: Mode::Adversarial { seed }, ..ticks() }
}

/// Reserved, mapped and accessible memory.
pub(crate) fn memory(device: &SimDevice, granules: u64) -> Address {
    let bytes = granules * device.properties().granularity_bytes;
    let address = device.reserve(bytes).unwrap();
    let page = device.create(bytes).unwrap();
    device.map(page, address).unwrap();
    device.set_access(address, bytes).unwrap();
    address
}

pub(crate) fn read(address: Address, bytes: u64) -> Operand {
    Operand { range: ByteRange::new(address, bytes), access: Access::Read }
}

pub(crate) fn write(address: Address, bytes: u64) -> Operand {
    Operand { range: ByteRange::new(address, bytes), access: Access::Write }
}

pub(crate) fn update(address: Address, bytes: u64) -> Operand {
    Operand { range: ByteRange::new(address, bytes), access: Access::ReadWrite }
}

/// An operation that lasts `ns` and computes nothing.
pub(crate) fn idle(name: &'static str, ns: u64, operands: Vec<Operand>) -> Operation {
    Operation { name: name.into(), tag: 0, cost: Cost::exact(ns), operands, body: Body::Nothing }
}

/// Writes `value` to every byte.
pub(crate) fn fill(name: &'static str, ns: u64, address: Address, bytes: u64, value: u8) -> Operation {
    let body = Body::Host(Box::new(move |operands| operands[0].as_bytes_mut().fill(value)));
    Operation { body, ..idle(name, ns, vec![write(address, bytes)]) }
}

/// Copies within the device.
pub(crate) fn copy(name: &'static str, ns: u64, from: Address, to: Address, bytes: u64) -> Operation {
    let body = Body::Host(Box::new(|operands| {
        let (source, target) = operands.split_at_mut(1);
        target[0].as_bytes_mut().copy_from_slice(source[0].as_bytes());
    }));
    Operation { body, ..idle(name, ns, vec![read(from, bytes), write(to, bytes)]) }
}

/// Puts `after` behind everything submitted to `before`.
pub(crate) fn order(device: &SimDevice, before: StreamId, after: StreamId) {
    let fence = device.record(before).unwrap();
    device.wait(after, fence).unwrap();
    device.release_fence(fence);
}

pub(crate) fn finish(device: &SimDevice, stream: StreamId) {
    let fence = device.record(stream).unwrap();
    assert_eq!(device.synchronize(fence, None), Ok(Waited::Complete));
    device.release_fence(fence);
}

pub(crate) fn pinned(content: &[u8]) -> HostMemory {
    let memory = HostMemory::pinned(content.len() as u64);
    memory.write(|target: &mut [u8]| target.copy_from_slice(content));
    memory
}

/// Name, start and end of everything executed, in order.
pub(crate) fn spans(cluster: &SimCluster) -> Vec<(String, u64, u64)> {
    cluster.take_timeline().into_iter().map(|done| (done.name.into_owned(), done.start_ns, done.end_ns)).collect()
}

pub(crate) fn names(timeline: &[Executed]) -> Vec<&str> {
    timeline.iter().map(|done| &*done.name).collect()
}

pub(crate) fn streams<const N: usize>(device: &Arc<SimDevice>) -> [StreamId; N] {
    std::array::from_fn(|index| device.create_stream(&format!("s{index}")).unwrap())
}

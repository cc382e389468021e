//! One rank's part of a unit: parameters, gradients and the optimizer's state.

use std::time::Duration;

use highwater::{Allocator, Buffer, Stream};
use highwater_kernels::{self as kernels, host::AdamW};

use super::ModelError;

/// The longest time that setting up waits for a copy.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(60);

/// Shards start and end on multiples of this, elements: 512 bytes, the alignment of allocations.
const SHARD_ALIGNMENT: usize = 128;

/// The elements of a unit after padding: cut into `ranks` equal shards, each aligned to 512 bytes.
#[must_use]
pub fn padded_elements(elements: usize, ranks: u32) -> usize {
    elements.next_multiple_of(SHARD_ALIGNMENT * ranks as usize)
}

/// One rank's part of a unit. All four buffers have as many elements.
pub(super) struct Shard {
    pub(super) parameters: Buffer<f32>,
    pub(super) gradients: Buffer<f32>,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
}

impl Shard {
    /// Copies the parameters to the device and zeroes the rest.
    pub(super) fn new(allocator: &Allocator, stream: &Stream, parameters: &[f32]) -> Result<Self, ModelError> {
        let buffer = || stream.alloc::<f32>(parameters.len());
        let shard =
            Shard { parameters: buffer()?, gradients: buffer()?, first_moments: buffer()?, second_moments: buffer()? };
        let staging = allocator.pinned::<f32>(parameters.len());
        staging.write(|elements| elements.copy_from_slice(parameters))?;
        stream.copy_to_device(&staging, &shard.parameters)?;
        for zeroed in [&shard.gradients, &shard.first_moments, &shard.second_moments] {
            kernels::fill(stream, 0.0, zeroed.view())?;
        }
        staging.wait(SET_UP_TIMEOUT)?;
        Ok(shard)
    }

    /// One step of the optimizer; `step` counts from 1.
    pub(super) fn optimize(&self, stream: &Stream, adamw: AdamW, step: u64) -> Result<(), ModelError> {
        let views = kernels::AdamWViews {
            gradient: self.gradients.view(),
            parameter: self.parameters.view(),
            first_moment: self.first_moments.view(),
            second_moment: self.second_moments.view(),
        };
        Ok(kernels::adamw(stream, adamw, step, views)?)
    }
}

/// What is in a buffer, copied to the host; waits for everything before on the stream.
pub(super) fn read_back(allocator: &Allocator, stream: &Stream, source: &Buffer<f32>) -> Result<Vec<f32>, ModelError> {
    let staging = allocator.pinned::<f32>(source.len());
    stream.copy_to_host(source, &staging)?;
    staging.wait(SET_UP_TIMEOUT)?;
    Ok(staging.read(<[f32]>::to_vec)?)
}

//! What this crate has for GPUs alone.

use std::any::Any;

use highwater_device::Device;
use highwater_device::cuda::CudaDevice;

use crate::Stream;

/// The device as a GPU, if it is one.
#[must_use]
pub fn cuda_device(device: &dyn Device) -> Option<&CudaDevice> {
    let any: &dyn Any = device;
    any.downcast_ref()
}

impl Stream {
    /// The GPU, if the device is one.
    #[must_use]
    pub fn cuda_device(&self) -> Option<&CudaDevice> {
        cuda_device(&**self.device())
    }
}

//! The CUDA device: the contract over the driver, looked up at run time.
//!
//! Everything here builds where there is no CUDA. [`CudaDevice::new`] says in one line what is missing, if anything is.
//!
//! The files: `driver` holds the calls and, with `nvml`, all unsafe code, `device` answers the contract; `streams`, `fences` and
//! `memory` are its registries, `in_flight` what copies still need, `timeline` when operations ran, `counters` how often
//! calls were made.

mod counters;
mod device;
mod driver;
mod fences;
mod in_flight;
mod memory;
mod nvml;
mod streams;
mod timeline;

pub use device::{CudaConfig, CudaDevice};

/// What the driver is, as far as one can tell without a GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DriverVersion {
    /// The newest CUDA that it understands, major.
    pub major: u32,
    /// And minor.
    pub minor: u32,
}

impl std::fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The version of the driver.
///
/// # Errors
/// [`DeviceError::Missing`](crate::DeviceError::Missing) when there is none.
pub fn driver_version() -> crate::DeviceResult<DriverVersion> {
    device::check_present()?;
    let version = driver::version()?;
    Ok(DriverVersion { major: version / 1000, minor: version % 1000 / 10 })
}

/// How many GPUs the driver knows.
///
/// # Errors
/// [`DeviceError::Missing`](crate::DeviceError::Missing) when there is no driver; the driver's error otherwise.
pub fn device_count() -> crate::DeviceResult<u32> {
    device::check_present()?;
    device::count()
}

/// The result of a call of the driver that was made past this crate.
///
/// # Errors
/// The driver's answer, in its own words.
pub fn check_answer(call: crate::DeviceCall, answer: cudarc::driver::sys::CUresult) -> crate::DeviceResult<()> {
    driver::check(call, answer)
}

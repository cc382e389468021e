//! What every device must do, run over the simulated one in several modes, and over a GPU when ignored tests are asked
//! for. Another device joins by one line.

mod suite;

use std::sync::Arc;

use highwater_device::Device;
use highwater_device::sim::{Mode, SimConfig, SimDevice};

fn simulated(mode: Mode) -> Arc<dyn Device> {
    SimDevice::new(SimConfig { mode, workers: 1, memory_bytes: 256 << 20, ..SimConfig::default() })
}

#[cfg(feature = "cuda")]
fn gpu() -> Arc<dyn Device> {
    use highwater_device::cuda::{CudaConfig, CudaDevice};
    CudaDevice::new(CudaConfig { timing: true, ..CudaConfig::default() }).expect("these tests are run where a GPU is")
}

contract_suite!(timed, || simulated(Mode::Timed));
contract_suite!(adversarial_1, || simulated(Mode::Adversarial { seed: 1 }));
contract_suite!(adversarial_2, || simulated(Mode::Adversarial { seed: 2 }));
contract_suite!(adversarial_3, || simulated(Mode::Adversarial { seed: 3 }));
contract_suite!(adversarial_4, || simulated(Mode::Adversarial { seed: 4 }));

#[cfg(feature = "cuda")]
contract_suite!(
    #[ignore = "needs a GPU"]
    cuda,
    gpu
);

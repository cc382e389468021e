//! `highwater doctor`: what this machine has of what a GPU needs.

use highwater::device::Device;
use highwater::device::cuda::{CudaConfig, CudaDevice, device_count, driver_version};
use highwater_fsdp::group::nccl_version;
use highwater_kernels::cuda::{cublaslt_version, header_folder, nvrtc_version};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::failure::{Failure, InputError};
use crate::output;

/// The oldest driver that understands what this program says to it: CUDA 13.0.
const OLDEST_DRIVER: (u32, u32) = (13, 0);

/// What something needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Memory of a GPU, and no kernels.
    Memory,
    /// A training in one process.
    Training,
    /// A training over NCCL.
    TrainingInProcesses,
}

impl Need {
    /// Whether it does not go without the thing of this name.
    fn wants(self, name: &str) -> bool {
        match self {
            Need::Memory => [DRIVER, GPU].contains(&name),
            Need::Training => name != NCCL,
            Need::TrainingInProcesses => true,
        }
    }
}

/// One thing that is there, or not.
#[derive(Serialize)]
struct Finding {
    /// What it is.
    name: &'static str,
    /// Whether it is there and fit.
    ok: bool,
    /// Its version or size; or what is wrong, and what to do.
    told: String,
}

/// Refuses to go on without what is needed; the first thing that is missing is told.
pub(crate) fn require(need: Need) -> Result<(), InputError> {
    let mut all = vec![finding(DRIVER, driver())];
    // GPUs are not opened: somebody else's may be closed to this process.
    if all[0].ok && !matches!(device_count(), Ok(1..)) {
        all.extend(gpus());
    }
    all.extend(libraries());
    match all.into_iter().find(|finding| !finding.ok && need.wants(finding.name)) {
        Some(missing) => Err(InputError::NoGpu(missing.told)),
        None => Ok(()),
    }
}

const DRIVER: &str = "driver";
const GPU: &str = "GPU";
const NCCL: &str = "NCCL";

/// Tells what is there.
///
/// # Errors
/// When something is missing: the answer is no.
pub(crate) fn run(arguments: &DoctorArgs) -> Result<(), Failure> {
    let findings = findings();
    let text = if arguments.json { json(&findings) } else { table(&findings) };
    output::print(&text).map_err(Failure::Print)?;
    match findings.iter().filter(|finding| !finding.ok).count() {
        0 => Ok(()),
        missing => Err(Failure::Missing { missing }),
    }
}

fn findings() -> Vec<Finding> {
    let mut all = vec![finding(DRIVER, driver())];
    if all[0].ok {
        all.extend(gpus());
    }
    all.extend(libraries());
    all
}

fn libraries() -> Vec<Finding> {
    let mut all = Vec::new();
    let nvrtc = nvrtc_version().map(|(major, minor)| format!("{major}.{minor}"));
    all.push(finding("NVRTC", nvrtc.map_err(|error| error.to_string())));
    let headers = header_folder().map(|folder| folder.display().to_string());
    all.push(finding("CUDA headers", headers.map_err(|error| error.to_string())));
    let blas =
        cublaslt_version().map(|version| format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100));
    all.push(finding("cuBLASLt", blas.map_err(|error| error.to_string())));
    let nccl = nccl_version().map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
    all.push(finding(NCCL, nccl.map_err(|error| error.to_string())));
    all
}

fn finding(name: &'static str, looked: Result<String, String>) -> Finding {
    let ok = looked.is_ok();
    Finding { name, ok, told: looked.unwrap_or_else(|what| what) }
}

fn driver() -> Result<String, String> {
    let version = driver_version().map_err(|error| error.to_string())?;
    if (version.major, version.minor) < OLDEST_DRIVER {
        let (major, minor) = OLDEST_DRIVER;
        return Err(format!(
            "the CUDA driver understands CUDA {version}, too old; install one of version 580 or later (CUDA {major}.{minor})"
        ));
    }
    Ok(format!("understands CUDA {version}"))
}

/// Each GPU, or that there is none.
fn gpus() -> Vec<Finding> {
    match device_count() {
        Ok(0) => vec![finding(GPU, Err("the driver knows no GPU; nvidia-smi tells why".into()))],
        Ok(count) => (0..count).map(|ordinal| finding(GPU, gpu(ordinal))).collect(),
        Err(error) => vec![finding(GPU, Err(error.to_string()))],
    }
}

fn gpu(ordinal: u32) -> Result<String, String> {
    let look = || {
        let device = CudaDevice::new(CudaConfig { ordinal, ..CudaConfig::default() })?;
        let memory = device.memory_info()?;
        let (major, minor) = device.compute_capability()?;
        let name = &device.properties().name;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        Ok(format!(
            "{ordinal}: {name}, sm_{major}{minor}, {:.1} of {:.1} GiB free",
            gib(memory.free),
            gib(memory.total)
        ))
    };
    look().map_err(|error: highwater::device::DeviceError| error.to_string())
}

fn table(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let mark = if finding.ok { "ok      " } else { "missing " };
        format!("{:<14}{mark}{}\n", finding.name, finding.told)
    };
    findings.iter().map(line).collect()
}

fn json(findings: &[Finding]) -> String {
    serde_json::to_string(&serde_json::json!({ "ok": findings.iter().all(|f| f.ok), "findings": findings }))
        .expect("text is JSON")
        + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_looked_at_and_told_in_one_line() {
        let findings = findings();
        for name in ["driver", "NVRTC", "CUDA headers", "cuBLASLt", "NCCL"] {
            let found: Vec<_> = findings.iter().filter(|finding| finding.name == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            assert!(!found[0].told.is_empty() && found[0].told.lines().count() == 1, "{}", found[0].told);
        }
    }

    #[test]
    fn memory_needs_no_compiler_and_one_process_no_communication() {
        let names: Vec<_> = findings().iter().map(|finding| finding.name).chain([GPU]).collect();
        let wanted = |need: Need| names.iter().copied().filter(|name| need.wants(name)).collect::<Vec<_>>();
        assert!(wanted(Need::Memory).iter().all(|name| [DRIVER, GPU].contains(name)));
        assert!(wanted(Need::Memory).contains(&DRIVER) && wanted(Need::Memory).contains(&GPU));
        assert!(wanted(Need::Training).contains(&"NVRTC") && !wanted(Need::Training).contains(&NCCL));
        assert_eq!(wanted(Need::TrainingInProcesses), names);
    }

    #[test]
    fn the_table_says_what_is_missing() {
        let findings =
            [finding("driver", Ok("13.0".into())), finding("NVRTC", Err("it is missing: install it".into()))];
        assert_eq!(table(&findings), "driver        ok      13.0\nNVRTC         missing it is missing: install it\n");
        let parsed: serde_json::Value = serde_json::from_str(&json(&findings)).unwrap();
        assert_eq!(
            (&parsed["ok"], &parsed["findings"][1]["told"]),
            (&false.into(), &"it is missing: install it".into())
        );
    }
}

//! NVML, which comes with the driver and tells which processes have memory of a device. The driver itself does not.
//!
//! It is looked up at its first use, never closed, and not needed: without it, or where it is not allowed to tell, nobody
//! is told.
//!
//! - **signatures**: those of NVML's header since driver 510; answers are taken as numbers.
//! - **alive**: the library is opened once and kept for good, and with it the handles of its devices.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::ProcessMemory;

const SUCCESS: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;
/// "Not available", for bytes of a process.
const UNKNOWN: c_ulonglong = c_ulonglong::MAX;
/// More processes than that are not listed.
const MOST: usize = 1 << 12;

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProcessInfo {
    pid: c_uint,
    used_bytes: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type Init = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type Running = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int;

struct Nvml {
    by_uuid: ByUuid,
    /// Those that compute, and those that draw.
    running: [Running; 2],
}

/// The library, once it has answered.
fn nvml() -> Option<&'static Nvml> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    NVML.get_or_init(|| open("libnvidia-ml.so.1")).as_ref()
}

fn open(name: &str) -> Option<Nvml> {
    // SAFETY: the driver's own library, whose initialisers ask nothing of whoever loads it.
    let library: &'static Library = Box::leak(Box::new(unsafe { Library::new(name) }.ok()?));
    // SAFETY: signatures; alive.
    let (init, by_uuid, running) = unsafe {
        let running = |name: &CStr| library.get::<Running>(name).map(|function| *function);
        (
            *library.get::<Init>(c"nvmlInit_v2").ok()?,
            *library.get::<ByUuid>(c"nvmlDeviceGetHandleByUUID").ok()?,
            [
                running(c"nvmlDeviceGetComputeRunningProcesses_v3").ok()?,
                running(c"nvmlDeviceGetGraphicsRunningProcesses_v3").ok()?,
            ],
        )
    };
    // SAFETY: signatures.
    (unsafe { init() } == SUCCESS).then_some(Nvml { by_uuid, running })
}

/// The processes that have memory of the device of this id, by their number.
pub(super) fn processes(uuid: [u8; 16]) -> Vec<ProcessMemory> {
    let Some(nvml) = nvml() else { return Vec::new() };
    let own = std::process::id();
    // A part of a device (MIG) has an id of its own.
    let device = ["GPU", "MIG"].iter().find_map(|kind| nvml.device(&id(kind, uuid)));
    let mut all: Vec<ProcessMemory> = Vec::new();
    for info in device.into_iter().flat_map(|device| nvml.listed(device)) {
        let known = all.iter_mut().find(|known| known.pid == info.pid);
        match known {
            // One that computes and draws is listed twice, with the same bytes.
            Some(known) => known.bytes = known.bytes.max(info.used_bytes),
            None => all.push(ProcessMemory { pid: info.pid, bytes: info.used_bytes, is_own: info.pid == own }),
        }
    }
    all.sort_by_key(|process| process.pid);
    all
}

/// An id as NVML writes it: `GPU-6f1c33a2-….`
fn id(kind: &str, uuid: [u8; 16]) -> String {
    let mut text = kind.to_owned();
    for (index, byte) in uuid.iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&index) { "-" } else { "" };
        text.push_str(&format!("{dash}{byte:02x}"));
    }
    text
}

impl Nvml {
    fn device(&self, id: &str) -> Option<*mut c_void> {
        let id = CString::new(id).ok()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: signatures; the text lives through the call, and NVML stores one handle.
        let answer = unsafe { (self.by_uuid)(id.as_ptr(), &mut device) };
        (answer == SUCCESS).then_some(device)
    }

    /// Processes whose memory is known.
    fn listed(&self, device: *mut c_void) -> Vec<ProcessInfo> {
        let lists = self.running.iter().map(|&ask| {
            list(|count, infos| {
                // SAFETY: signatures; alive; there is room for `count` entries.
                unsafe { ask(device, count, infos) }
            })
        });
        lists.flatten().filter(|info| info.used_bytes != UNKNOWN).collect()
    }
}

/// What a call lists that says how many entries it needs.
fn list(ask: impl Fn(*mut c_uint, *mut ProcessInfo) -> c_int) -> Vec<ProcessInfo> {
    let nothing = ProcessInfo { pid: 0, used_bytes: 0, gpu_instance: 0, compute_instance: 0 };
    let mut infos = vec![nothing; 64];
    loop {
        let mut count = infos.len() as c_uint;
        match ask(&mut count, infos.as_mut_ptr()) {
            SUCCESS => {
                infos.truncate(count as usize);
                return infos;
            }
            // Others may come meanwhile.
            INSUFFICIENT_SIZE if infos.len() < MOST => infos.resize(MOST.min(2 * infos.len()), nothing),
            _ => return Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_tells_nobody() {
        assert!(open("libnvidia-ml-that-nobody-has.so").is_none());
    }

    #[test]
    fn ids_are_written_as_nvml_writes_them() {
        let uuid = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(id("GPU", uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_list_grows_until_it_holds_all() {
        let have = 200;
        let ask = |count: *mut c_uint, infos: *mut ProcessInfo| {
            // SAFETY: `list` hands a count and as many entries.
            unsafe {
                if (*count as usize) < have {
                    return INSUFFICIENT_SIZE;
                }
                *count = have as c_uint;
                for index in 0..have {
                    (*infos.add(index)).pid = index as c_uint;
                }
            }
            SUCCESS
        };
        let pids: Vec<_> = list(ask).iter().map(|info| info.pid).collect();
        assert_eq!(pids, (0..have as c_uint).collect::<Vec<_>>());
        assert!(list(|_, _| 999).is_empty(), "an error tells nobody");
        assert!(list(|_, _| INSUFFICIENT_SIZE).is_empty(), "it ends");
    }
}

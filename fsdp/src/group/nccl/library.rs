//! NCCL's library: looked up at run time, by the names that it goes by, with what makes its calls sound.
//!
//! `cudarc` has the types; its own loader knows the library as `libnccl.so` alone, which a Python package of NCCL has
//! not, and panics where it is missing.
//!
//! - **signatures**: those of NCCL's header since 2.18; answers are taken as numbers, for a newer NCCL may know more.
//! - **alive**: a [`Comm`] is made here, and ended by a call that takes it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::nccl::sys;
use highwater::device::{Address, DriverStream};
use libloading::Library;

use super::super::GroupError;

/// The answer of a call.
pub(super) type Answer = c_int;

pub(super) const SUCCESS: Answer = sys::ncclResult_t::ncclSuccess as Answer;
pub(super) const IN_PROGRESS: Answer = sys::ncclResult_t::ncclInProgress as Answer;

/// The path of the library, if it is nowhere that the loader looks.
const VARIABLE: &str = "HIGHWATER_NCCL";

/// Names that it goes by.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version whose calls are as they are used here.
const OLDEST: c_int = 21_800;

macro_rules! functions {
    ($($field:ident = $symbol:literal: ($($argument:ty),*) -> $answer:ty;)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl Functions {
            /// The library is kept for good, for the functions are.
            fn find(library: Library) -> Result<Self, libloading::Error> {
                let library: &'static Library = Box::leak(Box::new(library));
                // SAFETY: signatures.
                Ok(unsafe { Functions { $($field: *library.get(concat!($symbol, "\0"))?,)* } })
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion": (*mut c_int) -> Answer;
    get_unique_id = "ncclGetUniqueId": (*mut sys::ncclUniqueId) -> Answer;
    init = "ncclCommInitRankConfig":
        (*mut sys::ncclComm_t, c_int, sys::ncclUniqueId, c_int, *mut sys::ncclConfig_t) -> Answer;
    get_async_error = "ncclCommGetAsyncError": (sys::ncclComm_t, *mut Answer) -> Answer;
    finalize = "ncclCommFinalize": (sys::ncclComm_t) -> Answer;
    destroy = "ncclCommDestroy": (sys::ncclComm_t) -> Answer;
    abort = "ncclCommAbort": (sys::ncclComm_t) -> Answer;
    all_gather = "ncclAllGather":
        (*const c_void, *mut c_void, usize, c_int, sys::ncclComm_t, sys::cudaStream_t) -> Answer;
    reduce_scatter = "ncclReduceScatter":
        (*const c_void, *mut c_void, usize, c_int, c_int, sys::ncclComm_t, sys::cudaStream_t) -> Answer;
    get_error_string = "ncclGetErrorString": (Answer) -> *const c_char;
    get_last_error = "ncclGetLastError": (sys::ncclComm_t) -> *const c_char;
}

/// NCCL.
pub(super) struct Nccl {
    functions: Functions,
    version: c_int,
}

/// A communicator of NCCL.
pub(super) struct Comm(sys::ncclComm_t);

// SAFETY: NCCL's communicators may be used from any thread, by one at a time: there is no `Sync`.
unsafe impl Send for Comm {}

impl Nccl {
    /// The library, loaded at the first call.
    pub(super) fn get() -> Result<&'static Nccl, GroupError> {
        static NCCL: OnceLock<Result<Nccl, GroupError>> = OnceLock::new();
        NCCL.get_or_init(|| Self::load(std::env::var_os(VARIABLE).map(PathBuf::from))).as_ref().map_err(Clone::clone)
    }

    /// From a path, or by name.
    fn load(path: Option<PathBuf>) -> Result<Nccl, GroupError> {
        let missing = |what: String| GroupError::Missing { library: "NCCL (libnccl.so.2)".into(), what };
        let hint = format!("install NCCL 2.18 or later, or set {VARIABLE} to the path of the library");
        let names = path.map_or_else(|| NAMES.map(PathBuf::from).to_vec(), |path| vec![path]);
        let mut reasons = Vec::new();
        for name in names {
            // SAFETY: the library is NCCL, whose initializers need nothing.
            match unsafe { Library::new(&name) } {
                Ok(library) => {
                    let functions = Functions::find(library).map_err(|error| {
                        missing(format!("{} lacks a function ({}); {hint}", name.display(), reason(&error)))
                    })?;
                    let mut version = 0;
                    // SAFETY: signatures.
                    let answer = unsafe { (functions.get_version)(&mut version) };
                    if answer != SUCCESS || version < OLDEST {
                        let (major, minor, patch) = parts(version);
                        return Err(missing(format!("{} is {major}.{minor}.{patch}; {hint}", name.display())));
                    }
                    return Ok(Nccl { functions, version });
                }
                Err(error) => reasons.push(reason(&error)),
            }
        }
        Err(missing(format!("{hint} ({})", reasons.join("; "))))
    }

    /// Major, minor, patch.
    pub(super) fn version(&self) -> (u32, u32, u32) {
        parts(self.version)
    }

    /// What an answer means, with what NCCL says about the last error.
    pub(super) fn text(&self, answer: Answer) -> String {
        let text = |text: *const c_char| {
            // SAFETY: NCCL gives static strings that end with zero, or null.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned())
        };
        // SAFETY: signatures; the last error needs no communicator.
        let (name, last) = unsafe {
            ((self.functions.get_error_string)(answer), (self.functions.get_last_error)(std::ptr::null_mut()))
        };
        let name = text(name).unwrap_or_else(|| format!("answer {answer}"));
        match text(last).filter(|last| !last.is_empty()) {
            Some(last) => format!("{name} ({last})"),
            None => name,
        }
    }

    /// A new id of a group.
    pub(super) fn unique_id(&self) -> Result<[u8; 128], Answer> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: signatures.
        let answer = unsafe { (self.functions.get_unique_id)(&mut id) };
        if answer == SUCCESS { Ok(id.internal.map(|byte| byte as u8)) } else { Err(answer) }
    }

    /// Begins to make a communicator, on the context that is bound to this thread. There may be one after an error as
    /// well; it has to be aborted.
    pub(super) fn init(&self, ranks: u32, rank: u32, id: [u8; 128]) -> (Answer, Option<Comm>) {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut config = config();
        let mut comm = std::ptr::null_mut();
        // SAFETY: signatures; NCCL copies the configuration.
        let answer = unsafe { (self.functions.init)(&mut comm, ranks as c_int, id, rank as c_int, &mut config) };
        (answer, (!comm.is_null()).then_some(Comm(comm)))
    }

    /// How the last call on a communicator goes.
    pub(super) fn progress(&self, comm: &Comm) -> Answer {
        let mut state = IN_PROGRESS;
        // SAFETY: signatures, alive.
        let answer = unsafe { (self.functions.get_async_error)(comm.0, &mut state) };
        if answer == SUCCESS { state } else { answer }
    }

    /// Gathers in place: this rank's `elements` f32 stand in `all` already.
    pub(super) fn all_gather(
        &self,
        comm: &Comm,
        stream: DriverStream,
        all: (Address, Address),
        elements: usize,
    ) -> Answer {
        let (own, all) = all;
        // SAFETY: signatures, alive; addresses are numbers to the host, the stream is one of a launch's body.
        unsafe {
            let (own, all) = (own.0 as *const c_void, all.0 as *mut c_void);
            (self.functions.all_gather)(own, all, elements, FLOAT, comm.0, stream.0 as sys::cudaStream_t)
        }
    }

    /// Sums in place: the sum of `elements` f32 takes the place of this rank's in `all`.
    pub(super) fn reduce_scatter(
        &self,
        comm: &Comm,
        stream: DriverStream,
        all: (Address, Address),
        elements: usize,
    ) -> Answer {
        let (own, all) = all;
        // SAFETY: as above.
        unsafe {
            let (own, all) = (own.0 as *mut c_void, all.0 as *const c_void);
            (self.functions.reduce_scatter)(all, own, elements, FLOAT, SUM, comm.0, stream.0 as sys::cudaStream_t)
        }
    }

    /// Begins to end a communicator: what was submitted completes.
    pub(super) fn finalize(&self, comm: &Comm) -> Answer {
        // SAFETY: signatures, alive.
        unsafe { (self.functions.finalize)(comm.0) }
    }

    /// Frees a communicator that is finalized.
    pub(super) fn destroy(&self, comm: Comm) -> Answer {
        // SAFETY: signatures, alive, and gone now.
        unsafe { (self.functions.destroy)(comm.0) }
    }

    /// Ends a communicator whatever it does. It may take its time.
    pub(super) fn abort(&self, comm: Comm) -> Answer {
        // SAFETY: signatures, alive, and gone now.
        unsafe { (self.functions.abort)(comm.0) }
    }
}

const FLOAT: c_int = sys::ncclDataType_t::ncclFloat32 as c_int;
const SUM: c_int = sys::ncclRedOp_t::ncclSum as c_int;

/// A communicator whose calls return at once, and everything else as NCCL likes.
fn config() -> sys::ncclConfig_t {
    // What NCCL's header writes for "not set".
    const UNSET: c_int = c_int::MIN;
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 22_800,
        blocking: 0,
        cgaClusterSize: UNSET,
        minCTAs: UNSET,
        maxCTAs: UNSET,
        netName: std::ptr::null(),
        splitShare: UNSET,
        trafficClass: UNSET,
        commName: std::ptr::null(),
        collnetEnable: UNSET,
        CTAPolicy: UNSET,
        shrinkShare: UNSET,
        nvlsCTAs: UNSET,
        nChannelsPerNetPeer: UNSET,
        nvlinkCentricSched: UNSET,
    }
}

/// An error of the loader with what the system said.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Major, minor and patch of a version since 2.9.
fn parts(version: c_int) -> (u32, u32, u32) {
    let version = u32::try_from(version).unwrap_or(0);
    (version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_says_what_to_do() {
        let error = Nccl::load(Some("/nowhere/libnccl.so.2".into())).err().unwrap().to_string();
        let start = "NCCL (libnccl.so.2) is missing: install NCCL 2.18 or later, or set HIGHWATER_NCCL to the path";
        assert!(error.starts_with(start), "{error}");
        assert!(error.contains("/nowhere/libnccl.so.2"), "{error}");
    }

    #[test]
    fn a_library_that_is_not_nccl_is_an_error() {
        let error = Nccl::load(Some("libc.so.6".into())).err().unwrap().to_string();
        assert!(error.contains("libc.so.6 lacks a function"), "{error}");
    }

    #[test]
    fn versions_are_read() {
        assert_eq!((parts(22_809), parts(21_805), parts(-1)), ((2, 28, 9), (2, 18, 5), (0, 0, 0)));
    }
}

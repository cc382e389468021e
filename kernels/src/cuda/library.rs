//! What is loaded for one device: modules, functions, and cuBLASLt.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;
use highwater::device::cuda::CudaDevice;
use parking_lot::Mutex;

use super::compile::{Module, machine_code};
use super::matmul::Blas;
use super::{BuildError, launch};

/// Shared memory beyond this has to be asked for, bytes.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// Kernels and cuBLASLt on one device; loaded when first used, or by [`prepare`](super::prepare).
pub(crate) struct Library {
    context: Arc<CudaContext>,
    arch: String,
    loaded: Mutex<Loaded>,
    blas: Mutex<Option<Arc<Blas>>>,
}

#[derive(Default)]
struct Loaded {
    modules: BTreeMap<Module, Arc<CudaModule>>,
    functions: BTreeMap<String, Function>,
}

/// A kernel that is loaded.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) function: CudaFunction,
    /// Dynamic shared memory that it may use, bytes.
    shared_bytes: u32,
}

impl Library {
    /// The library of a device.
    pub(crate) fn of(device: &CudaDevice) -> Result<Arc<Library>, BuildError> {
        device.extension(|| {
            let context = device.context().clone();
            let failed = library_error("asking the GPU for its architecture");
            let (major, minor) = context.compute_capability().map_err(failed)?;
            let arch = format!("sm_{major}{minor}");
            Ok(Library { context, arch, loaded: Mutex::default(), blas: Mutex::default() })
        })
    }

    /// A kernel that may use `shared_bytes` of dynamic shared memory.
    pub(crate) fn function(&self, module: Module, entry: &str, shared_bytes: u32) -> Result<Function, BuildError> {
        let mut loaded = self.loaded.lock();
        if let Some(known) = loaded.functions.get(entry)
            && known.shared_bytes >= shared_bytes
        {
            return Ok(known.clone());
        }
        let code = self.module(&mut loaded, module)?;
        let failed = library_error(format!("loading {entry} of {}", module.file()));
        let function = code.load_function(entry).map_err(failed)?;
        if shared_bytes > SHARED_WITHOUT_ASKING {
            launch::allow_shared_bytes(&function, shared_bytes)
                .map_err(library_error(format!("asking for {shared_bytes} bytes of shared memory for {entry}")))?;
        }
        let function = Function { function, shared_bytes: shared_bytes.max(SHARED_WITHOUT_ASKING) };
        loaded.functions.insert(entry.to_owned(), function.clone());
        Ok(function)
    }

    /// cuBLASLt.
    pub(crate) fn blas(&self) -> Result<Arc<Blas>, BuildError> {
        let mut blas = self.blas.lock();
        if let Some(blas) = &*blas {
            return Ok(blas.clone());
        }
        self.context.bind_to_thread().map_err(library_error("taking the context for cuBLASLt"))?;
        Ok(blas.insert(Arc::new(Blas::new()?)).clone())
    }

    fn module(&self, loaded: &mut Loaded, module: Module) -> Result<Arc<CudaModule>, BuildError> {
        if let Some(code) = loaded.modules.get(&module) {
            return Ok(code.clone());
        }
        let code = machine_code(module, &self.arch)?;
        let failed = library_error(format!("loading {}", module.file()));
        let code = self.context.load_module(Ptx::from_binary(code)).map_err(failed)?;
        Ok(loaded.modules.entry(module).or_insert(code).clone())
    }

    /// Loads everything.
    pub(crate) fn load_all(&self) -> Result<(), BuildError> {
        for &module in Module::ALL {
            self.module(&mut self.loaded.lock(), module)?;
        }
        self.blas().map(drop)
    }
}

/// The error of a call of cudarc.
fn library_error(doing: impl Into<String>) -> impl FnOnce(cudarc::driver::DriverError) -> BuildError {
    let doing = doing.into();
    move |error| {
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        BuildError::Library { doing, answer: text.unwrap_or_else(|_| format!("{:?}", error.0)) }
    }
}

//! Matrix products by cuBLASLt, with what makes its calls sound.
//!
//! The library thinks in columns: a row-major matrix is to it the transposed one. So C = A·B is computed as Cᵀ = Bᵀ·Aᵀ:
//! its first factor is our second, and nothing is moved.
//!
//! Sums are in f32, and TF32 is off: `f32` products round as f32 does. What was chosen for a shape is kept, so the same
//! product has the same bits every time.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use cudarc::cublaslt::sys;
use highwater::device::{DeviceCall, DeviceError, DeviceResult, DriverStream};
use parking_lot::Mutex;

use super::BuildError;
use crate::host::{MatmulShape, Transposed, Update};

const LIBRARY: &str = "cuBLASLt (libcublasLt.so)";

/// The most memory that a product may work in, bytes.
const MOST_WORKSPACE_BYTES: usize = 32 << 20;

/// Parts of a sum may be added up in the type of the computation alone, not in the output's: a `bf16` result is rounded
/// once. What the library calls `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`.
const SUMS_IN_F32: u32 = 2;

/// The best alignment that the library asks for, bytes.
const BEST_ALIGNMENT: u64 = 256;

/// # Errors
/// [`BuildError::Missing`] when the library is not there.
fn check_present() -> Result<(), BuildError> {
    // SAFETY: it opens the library and closes it again, which runs no code of ours.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    let what = "install CUDA 13.0's cuBLAS and put its folder on LD_LIBRARY_PATH";
    Err(BuildError::Missing { library: LIBRARY, what })
}

/// The library's version: 10000 · major + 100 · minor + patch.
///
/// # Errors
/// [`BuildError::Missing`] when it is not there.
pub fn cublaslt_version() -> Result<usize, BuildError> {
    check_present()?;
    // SAFETY: the library is there.
    Ok(unsafe { sys::cublasLtGetVersion() })
}

/// The type of the elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ElementType {
    /// `f32`.
    F32,
    /// `bf16`.
    Bf16,
}

/// One kind of product: everything that the choice of an algorithm depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Kind {
    element: ElementType,
    rows: usize,
    inner: usize,
    columns: usize,
    /// Which factors are stored transposed.
    transposed: (bool, bool),
    accumulate: bool,
    /// Alignment of the three matrices, bytes.
    alignment: [u32; 3],
}

impl Kind {
    pub(crate) fn new(
        element: ElementType,
        shape: MatmulShape,
        transposed: Transposed,
        update: Update,
        addresses: [u64; 3],
    ) -> Self {
        let MatmulShape { rows, inner, columns } = shape;
        let alignment = |address: u64| (1 << address.trailing_zeros().min(8)).min(BEST_ALIGNMENT as u32);
        Kind {
            element,
            rows,
            inner,
            columns,
            transposed: (transposed == Transposed::Left, transposed == Transposed::Right),
            accumulate: update == Update::Accumulate,
            alignment: addresses.map(alignment),
        }
    }
}

/// The library on one device.
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    plans: Mutex<BTreeMap<Kind, Arc<Plan>>>,
}

// SAFETY: the library's handle may be used from any thread.
unsafe impl Send for Blas {}
// SAFETY: as above; the library locks.
unsafe impl Sync for Blas {}

impl Blas {
    /// The context of the device is current.
    pub(super) fn new() -> Result<Self, BuildError> {
        check_present()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is there; it stores one handle.
        check("starting cuBLASLt", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(Blas { handle, plans: Mutex::default() })
    }

    /// How a kind of product is computed.
    pub(crate) fn plan(&self, kind: Kind) -> Result<Arc<Plan>, BuildError> {
        if let Some(known) = self.plans.lock().get(&kind) {
            return Ok(known.clone());
        }
        let plan = Arc::new(Plan::new(self.handle, kind)?);
        Ok(self.plans.lock().entry(kind).or_insert(plan).clone())
    }

    /// Submits a product; `addresses` are those of our A, B and C, and `workspace` has as many bytes as the plan says.
    pub(crate) fn submit(
        &self,
        plan: &Plan,
        stream: DriverStream,
        addresses: [u64; 3],
        workspace: u64,
    ) -> DeviceResult<()> {
        let [a, b, c] = addresses;
        let (alpha, beta) = (1.0f32, if plan.kind.accumulate { 1.0f32 } else { 0.0 });
        let number = |number: &f32| std::ptr::from_ref(number).cast::<c_void>();
        // SAFETY: handle and descriptions are alive; the addresses are of device memory that has the shapes of the
        // plan, and the alignment that its algorithm was chosen for.
        let answer = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                plan.product.0,
                number(&alpha),
                b as *const c_void,
                plan.first.0,
                a as *const c_void,
                plan.second.0,
                number(&beta),
                c as *const c_void,
                plan.result.0,
                c as *mut c_void,
                plan.result.0,
                &plan.algorithm,
                workspace as *mut c_void,
                plan.workspace_bytes,
                stream.0 as sys::cudaStream_t,
            )
        };
        check("a matrix product", answer).map_err(|error| DeviceError::Driver {
            call: DeviceCall::Launch,
            name: "cuBLASLt".into(),
            text: error.to_string(),
        })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is gone now.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// How one kind of product is computed.
pub(crate) struct Plan {
    kind: Kind,
    product: Product,
    first: Layout,
    second: Layout,
    result: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
    pub(crate) workspace_bytes: usize,
}

// SAFETY: descriptions are only read once they are made.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

struct Product(sys::cublasLtMatmulDesc_t);

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is gone now.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

struct Layout(sys::cublasLtMatrixLayout_t);

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is gone now.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

impl Layout {
    /// A row-major matrix, or its transposed one to the library.
    fn row_major(element: ElementType, rows: usize, columns: usize) -> Result<Self, BuildError> {
        let mut layout = std::ptr::null_mut();
        let leading = i64::try_from(columns).unwrap_or(i64::MAX);
        // SAFETY: the library is there; it stores one handle.
        let answer = unsafe {
            sys::cublasLtMatrixLayoutCreate(&mut layout, element.data_type(), columns as u64, rows as u64, leading)
        };
        check("describing a matrix", answer)?;
        Ok(Layout(layout))
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<(), BuildError> {
        let value_at = std::ptr::from_ref(value).cast();
        // SAFETY: the preference is alive, and the value is of the attribute's type (its callers, below).
        let answer = unsafe { sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value_at, size_of::<T>()) };
        check("describing a preference", answer)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is gone now.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

impl ElementType {
    fn data_type(self) -> sys::cudaDataType_t {
        match self {
            ElementType::F32 => sys::cudaDataType_t::CUDA_R_32F,
            ElementType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        }
    }
}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, kind: Kind) -> Result<Self, BuildError> {
        let Kind { element, rows, inner, columns, transposed, .. } = kind;
        let stored = |transposed: bool, rows, columns| match transposed {
            false => Layout::row_major(element, rows, columns),
            true => Layout::row_major(element, columns, rows),
        };
        let product = Self::product(transposed)?;
        let (first, second) = (stored(transposed.1, inner, columns)?, stored(transposed.0, rows, inner)?);
        let result = Layout::row_major(element, rows, columns)?;
        let preference = Self::preference(kind)?;
        let mut found = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let mut count = 0;
        // SAFETY: all descriptions are alive; the library stores at most one result, and how many.
        let answer = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                product.0,
                first.0,
                second.0,
                result.0,
                result.0,
                preference.0,
                1,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        let doing = format!("choosing how to compute {kind:?}");
        check(&doing, answer)?;
        if count == 0 {
            return Err(BuildError::Library { doing, answer: "there is no way".into() });
        }
        // SAFETY: the library has stored one result; it is plain data.
        let found = unsafe { found.assume_init() };
        Ok(Plan { kind, product, first, second, result, algorithm: found.algo, workspace_bytes: found.workspaceSize })
    }

    /// Sums in f32. To the library our second factor comes first.
    fn product(transposed: (bool, bool)) -> Result<Product, BuildError> {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let mut product = std::ptr::null_mut();
        // SAFETY: the library is there; it stores one handle.
        let answer = unsafe { sys::cublasLtMatmulDescCreate(&mut product, compute, sys::cudaDataType_t::CUDA_R_32F) };
        check("describing a product", answer)?;
        let product = Product(product);
        // What the library calls CUBLAS_OP_N and CUBLAS_OP_T.
        let operation = |transposed: bool| i32::from(transposed);
        for (attribute, value) in [
            (sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, operation(transposed.1)),
            (sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, operation(transposed.0)),
        ] {
            let value_at = std::ptr::from_ref(&value).cast();
            // SAFETY: the description is alive, and the value is of the attribute's type.
            let answer =
                unsafe { sys::cublasLtMatmulDescSetAttribute(product.0, attribute, value_at, size_of_val(&value)) };
            check("describing a product", answer)?;
        }
        Ok(product)
    }

    fn preference(kind: Kind) -> Result<Preference, BuildError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let mut preference = std::ptr::null_mut();
        // SAFETY: the library is there; it stores one handle.
        let answer = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut preference) };
        check("describing a preference", answer)?;
        let preference = Preference(preference);
        let most: u64 = MOST_WORKSPACE_BYTES as u64;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &SUMS_IN_F32)?;
        let [a, b, c] = kind.alignment;
        for (attribute, alignment) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
        ] {
            preference.set::<u32>(attribute, &alignment)?;
        }
        Ok(preference)
    }
}

fn check(doing: &str, answer: sys::cublasStatus_t) -> Result<(), BuildError> {
    if answer == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: the library is there, and answers with a static text.
    let text = unsafe { CStr::from_ptr(sys::cublasLtGetStatusString(answer)) };
    Err(BuildError::Library { doing: doing.into(), answer: text.to_string_lossy().into_owned() })
}

//! What cudarc takes: calls that are never made, because they compile or not.
#![allow(unsafe_code)]

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{CudaBlasLT, Matmul, MatmulConfig};
use cudarc::driver::{DevicePtr, DevicePtrMut, DriverError};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::{Comm, ReduceOp};
use highwater::{Buffer, On, View};

const _: () = {
    let _ = collectives;
    let _ = products;
    let _ = copies;
    let _ = everything_is_memory_of_cudarc;
};

fn collectives(
    comm: &Comm,
    whole: &Buffer<f32>,
    sum: &mut Buffer<f32>,
    part: &mut On<'_, f32>,
) -> Result<(), NcclError> {
    comm.all_reduce(whole, sum, &ReduceOp::Sum)?;
    comm.reduce_scatter(whole, part, &ReduceOp::Sum)?;
    comm.all_gather(&*part, sum)?;
    comm.broadcast_in_place(&mut sum.slice(..4), 0)?;
    comm.send(part, 1)
}

fn products(
    blas: &CudaBlasLT,
    config: MatmulConfig,
    plain: [&Buffer<f32>; 2],
    guarded: [&On<'_, f32>; 2],
    product: &mut On<'_, f32>,
) -> Result<(), CublasError> {
    // SAFETY: it is never called.
    unsafe { blas.matmul(config, plain[0], plain[1], product, None, None) }?;
    // SAFETY: as above.
    unsafe { blas.matmul(config, guarded[0], guarded[1], product, Some(guarded[0]), None) }
}

fn copies(source: &Buffer<u32>, target: &mut On<'_, u32>, mut part: View<'_, u32>) -> Result<(), DriverError> {
    let stream = source.stream().cuda_stream().expect("never called");
    stream.memcpy_dtod(source, target)?;
    stream.memcpy_dtod(&*target, &mut part)?;
    stream.clone_dtoh(&part).map(drop)
}

fn everything_is_memory_of_cudarc() {
    fn memory<T, M: DevicePtr<T> + DevicePtrMut<T>>() {}
    fn anywhere<T: Send + Sync>() {}
    memory::<f32, Buffer<f32>>();
    memory::<u8, View<'_, u8>>();
    memory::<f64, On<'_, f64>>();
    anywhere::<Buffer<f32>>();
    anywhere::<On<'_, f32>>();
}

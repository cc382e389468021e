//! One program of cudarc twice: with cudarc's memory, and with this allocator's. The lines that change are marked.
#![allow(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{self, compile_ptx};
use highwater::Allocator;
use highwater::device::cuda::{CudaConfig, CudaDevice, driver_version};

const SINE: &str = r#"
extern "C" __global__ void sine(float *out, const float *in, size_t len) {
    size_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < len) out[i] = sinf(in[i]);
}
"#;

fn before(context: &Arc<CudaContext>, sine: &CudaFunction, values: &[f32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let stream = context.new_stream()?;
    let mut input = stream.alloc_zeros::<f32>(values.len())?;
    let mut output = stream.alloc_zeros::<f32>(values.len())?;
    stream.memcpy_htod(values, &mut input)?;
    let len = values.len();
    let mut launch = stream.launch_builder(sine);
    launch.arg(&mut output).arg(&input).arg(&len);
    // SAFETY: the arguments are those of the kernel, and both slices have `len` elements.
    unsafe { launch.launch(LaunchConfig::for_num_elems(len as u32)) }?;
    Ok(stream.clone_dtoh(&output)?)
}

fn after(context: &Arc<CudaContext>, sine: &CudaFunction, values: &[f32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let allocator = Allocator::new(CudaDevice::with_context(context.clone(), CudaConfig::default())?)?; // 1
    let stream = context.new_stream()?;
    let memory = allocator.adopt_stream(&stream, "main")?; // 2
    let mut input = memory.alloc::<f32>(values.len())?; // 3
    let output = memory.alloc::<f32>(values.len())?; // 4
    stream.memcpy_htod(values, &mut input)?;
    let len = values.len();
    let (out, inp) = (output.on(&stream)?, input.on(&stream)?); // 5
    let mut launch = stream.launch_builder(sine);
    launch.arg(&out).arg(&inp).arg(&len);
    // SAFETY: the arguments are those of the kernel, and both buffers have `len` elements.
    unsafe { launch.launch(LaunchConfig::for_num_elems(len as u32)) }?;
    Ok(stream.clone_dtoh(&output)?)
}

fn run() -> Result<(), Box<dyn Error>> {
    // A library that is missing is a panic inside cudarc: they are looked for first.
    driver_version()?;
    // SAFETY: it opens the library and closes it again, which runs no code of this program.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err("CUDA's compiler (libnvrtc.so) is not here: put its folder on LD_LIBRARY_PATH".into());
    }
    let context = CudaContext::new(0)?;
    let sine = context.load_module(compile_ptx(SINE)?)?.load_function("sine")?;
    let values: Vec<f32> = (0..1 << 20).map(|index| index as f32 / 1000.0).collect();
    let (theirs, ours) = (before(&context, &sine, &values)?, after(&context, &sine, &values)?);
    if theirs != ours {
        return Err("the two programs differ".into());
    }
    println!("{} sines, the same both times", ours.len());
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

//! The stage: a GPU, an allocator, and kernels that fill, check and wait.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::compile_ptx;
use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::{Allocator, Buffer, MemoryStats, On, Settings, SettingsBuilder, Stream};

use crate::bulk;

/// Elements of a buffer of the tests: 8 MiB.
pub(crate) const LEN: usize = 2 << 20;
/// Their bytes.
pub(crate) const BYTES: u64 = 4 * LEN as u64;
/// Long enough for everything here.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Cycles after which a gate gives up: about ten seconds.
const PATIENCE: i64 = 20_000_000_000;

const KERNELS: &str = r#"
extern "C" __global__ void fill(unsigned *words, size_t len, unsigned value) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < len; i += gridDim.x * blockDim.x) words[i] = value;
}
extern "C" __global__ void check(const unsigned *words, size_t len, unsigned value, unsigned *wrong) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < len; i += gridDim.x * blockDim.x)
        if (words[i] != value) atomicAdd(wrong, 1u);
}
extern "C" __global__ void check_read_only(const unsigned *__restrict__ words, size_t len, unsigned value, unsigned *wrong) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < len; i += gridDim.x * blockDim.x)
        if (__ldg(words + i) != value) atomicAdd(wrong, 1u);
}
extern "C" __global__ void gate(volatile unsigned *closed, long long patience) {
    long long start = clock64();
    while (*closed != 0 && clock64() - start < patience) {}
}
"#;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A GPU with an allocator.
pub(crate) struct World {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) allocator: Allocator,
    /// Words that a check found wrong, as the device counts them.
    wrong: CudaSlice<u32>,
    wrong_address: u64,
    /// The stream of the test itself, which opens gates and reads results.
    side: Arc<CudaStream>,
    fill: CudaFunction,
    /// One for each kind of load: plain ones, those of memory that nobody writes, and in bulk where the GPU has them.
    checks: Vec<CudaFunction>,
    gate: CudaFunction,
    kept: Mutex<Vec<CudaSlice<u32>>>,
    _alone: MutexGuard<'static, ()>,
}

/// Holds a stream back until it is opened.
pub(crate) struct Gate {
    closed: CudaSlice<u32>,
    side: Arc<CudaStream>,
}

impl Gate {
    pub(crate) fn open(self) {
        let Gate { mut closed, side } = self;
        side.memset_zeros(&mut closed).unwrap();
        // The kernel may look at the word any time later: it must not become the word of another gate.
        std::mem::forget(closed);
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Settings::builder())
    }

    pub(crate) fn with(settings: SettingsBuilder) -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let context = CudaContext::new(0).expect("these tests are run where a GPU is");
        let device = CudaDevice::with_context(context.clone(), CudaConfig::default()).unwrap();
        let allocator = Allocator::with_settings(device.clone(), settings.build().unwrap()).unwrap();
        let module = context.load_module(compile_ptx(KERNELS).unwrap()).unwrap();
        let [fill, check, check_read_only, gate] =
            ["fill", "check", "check_read_only", "gate"].map(|name| module.load_function(name).unwrap());
        let checks = [check, check_read_only].into_iter().chain(bulk::check(&context)).collect();
        let side = context.new_stream().unwrap();
        let wrong = side.alloc_zeros(1).unwrap();
        let wrong_address = address_of(&wrong, &side);
        let world = World {
            context,
            device,
            allocator,
            wrong,
            wrong_address,
            side,
            fill,
            checks,
            gate,
            kept: Mutex::default(),
            _alone: alone,
        };
        world.warm_up();
        world
    }

    /// Loading a kernel may wait for those that run: all are run once, before any gate is closed, and so is a graph.
    fn warm_up(&self) {
        self.gate(&self.cudarc_stream()).open();
        let mut words = self.side.alloc_zeros::<u32>(2).unwrap();
        let address = address_of(&words, &self.side);
        self.launch_fill(&self.side, address, 1, 0);
        self.launch_check(&self.side, address, 1, 0);
        self.side.memcpy_htod(&[0u32, 0], &mut words).unwrap();
        let _ = self.side.clone_dtoh(&self.side.clone_dtod(&words).unwrap()).unwrap();
        let graph = self.graph(&self.cudarc_stream(), |stream| self.launch_fill(stream, address, 1, 0));
        graph.launch().unwrap();
        self.context.synchronize().unwrap();
    }

    /// A stream of cudarc that the allocator does not know.
    pub(crate) fn cudarc_stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().unwrap()
    }

    /// A stream of cudarc that was adopted.
    pub(crate) fn adopted(&self, name: &str) -> (Arc<CudaStream>, Stream) {
        let cuda = self.cudarc_stream();
        let stream = self.allocator.adopt_stream(&cuda, name).unwrap();
        (cuda, stream)
    }

    /// Holds back what `stream` is given from now on.
    pub(crate) fn gate(&self, stream: &Arc<CudaStream>) -> Gate {
        let closed = self.side.clone_htod(&[1u32]).unwrap();
        let address = address_of(&closed, &self.side);
        self.side.synchronize().unwrap();
        let mut launch = stream.launch_builder(&self.gate);
        launch.arg(&address).arg(&PATIENCE);
        // SAFETY: the word lives as long as the gate, which is opened or waited for before it goes.
        unsafe { launch.launch(config(1, 1)) }.unwrap();
        Gate { closed, side: self.side.clone() }
    }

    /// Writes `value` to every word, on the guard's stream.
    pub(crate) fn fill(&self, words: &On<'_, u32>, value: u32) {
        let stream = words.stream().cuda_stream().unwrap();
        let len = words.len();
        let mut launch = stream.launch_builder(&self.fill);
        launch.arg(words).arg(&len).arg(&value);
        // SAFETY: the arguments are those of the kernel, and the words are `len`.
        unsafe { launch.launch(config(64, 256)) }.unwrap();
    }

    /// Looks for `value` in every word, on the guard's stream, by each kind of load.
    pub(crate) fn check(&self, words: &On<'_, u32>, value: u32) {
        let stream = words.stream().cuda_stream().unwrap();
        self.launch_check(&stream, words.address().0, words.len(), value);
    }

    pub(crate) fn launch_fill(&self, stream: &Arc<CudaStream>, address: u64, len: usize, value: u32) {
        let mut launch = stream.launch_builder(&self.fill);
        launch.arg(&address).arg(&len).arg(&value);
        // SAFETY: the arguments are those of the kernel, and there are `len` words at the address.
        unsafe { launch.launch(config(64, 256)) }.unwrap();
    }

    pub(crate) fn launch_check(&self, stream: &Arc<CudaStream>, address: u64, len: usize, value: u32) {
        for check in &self.checks {
            let mut launch = stream.launch_builder(check);
            launch.arg(&address).arg(&len).arg(&value).arg(&self.wrong_address);
            // SAFETY: the arguments are those of the kernel, and there are `len` words at the address.
            unsafe { launch.launch(config(64, 256)) }.unwrap();
        }
    }

    /// What `work` gives to a stream, as a graph.
    pub(crate) fn graph(&self, stream: &Arc<CudaStream>, work: impl FnOnce(&Arc<CudaStream>)) -> CudaGraph {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        work(stream);
        stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("nothing spoilt it")
    }

    /// A buffer of [`LEN`] words with `value` in each.
    pub(crate) fn filled(&self, stream: &Stream, value: u32) -> Buffer<u32> {
        let buffer = stream.alloc(LEN).unwrap();
        self.fill(&buffer.on(stream).unwrap(), value);
        buffer
    }

    /// Words of cudarc's own with one value in each.
    pub(crate) fn constant(&self, value: u32, len: usize) -> CudaSlice<u32> {
        let words = self.side.alloc_zeros(len).unwrap();
        self.launch_fill(&self.side, address_of(&words, &self.side), len, value);
        self.side.synchronize().unwrap();
        words
    }

    /// Keeps words of cudarc's own until the end: their memory may still be read.
    pub(crate) fn keep(&self, words: CudaSlice<u32>) {
        self.kept.lock().unwrap().push(words);
    }

    /// Cudarc stops to record events, as programs with one stream ask it to.
    pub(crate) fn without_event_tracking(&self) {
        // SAFETY: the test orders its streams itself.
        unsafe { self.context.disable_event_tracking() };
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.allocator.memory_stats()
    }

    /// Returns all free memory to the device; what is still held.
    pub(crate) fn trim(&self) -> u64 {
        self.allocator.default_stream().record().unwrap().wait(LONG).unwrap();
        self.allocator.trim(0)
    }

    /// How many kinds of load a check is made of.
    pub(crate) fn kinds_of_load(&self) -> u32 {
        self.checks.len() as u32
    }

    /// Waits for everything. How many words the checks found wrong, those of all kinds of load added up.
    pub(crate) fn wrong_words(&self) -> u32 {
        self.context.synchronize().unwrap();
        self.side.clone_dtoh(&self.wrong).unwrap()[0]
    }

    /// Waits for everything, and asserts that no check found anything wrong.
    #[track_caller]
    pub(crate) fn settle(&self) {
        assert_eq!(self.wrong_words(), 0, "words were wrong");
        self.context.check_err().unwrap();
        self.allocator.check().unwrap();
    }
}

fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// The address alone, so that cudarc orders nothing by it.
fn address_of(words: &CudaSlice<u32>, stream: &CudaStream) -> u64 {
    words.device_ptr(stream).0
}

/// The address of a buffer, for comparing: read from its text, so that it does not count as given away.
pub(crate) fn address(buffer: &Buffer<u32>) -> u64 {
    let text = format!("{buffer:?}");
    let digits = text.split("at 0x").nth(1).and_then(|rest| rest.split(' ').next());
    u64::from_str_radix(digits.expect("the text names the address"), 16).unwrap()
}

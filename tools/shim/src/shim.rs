//! What happens to each call of the program: served here, or left to the driver.
//!
//! A call of a function here answers `None` when the driver is to serve it. That is so for memory that is not ours, in
//! contexts that are not primary ones, on streams that capture (what they ask for belongs to their graph), and for
//! arguments that the driver refuses in its own words.
//!
//! Order of the locks: the contexts, then a GPU's own; the blocks are held alone.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use highwater::AllocError;
use parking_lot::{Mutex, RwLock};

use crate::counts::{Counts, count};
use crate::ffi::{self, Answer};
use crate::gpu::{Gpu, OpenError};
use crate::output;

/// A block that the program has.
struct Block {
    bytes: u64,
    gpu: Arc<Gpu>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Shim {
    /// By the handle of a context; `None` is one that the driver serves.
    contexts: RwLock<BTreeMap<usize, Option<Arc<Gpu>>>>,
    /// By first address.
    blocks: Mutex<BTreeMap<u64, Block>>,
    pub(crate) counts: Counts,
    told_of_memory: AtomicBool,
    told_of_opening: AtomicBool,
    /// The process exits, or it is a child that was forked off: nothing may be done any more.
    over: AtomicBool,
}

/// The one of this process.
pub(crate) fn shim() -> &'static Shim {
    static SHIM: OnceLock<Shim> = OnceLock::new();
    SHIM.get_or_init(Shim::default)
}

/// Makes the context current again that was, if a call changes it.
struct KeepContext(Option<usize>);

impl KeepContext {
    fn new() -> Self {
        KeepContext(ffi::current_context())
    }
}

impl Drop for KeepContext {
    fn drop(&mut self) {
        if ffi::current_context() != self.0 {
            ffi::set_current_context(self.0.unwrap_or(0));
        }
    }
}

impl Shim {
    /// Whether everything is left to the driver from now on.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Nothing is touched any more. The driver may be gone before the program's last calls come.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// The GPUs in use, by ordinal.
    pub(crate) fn gpus(&self) -> Vec<Arc<Gpu>> {
        let mut gpus: Vec<_> = self.contexts.read().values().flatten().cloned().collect();
        gpus.sort_by_key(|gpu| gpu.ordinal);
        gpus
    }

    /// The GPU whose primary context is current in this thread.
    pub(crate) fn gpu(&self) -> Option<Arc<Gpu>> {
        let context = ffi::current_context()?;
        if let Some(known) = self.contexts.read().get(&context) {
            return known.clone();
        }
        let mut contexts = self.contexts.write();
        if let Some(known) = contexts.get(&context) {
            return known.clone();
        }
        let opened = self.open(context).map(Arc::new);
        contexts.insert(context, opened.clone());
        drop(contexts);
        if opened.is_some() {
            output::begin();
        }
        opened
    }

    fn open(&self, context: usize) -> Option<Gpu> {
        let _context = KeepContext::new();
        let device = ffi::current_device()?;
        if !ffi::has_primary_context(device) {
            return None;
        }
        let ordinal = u32::try_from(device).ok()?;
        let why = match catch_unwind(|| Gpu::open(ordinal, context)) {
            Ok(Ok(gpu)) => return Some(gpu),
            Ok(Err(OpenError::OtherContext)) => return None,
            Ok(Err(error)) => error.to_string(),
            // The bindings panic when the driver lacks a function.
            Err(_) => "it is too old".to_owned(),
        };
        if !self.told_of_opening.swap(true, Ordering::Relaxed) {
            eprintln!("highwater: the driver serves this context itself: {why}");
        }
        None
    }

    fn gpu_or_count(&self) -> Option<Arc<Gpu>> {
        let gpu = self.gpu();
        if gpu.is_none() {
            count(&self.counts.in_other_contexts);
        }
        gpu
    }

    /// A request without a stream. The address, or the driver's answer.
    pub(crate) fn alloc(&self, bytes: u64) -> Option<Result<u64, Answer>> {
        if bytes == 0 {
            return None;
        }
        let gpu = self.gpu_or_count()?;
        let answer = gpu.alloc(bytes);
        self.given(gpu, bytes, answer)
    }

    /// A request on a stream.
    pub(crate) fn alloc_on(&self, bytes: u64, stream: usize) -> Option<Result<u64, Answer>> {
        if bytes == 0 || ffi::is_capturing(stream) {
            return None;
        }
        let gpu = self.gpu_or_count()?;
        let stream = gpu.stream(stream)?;
        let answer = gpu.alloc_on(&stream, bytes);
        self.given(gpu, bytes, answer)
    }

    /// A request on a stream from a pool: the device's own pool is replaced, others have wishes of their own.
    pub(crate) fn alloc_from(&self, bytes: u64, pool: usize, stream: usize) -> Option<Result<u64, Answer>> {
        if !ffi::is_own_pool(pool, ffi::current_device()?) {
            return None;
        }
        self.alloc_on(bytes, stream)
    }

    fn given(&self, gpu: Arc<Gpu>, bytes: u64, answer: Result<u64, AllocError>) -> Option<Result<u64, Answer>> {
        match answer {
            Ok(address) => {
                count(&self.counts.allocations);
                let before = self.blocks.lock().insert(address, Block { bytes, gpu });
                assert!(before.is_none(), "a block is given out once");
                Some(Ok(address))
            }
            Err(error @ AllocError::OutOfMemory(_)) => {
                count(&self.counts.out_of_memory);
                if !self.told_of_memory.swap(true, Ordering::Relaxed) {
                    eprintln!("highwater: {error}");
                }
                Some(Err(ffi::OUT_OF_MEMORY))
            }
            // A fault of the device: the driver repeats it in its own words.
            Err(_) => None,
        }
    }

    /// A free that comes after everything that the context was given.
    pub(crate) fn free(&self, address: u64) -> Option<Answer> {
        let block = self.blocks.lock().remove(&address)?;
        count(&self.counts.frees);
        let _context = KeepContext::new();
        block.gpu.free(address, &self.counts).expect("it was in the table of blocks");
        Some(ffi::SUCCESS)
    }

    /// A free in the order of a stream. The driver refuses ours on a stream that captures.
    pub(crate) fn free_on(&self, address: u64, stream: usize) -> Option<Answer> {
        if ffi::is_capturing(stream) {
            return None;
        }
        let block = self.blocks.lock().remove(&address)?;
        count(&self.counts.frees);
        let _context = KeepContext::new();
        let freed = match block.gpu.stream(stream) {
            Some(stream) => block.gpu.free_on(address, &stream),
            None => {
                // One of another context. An error is the program's.
                let _ = ffi::synchronize_stream(stream);
                block.gpu.free(address, &self.counts)
            }
        };
        freed.expect("it was in the table of blocks");
        Some(ffi::SUCCESS)
    }

    /// A free after the end: forgotten, for the memory goes with the process. Whether it was ours. In a forked child the
    /// lock may be held for good, by a thread that is not there; then nobody knows, and nothing is done.
    pub(crate) fn forget(&self, address: u64) -> bool {
        self.blocks.try_lock().is_none_or(|mut blocks| blocks.remove(&address).map(std::mem::forget).is_some())
    }

    /// The block that an address lies in: its first address and its bytes.
    pub(crate) fn block_at(&self, address: u64) -> Option<(u64, u64)> {
        let blocks = self.blocks.lock();
        let (&base, block) = blocks.range(..=address).next_back()?;
        (address - base < block.bytes).then_some((base, block.bytes))
    }

    /// Free memory of the current device beyond what the driver knows of: what the allocator holds and could give.
    pub(crate) fn cached_bytes(&self) -> Option<u64> {
        Some(self.gpu()?.allocator.memory_stats().cached_bytes)
    }

    /// The program has made a stream.
    pub(crate) fn stream_made(&self, stream: usize) {
        if let Some(gpu) = self.gpu() {
            // One that cannot be known is noted as such.
            let _ = gpu.stream(stream);
        }
    }

    /// The program is about to destroy a stream.
    pub(crate) fn stream_ends(&self, stream: usize) {
        let known = ffi::stream_context(stream).and_then(|context| self.contexts.read().get(&context).cloned());
        if let Some(Some(gpu)) = known {
            let _context = KeepContext::new();
            gpu.end_stream(stream);
        }
    }

    /// A context is about to be destroyed. Its handle may be given to another one.
    pub(crate) fn context_ends(&self, context: usize) {
        let mut contexts = self.contexts.write();
        if contexts.get(&context).is_some_and(Option::is_none) {
            contexts.remove(&context);
        }
    }

    /// A device's primary context is about to be reset: its memory and its streams are gone, whoever has them.
    pub(crate) fn device_resets(&self, device: i32) {
        let mut contexts = self.contexts.write();
        contexts.retain(|_, gpu| match gpu {
            Some(gpu) if i32::try_from(gpu.ordinal) == Ok(device) => {
                // Never dropped: what it would give back is not there any more.
                std::mem::forget(gpu.clone());
                false
            }
            _ => true,
        });
        drop(contexts);
        self.blocks.lock().retain(|_, block| i32::try_from(block.gpu.ordinal) != Ok(device));
    }
}

//! Operands on the host and on the device, and the way between the two.

use std::sync::Arc;
use std::time::Duration;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Access, CostModel};
use highwater::{Allocator, Buffer, HostBuffer, Pod, Settings, Stream, View};
use highwater_kernels::KernelError;
use highwater_kernels::host::work::Work;

/// Virtual time, so never long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3600);

/// The elements of an operand.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Floats(Vec<f32>),
    Tokens(Vec<u32>),
}

impl Data {
    pub(crate) fn floats(&mut self) -> &mut [f32] {
        match self {
            Data::Floats(values) => values,
            Data::Tokens(_) => panic!("an operand of tokens"),
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        match self {
            Data::Tokens(values) => values,
            Data::Floats(_) => panic!("an operand of floats"),
        }
    }

    /// What has to be equal: NaN too.
    pub(crate) fn bits(&self) -> Vec<u32> {
        match self {
            Data::Floats(values) => values.iter().map(|value| value.to_bits()).collect(),
            Data::Tokens(values) => values.clone(),
        }
    }

    /// The same with one more element.
    pub(crate) fn longer(&self) -> Data {
        let mut longer = self.clone();
        match &mut longer {
            Data::Floats(values) => values.push(0.0),
            Data::Tokens(values) => values.push(0),
        }
        longer
    }

    /// The same without its last element, if it has one.
    pub(crate) fn shorter(&self) -> Option<Data> {
        let mut shorter = self.clone();
        match &mut shorter {
            Data::Floats(values) => values.pop().map(drop),
            Data::Tokens(values) => values.pop().map(drop),
        }?;
        Some(shorter)
    }
}

/// An operand on the device.
pub(crate) enum Tensor {
    Floats(Buffer<f32>),
    Tokens(Buffer<u32>),
}

impl Tensor {
    pub(crate) fn floats(&self) -> View<'_, f32> {
        match self {
            Tensor::Floats(buffer) => buffer.view(),
            Tensor::Tokens(_) => panic!("an operand of tokens"),
        }
    }

    pub(crate) fn tokens(&self) -> View<'_, u32> {
        match self {
            Tensor::Tokens(buffer) => buffer.view(),
            Tensor::Floats(_) => panic!("an operand of floats"),
        }
    }
}

/// One operand of a case.
pub(crate) struct Operand {
    pub(crate) name: &'static str,
    pub(crate) access: Access,
    /// Before the operation.
    pub(crate) data: Data,
    /// The operand that is named when this one is too long. Another one where the shape follows from this one, none
    /// where nothing is left that could contradict it.
    pub(crate) named_when_long: Option<&'static str>,
}

type Launcher = Box<dyn Fn(&Stream, &[Tensor]) -> Result<(), KernelError>>;
type HostFunction = Box<dyn Fn(&mut [Data])>;

/// One operation with all it needs, for the device and for the host.
pub(crate) struct Case {
    pub(crate) kernel: &'static str,
    pub(crate) what: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) work: Work,
    pub(crate) launch: Launcher,
    pub(crate) host: HostFunction,
}

impl Case {
    pub(crate) fn data(&self) -> Vec<Data> {
        self.operands.iter().map(|operand| operand.data.clone()).collect()
    }

    /// The operands after the operation, computed on the host.
    pub(crate) fn on_host(&self) -> Vec<Data> {
        let mut data = self.data();
        (self.host)(&mut data);
        data
    }
}

/// A device with its allocator.
pub(crate) struct Bench {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) allocator: Allocator,
    pub(crate) stream: Stream,
}

impl Bench {
    pub(crate) fn new(config: SimConfig) -> Self {
        let device = SimDevice::new(config);
        let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
        let stream = allocator.default_stream();
        Bench { device, allocator, stream }
    }

    pub(crate) fn with_cost(cost: CostModel) -> Self {
        Self::new(SimConfig { cost, timeline: true, ..SimConfig::default() })
    }

    fn host_buffer<T: Pod>(&self, values: &[T]) -> HostBuffer<T> {
        let staging = self.allocator.pinned(values.len());
        staging.write(|elements| elements.copy_from_slice(values)).unwrap();
        staging
    }

    fn buffer<T: Pod>(&self, values: &[T]) -> Buffer<T> {
        let buffer = self.stream.alloc(values.len()).unwrap();
        let staging = self.host_buffer(values);
        self.stream.copy_to_device(&staging, &buffer).unwrap();
        staging.wait(TIMEOUT).unwrap();
        buffer
    }

    /// Copies to the device and waits.
    pub(crate) fn upload(&self, data: &Data) -> Tensor {
        match data {
            Data::Floats(values) => Tensor::Floats(self.buffer(values)),
            Data::Tokens(values) => Tensor::Tokens(self.buffer(values)),
        }
    }

    pub(crate) fn upload_all(&self, data: &[Data]) -> Vec<Tensor> {
        data.iter().map(|data| self.upload(data)).collect()
    }

    fn elements<T: Pod>(&self, buffer: &Buffer<T>) -> Vec<T> {
        let staging = self.allocator.pinned(buffer.len());
        self.stream.copy_to_host(buffer, &staging).unwrap();
        staging.wait(TIMEOUT).unwrap();
        staging.read(<[T]>::to_vec).unwrap()
    }

    /// Copies from the device, behind all work of the stream.
    pub(crate) fn download(&self, tensor: &Tensor) -> Data {
        match tensor {
            Tensor::Floats(buffer) => Data::Floats(self.elements(buffer)),
            Tensor::Tokens(buffer) => Data::Tokens(self.elements(buffer)),
        }
    }
}

/// A small generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Uniform in −1 to 1.
    pub(crate) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0).collect()
    }

    pub(crate) fn tokens(&mut self, len: usize, vocabulary: usize) -> Vec<u32> {
        (0..len).map(|_| (self.next() % vocabulary as u64) as u32).collect()
    }
}

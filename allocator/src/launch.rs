//! Submitting work that uses buffers.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use highwater_core::Until;
use highwater_device::{
    Access, Body, ByteRange, Cost, DeviceResult, DriverStream, Operand, OperandBytes, Operation, StreamId,
};
use highwater_history::Context;

use crate::allocation::Allocation;
use crate::error::{Doing, StreamError};
use crate::{Stream, View};

/// The operands of something that is submitted to a stream: what is ordered before it, and recorded after it.
#[derive(Default)]
pub(crate) struct Operands<'a> {
    list: Vec<Operand>,
    allocations: Vec<&'a Allocation>,
}

impl<'a> Operands<'a> {
    pub(crate) fn add<T: Pod>(&mut self, view: View<'a, T>, access: Access) -> ByteRange {
        let range = view.byte_range();
        self.list.push(Operand { range, access });
        self.allocations.push(view.allocation);
        range
    }
}

impl Stream {
    /// An operation to be described and submitted: name it for people, and say what it costs.
    pub fn launch<'a>(&'a self, name: impl Into<Cow<'static, str>>, cost: Cost) -> Launch<'a> {
        let (operands, body) = (Operands::default(), Body::Nothing);
        Launch { stream: self, name: name.into(), cost, operands, body }
    }

    /// Submits work past this crate (a call of a library, a collective) that reads `reads` and writes `writes`: it is
    /// ordered after what was done with their memory before, and its uses are recorded when `submit` succeeds. `submit`
    /// gets the driver's stream, and must submit to that stream alone.
    ///
    /// Nobody here knows what such work waits for: the stream is open from now on (see [`mark_open`](Stream::mark_open)).
    ///
    /// # Errors
    /// When a view belongs to another allocator, or `submit` fails; nothing is recorded then.
    #[track_caller]
    pub fn submit_external<T: Pod, R>(
        &self,
        name: &str,
        reads: &[View<'_, T>],
        writes: &[View<'_, T>],
        submit: impl FnOnce(StreamId, External) -> DeviceResult<R>,
    ) -> Result<R, StreamError> {
        let mut operands = Operands::default();
        let reads = reads.iter().map(|&view| operands.add(view, Access::Read)).collect();
        let writes = writes.iter().map(|&view| operands.add(view, Access::Write)).collect();
        self.mark_open();
        let context = Context::here();
        self.submit(name, &operands, context, |stream| {
            let result = submit(stream, External { reads, writes })?;
            // Here, where nothing that the stream is given later stands before it.
            #[cfg(feature = "sanitizer")]
            self.seen(name, &operands.list, context);
            Ok(result)
        })
    }

    /// Orders the stream after the former uses of the operands' memory, submits, and records the uses.
    pub(crate) fn submit<R>(
        &self,
        name: &str,
        operands: &Operands<'_>,
        context: Context,
        submit: impl FnOnce(StreamId) -> DeviceResult<R>,
    ) -> Result<R, StreamError> {
        #[cfg(feature = "sanitizer")]
        let _here = self.shared().here(context);
        for allocation in &operands.allocations {
            if !Arc::ptr_eq(allocation.owner().shared(), self.shared()) {
                return Err(StreamError::OtherAllocator { what: "an operand" });
            }
            self.come_after(allocation, context)?;
        }
        let result = submit(self.id()).doing(|| format!("{name} on {:?}", self.name()))?;
        // The mark is set after the submission: a fence that covers it comes after the work.
        let position = self.slot().clock.mark();
        self.slot().stamp.refresh();
        for allocation in &operands.allocations {
            allocation.note_use(self.slot(), Until::Position(position), context);
        }
        #[cfg(feature = "sanitizer")]
        self.shared().raise();
        if self.shared().settings.launch_blocking() {
            self.wait_for_launch(name, position, context)?;
        }
        Ok(result)
    }
}

/// The addresses of the views of an external call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct External {
    /// What it reads, in the order given.
    pub reads: Vec<ByteRange>,
    /// What it writes, in the order given.
    pub writes: Vec<ByteRange>,
}

/// An operation that is being described.
#[must_use = "a launch does nothing before it is submitted"]
pub struct Launch<'a> {
    stream: &'a Stream,
    name: Cow<'static, str>,
    cost: Cost,
    operands: Operands<'a>,
    body: Body,
}

impl<'a> Launch<'a> {
    /// The operation reads `view`.
    pub fn read<T: Pod>(self, view: impl Into<View<'a, T>>) -> Self {
        self.with(view.into(), Access::Read)
    }

    /// The operation writes all of `view` without reading it.
    pub fn write<T: Pod>(self, view: impl Into<View<'a, T>>) -> Self {
        self.with(view.into(), Access::Write)
    }

    /// The operation reads and writes `view`.
    pub fn read_write<T: Pod>(self, view: impl Into<View<'a, T>>) -> Self {
        self.with(view.into(), Access::ReadWrite)
    }

    fn with<T: Pod>(mut self, view: View<'a, T>, access: Access) -> Self {
        self.operands.add(view, access);
        self
    }

    /// What it costs, instead of what was said before.
    pub fn cost(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// The operands so far, in the order of their declaration.
    #[must_use]
    pub fn operands(&self) -> &[Operand] {
        &self.operands.list
    }

    /// What the operation computes, on the host: it gets the operands in the order of their declaration. The simulated
    /// device computes so; a GPU copies the operands to the host and back for it.
    pub fn body(mut self, body: impl FnOnce(&mut [OperandBytes]) + Send + 'static) -> Self {
        self.body = Body::Host(Box::new(body));
        self
    }

    /// What the operation submits to the driver's stream, on a GPU. It must submit to that stream alone, and touch no
    /// memory but that of the operands. If its work may wait for another rank or the host, the stream has to be marked open
    /// before ([`Stream::mark_open`]). The simulated device refuses it.
    pub fn driver_body(mut self, body: impl FnOnce(DriverStream) -> DeviceResult<()> + Send + 'static) -> Self {
        self.body = Body::Driver(Box::new(body));
        self
    }

    /// Submits it: the stream is ordered after what was done with the operands' memory before, and the uses are
    /// recorded.
    ///
    /// # Errors
    /// When an operand belongs to another allocator, when an order would have to be made while a stream of the device
    /// captures, or when the device fails. In launch-blocking mode also when the operation itself fails or takes too
    /// long; it was submitted then.
    #[track_caller]
    pub fn submit(self) -> Result<(), StreamError> {
        let Launch { stream, name, cost, operands, body } = self;
        let list = operands.list.clone();
        let operation = Operation { name: name.clone(), tag: stream.tag(), cost, operands: list, body };
        let device = &stream.shared().device;
        stream.submit(&name, &operands, Context::here(), |id| device.launch(id, operation))
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("name", &self.name)
            .field("operands", &self.operands.list)
            .finish_non_exhaustive()
    }
}

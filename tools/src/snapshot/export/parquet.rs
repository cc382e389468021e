//! The events of a snapshot as a Parquet table: one row an event, stacks as text.
//!
//! Texts repeat, and are kept as dictionaries by the writer.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use highwater::history::StackId;
use highwater::history::inspect::{Curves, frame_text, site_text};
use highwater::history::read::{Loaded, LoadedDevice};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::super::input::Opened;
use super::folded::folded;

/// Rows that are written together.
const ROWS: usize = 1 << 17;

/// Unsigned numbers have all 64 bits.
const SCHEMA: &str = "message events {
    REQUIRED INT64 device (INTEGER(64,false));
    REQUIRED INT64 event (INTEGER(64,false));
    REQUIRED BYTE_ARRAY action (UTF8);
    REQUIRED INT64 address (INTEGER(64,false));
    REQUIRED INT64 bytes (INTEGER(64,false));
    REQUIRED INT64 stream (INTEGER(64,false));
    REQUIRED INT64 time_us (INTEGER(64,false));
    REQUIRED INT64 live_bytes (INTEGER(64,false));
    REQUIRED INT64 pending_bytes (INTEGER(64,false));
    REQUIRED INT64 reserved_bytes (INTEGER(64,false));
    REQUIRED BYTE_ARRAY site (UTF8);
    REQUIRED BYTE_ARRAY stack (UTF8);
}";

/// Writes the table.
pub(super) fn write(opened: &Opened, out: impl Write + Send) -> io::Result<()> {
    let schema = Arc::new(parse_message_type(SCHEMA).map_err(io::Error::other)?);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(out, schema, properties).map_err(io::Error::other)?;
    let loaded = &opened.loaded;
    let texts = Texts::of(loaded);
    for (index, device) in loaded.devices.iter().enumerate() {
        let curves = Curves::of(device);
        for start in (0..device.trace.len()).step_by(ROWS) {
            let rows = start..device.trace.len().min(start + ROWS);
            let part = Part { loaded, texts: &texts, index: index as u64, device, curves: &curves, rows };
            let mut group = file.next_row_group().map_err(io::Error::other)?;
            part.write(&mut group)?;
            group.close().map_err(io::Error::other)?;
        }
    }
    file.close().map(drop).map_err(io::Error::other)
}

/// The texts of each stack, made once.
struct Texts {
    sites: Vec<ByteArray>,
    stacks: Vec<ByteArray>,
}

impl Texts {
    fn of(loaded: &Loaded) -> Self {
        let mut texts = Self { sites: Vec::new(), stacks: Vec::new() };
        let mut used = super::json::stacks(loaded);
        used.retain(|&stack| stack != StackId::EMPTY);
        let count = used.last().map_or(1, |stack| stack.index() + 1);
        texts.sites.resize(count, ByteArray::from(""));
        texts.stacks.resize(count, ByteArray::from(""));
        for stack in used {
            let lines: Vec<_> = loaded.symbols.stack(stack).map(|frame| frame_text(loaded, frame)).collect();
            texts.sites[stack.index()] = ByteArray::from(&*site_text(loaded, stack, 0));
            texts.stacks[stack.index()] = ByteArray::from(&*folded(lines.iter().rev().map(String::as_str)));
        }
        texts
    }
}

/// Rows of one device.
struct Part<'a> {
    loaded: &'a Loaded,
    texts: &'a Texts,
    index: u64,
    device: &'a LoadedDevice,
    curves: &'a Curves,
    rows: Range<usize>,
}

impl Part<'_> {
    /// The columns in the order of the schema.
    fn write<W: Write + Send>(&self, group: &mut SerializedRowGroupWriter<'_, W>) -> io::Result<()> {
        let (trace, curves) = (&self.device.trace, self.curves);
        let after = |sums: &[u64]| -> Vec<i64> { self.rows.clone().map(|row| sums[row + 1] as i64).collect() };
        let of = |column: &[u64]| -> Vec<i64> { column[self.rows.clone()].iter().map(|&value| value as i64).collect() };
        let text_of_action = |row| ByteArray::from(self.loaded.symbols.text(trace.action(row).text()));
        let text_of_stack = |texts: &[ByteArray]| -> Vec<ByteArray> {
            trace.stacks()[self.rows.clone()].iter().map(|stack| texts[stack.index()].clone()).collect()
        };
        column::<Int64Type, _>(group, &vec![self.index as i64; self.rows.len()])?;
        column::<Int64Type, _>(group, &self.rows.clone().map(|row| row as i64).collect::<Vec<_>>())?;
        column::<ByteArrayType, _>(group, &self.rows.clone().map(text_of_action).collect::<Vec<_>>())?;
        for numbers in [trace.addresses(), trace.bytes(), trace.streams(), trace.times_us()] {
            column::<Int64Type, _>(group, &of(numbers))?;
        }
        for sums in [curves.live_bytes(), curves.pending_bytes(), curves.reserved_bytes()] {
            column::<Int64Type, _>(group, &after(sums))?;
        }
        column::<ByteArrayType, _>(group, &text_of_stack(&self.texts.sites))?;
        column::<ByteArrayType, _>(group, &text_of_stack(&self.texts.stacks))
    }
}

fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
) -> io::Result<()> {
    let next = group.next_column().map_err(io::Error::other)?;
    let mut column = next.expect("there are as many columns as the schema has");
    column.typed::<T>().write_batch(values, None, None).map_err(io::Error::other)?;
    column.close().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::*;
    use crate::scratch::Scratch;
    use crate::snapshot::input::open;

    #[test]
    fn what_is_written_is_read_again() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../allocator/history/tests/data/oom_leak.pickle.xz");
        let opened = open(&data).expect("it is a snapshot");
        let scratch = Scratch::new();
        let path = scratch.path().join("events.parquet");
        write(&opened, File::create(&path).expect("writable")).expect("it is written");
        let reader = SerializedFileReader::new(File::open(&path).expect("it is there")).expect("it is Parquet");
        let trace = &opened.loaded.devices[0].trace;
        let curves = Curves::of(&opened.loaded.devices[0]);
        assert_eq!(reader.metadata().file_metadata().num_rows(), trace.len() as i64);
        let mut count = 0;
        for (row, found) in reader.get_row_iter(None).expect("it has rows").enumerate() {
            let found = found.expect("it is well formed");
            let (event, text) = (trace.event(row), |id| opened.loaded.symbols.text(id));
            assert_eq!(found.get_ulong(1).expect("a number"), row as u64);
            assert_eq!(found.get_string(2).expect("a text"), text(event.action.text()));
            assert_eq!(found.get_ulong(3).expect("a number"), event.address);
            assert_eq!(found.get_ulong(6).expect("a number"), event.time_us);
            assert_eq!(found.get_ulong(7).expect("a number"), curves.live_bytes()[row + 1]);
            let stack = found.get_string(11).expect("a text");
            assert_eq!(stack.is_empty(), event.stack == StackId::EMPTY);
            count += usize::from(!stack.is_empty());
        }
        assert!(count > 0, "some events have stacks");
        fs::remove_file(path).expect("removable");
    }
}

//! SQLite databases, written from their beginning to their end.
//!
//! The format is fixed and public, and a file that is only ever appended to needs little of it: leaves of tables one after
//! another, what is too long for a leaf on pages of its own, and above the leaves of each table a tree of their numbers. There
//! are no indices, and nothing is read back. SQLite's own library would take 50 s of a core to build, optimised as
//! dependencies are here, for files that are written once.
//!
//! Invariants: rows of a table come with ascending numbers; pages are numbered from 1 in the order in which they are
//! written, but for the first, which is written last because it names the roots of the tables.

use std::io::{self, Seek, SeekFrom, Write};

/// Bytes of a page. The first one has to take the definitions of all tables.
const PAGE: usize = 16384;
/// Bytes of a file's header, which stands on the first page.
const HEADER: usize = 100;
/// Bytes of a leaf's own header.
const LEAF_HEADER: usize = 8;
/// Bytes of the header of a page inside the tree.
const INNER_HEADER: usize = 12;
/// Most bytes of a row that stay on its leaf.
const MOST_ON_LEAF: usize = PAGE - 35;
/// Bytes that stay on the leaf of a row that is longer, at least.
const LEAST_ON_LEAF: usize = (PAGE - 12) * 32 / 255 - 23;

/// A value of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Cell<'a> {
    Null,
    Int(i64),
    Text(&'a str),
}

impl From<Option<u64>> for Cell<'_> {
    fn from(value: Option<u64>) -> Self {
        value.map_or(Cell::Null, Cell::from)
    }
}

/// All 64 bits: what is 2^63 or more becomes negative.
impl From<u64> for Cell<'_> {
    fn from(value: u64) -> Self {
        Cell::Int(value as i64)
    }
}

impl From<usize> for Cell<'_> {
    fn from(value: usize) -> Self {
        Cell::Int(value as i64)
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(value: &'a str) -> Self {
        Cell::Text(value)
    }
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(value: Option<&'a str>) -> Self {
        value.map_or(Cell::Null, Cell::Text)
    }
}

/// A database that is being written.
pub(super) struct Database<W> {
    out: W,
    /// Number of the page that is written next.
    next: u32,
    /// Kind, name, root and definition of what there is.
    schema: Vec<(&'static str, String, u32, String)>,
}

impl<W: Write + Seek> Database<W> {
    pub(super) fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(&[0; PAGE])?;
        Ok(Self { out, next: 2, schema: Vec::new() })
    }

    /// Begins a table; its definition is what stands between the parentheses.
    pub(super) fn table(&mut self, name: &str, columns: &str) -> Table<'_, W> {
        let sql = format!("CREATE TABLE {name} ({columns})");
        Table { database: self, name: name.to_owned(), sql, leaf: Leaf::default(), leaves: Vec::new(), last: None }
    }

    /// Adds a view.
    pub(super) fn view(&mut self, name: &str, query: &str) {
        self.schema.push(("view", name.to_owned(), 0, format!("CREATE VIEW {name} AS {query}")));
    }

    /// Writes the first page.
    pub(super) fn end(mut self) -> io::Result<()> {
        let mut leaf = Leaf::default();
        for (index, (kind, name, root, sql)) in self.schema.iter().enumerate() {
            let row = [(*kind).into(), (&**name).into(), (&**name).into(), u64::from(*root).into(), (&**sql).into()];
            let payload = record(&row);
            let cell = [varint(payload.len() as u64), varint(index as u64 + 1), payload].concat();
            if HEADER + LEAF_HEADER + leaf.bytes + cell.len() + 2 * (leaf.cells.len() + 1) > PAGE {
                return Err(io::Error::other("the definitions of the tables do not fit on the first page"));
            }
            leaf.push(cell);
        }
        let mut page = leaf.page(HEADER);
        page[..HEADER].copy_from_slice(&self.header());
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&page)?;
        self.out.flush()
    }

    fn header(&self) -> [u8; HEADER] {
        const CHANGE: u32 = 1;
        const VERSION: u32 = 3_045_000;
        let mut header = [0; HEADER];
        header[..16].copy_from_slice(b"SQLite format 3\0");
        header[16..18].copy_from_slice(&(PAGE as u16).to_be_bytes());
        // Reading and writing as ever; nothing reserved; the parts of a page that a row may take.
        header[18..24].copy_from_slice(&[1, 1, 0, 64, 32, 32]);
        let numbers = [(24, CHANGE), (28, self.next - 1), (40, 1), (44, 4), (56, 1), (92, CHANGE), (96, VERSION)];
        for (at, number) in numbers {
            header[at..at + 4].copy_from_slice(&u32::to_be_bytes(number));
        }
        header
    }

    fn page(&mut self, page: &[u8]) -> io::Result<u32> {
        let number = self.next;
        self.next = number.checked_add(1).ok_or_else(|| io::Error::other("too many pages"))?;
        self.out.write_all(page)?;
        Ok(number)
    }

    /// Writes what does not fit on a leaf, as a chain of pages. The number of the first.
    fn overflow(&mut self, rest: &[u8]) -> io::Result<u32> {
        let first = self.next;
        let pieces = rest.chunks(PAGE - 4);
        let count = pieces.len();
        for (index, piece) in pieces.enumerate() {
            let next = if index + 1 < count { self.next + 1 } else { 0 };
            let mut page = vec![0; PAGE];
            page[..4].copy_from_slice(&next.to_be_bytes());
            page[4..4 + piece.len()].copy_from_slice(piece);
            self.page(&page)?;
        }
        Ok(first)
    }
}

/// Rows that will share a page.
#[derive(Default)]
struct Leaf {
    cells: Vec<Vec<u8>>,
    bytes: usize,
}

impl Leaf {
    fn push(&mut self, cell: Vec<u8>) {
        self.bytes += cell.len();
        self.cells.push(cell);
    }

    fn takes(&self, cell: usize) -> bool {
        LEAF_HEADER + self.bytes + cell + 2 * (self.cells.len() + 1) <= PAGE
    }

    /// The page, whose header stands at `offset`.
    fn page(&self, offset: usize) -> Vec<u8> {
        page_of(0x0d, offset, LEAF_HEADER, &self.cells)
    }
}

/// A page of a kind: its header, where its cells are, and from its end backwards the cells.
fn page_of(kind: u8, offset: usize, header: usize, cells: &[Vec<u8>]) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    let (mut at, mut pointer) = (PAGE, offset + header);
    for cell in cells {
        at -= cell.len();
        page[at..at + cell.len()].copy_from_slice(cell);
        page[pointer..pointer + 2].copy_from_slice(&(at as u16).to_be_bytes());
        pointer += 2;
    }
    page[offset] = kind;
    page[offset + 3..offset + 5].copy_from_slice(&(cells.len() as u16).to_be_bytes());
    page[offset + 5..offset + 7].copy_from_slice(&(at as u16).to_be_bytes());
    page
}

/// A table that is being written.
pub(super) struct Table<'a, W> {
    database: &'a mut Database<W>,
    name: String,
    sql: String,
    leaf: Leaf,
    /// Page and last row of each leaf that is written.
    leaves: Vec<(u32, i64)>,
    last: Option<i64>,
}

impl<W: Write + Seek> Table<'_, W> {
    /// Adds a row with the next number, from 1 on.
    pub(super) fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()> {
        self.numbered(self.last.map_or(1, |last| last + 1), cells)
    }

    /// Adds a row with a number, which is the value of the column that is the `INTEGER PRIMARY KEY`. Numbers must ascend.
    pub(super) fn numbered(&mut self, number: i64, cells: &[Cell<'_>]) -> io::Result<()> {
        assert!(self.last.is_none_or(|last| last < number), "rows come with ascending numbers");
        let payload = record(cells);
        let mut cell = [varint(payload.len() as u64), varint(number as u64)].concat();
        let on_leaf = on_leaf(payload.len());
        cell.extend_from_slice(&payload[..on_leaf]);
        if on_leaf < payload.len() {
            let first = self.database.overflow(&payload[on_leaf..])?;
            cell.extend(first.to_be_bytes());
        }
        if !self.leaf.takes(cell.len()) {
            self.flush()?;
        }
        self.leaf.push(cell);
        self.last = Some(number);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let leaf = std::mem::take(&mut self.leaf);
        let page = self.database.page(&leaf.page(0))?;
        self.leaves.push((page, self.last.unwrap_or(0)));
        Ok(())
    }

    /// Ends the table: writes the tree above its leaves.
    pub(super) fn end(mut self) -> io::Result<()> {
        if self.leaves.is_empty() || !self.leaf.cells.is_empty() {
            self.flush()?;
        }
        let mut level = self.leaves;
        while level.len() > 1 {
            let mut above = Vec::new();
            let pages = level.len().div_ceil(children_of_a_page());
            for page in 0..pages {
                // Evenly: a page with one child alone would hold no number.
                let children = &level[page * level.len() / pages..(page + 1) * level.len() / pages];
                let (&(right, last), left) = children.split_last().expect("no chunk is empty");
                let cells: Vec<Vec<u8>> = left
                    .iter()
                    .map(|&(page, last)| [page.to_be_bytes().to_vec(), varint(last as u64)].concat())
                    .collect();
                let mut page = page_of(0x05, 0, INNER_HEADER, &cells);
                page[8..12].copy_from_slice(&right.to_be_bytes());
                above.push((self.database.page(&page)?, last));
            }
            level = above;
        }
        self.database.schema.push(("table", self.name, level[0].0, self.sql));
        Ok(())
    }
}

/// How many pages one page inside the tree has below it at most, whatever the numbers of the rows.
fn children_of_a_page() -> usize {
    (PAGE - INNER_HEADER) / (2 + 4 + 9)
}

/// Bytes of a row that stay on its leaf.
fn on_leaf(payload: usize) -> usize {
    if payload <= MOST_ON_LEAF {
        return payload;
    }
    let some = LEAST_ON_LEAF + (payload - LEAST_ON_LEAF) % (PAGE - 4);
    if some <= MOST_ON_LEAF { some } else { LEAST_ON_LEAF }
}

/// A number in one to nine bytes of seven bits, the most significant first; the ninth has eight.
fn varint(value: u64) -> Vec<u8> {
    if value >> 56 != 0 {
        let mut bytes: Vec<u8> = (0..8).rev().map(|group| (value >> (8 + 7 * group)) as u8 | 0x80).collect();
        bytes.push(value as u8);
        return bytes;
    }
    let groups = (64 - value.leading_zeros()).div_ceil(7).max(1);
    (0..groups).rev().map(|group| (value >> (7 * group)) as u8 & 0x7f | if group > 0 { 0x80 } else { 0 }).collect()
}

/// A row: the types of its cells, then their values.
fn record(cells: &[Cell<'_>]) -> Vec<u8> {
    let (mut types, mut values) = (Vec::new(), Vec::new());
    for cell in cells {
        match *cell {
            Cell::Null => types.push(0),
            Cell::Int(value @ 0..=1) => types.push(8 + value as u8),
            Cell::Int(value) => {
                let (kind, bytes) = integer(value);
                types.push(kind);
                values.extend_from_slice(&value.to_be_bytes()[8 - bytes..]);
            }
            Cell::Text(text) => {
                types.extend(varint(13 + 2 * text.len() as u64));
                values.extend_from_slice(text.as_bytes());
            }
        }
    }
    // The length counts itself.
    let length = (1..).map(|own| types.len() + own).find(|&length| varint(length as u64).len() + types.len() == length);
    let length = length.expect("a length of at most nine bytes fits");
    [varint(length as u64), types, values].concat()
}

/// Type and bytes of an integer, as few as hold it.
fn integer(value: i64) -> (u8, usize) {
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6)]
        .into_iter()
        .find(|&(_, bytes)| (value << (64 - 8 * bytes)) >> (64 - 8 * bytes) == value)
        .unwrap_or((6, 8))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn numbers_take_as_few_bytes_as_they_can() {
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(127), [0x7f]);
        assert_eq!(varint(128), [0x81, 0]);
        assert_eq!(varint((1 << 56) - 1), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(varint(u64::MAX), [0xff; 9]);
        assert_eq!(varint(1 << 56), [0x80, 0xc0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0]);
        assert_eq!([0x7f, -0x80, 0x80, 0x7f_ffff, i64::MAX].map(integer), [(1, 1), (1, 1), (2, 2), (3, 3), (6, 8)]);
        assert_eq!(integer(1 << 46), (5, 6));
    }

    #[test]
    fn a_row_begins_with_its_types() {
        let row = [Cell::Null, Cell::Int(1), Cell::Int(-2), Cell::Text("ab"), Cell::Int(300)];
        assert_eq!(record(&row), [6, 0, 9, 1, 17, 2, 0xfe, b'a', b'b', 1, 44]);
        let long = "x".repeat(200);
        let row = [Cell::Text(&long); 70];
        assert_eq!(record(&row)[..4], [0x81, 0x0e, 0x83, 0x1d], "a length of two bytes counts both");
    }

    /// Trees of several levels, rows on pages of their own, tables without rows: SQLite itself looks at them.
    #[test]
    fn sqlite_finds_nothing_wrong() {
        if Command::new("python3").arg("--version").output().is_err() {
            println!("skipped: there is no python3 on this machine");
            return;
        }
        let scratch = Scratch::new();
        let path = scratch.path().join("many.db");
        let mut database = Database::begin(File::create(&path).expect("writable")).expect("writable");
        database.table("empty", "a").end().expect("writable");
        let mut table = database.table("many", "id INTEGER PRIMARY KEY, a INTEGER, b TEXT");
        // A row takes a leaf for itself, so that there are more leaves than one page of the tree has below it.
        let rows = children_of_a_page() + 100;
        let lengths = |row: usize| if row.is_multiple_of(50) { row * 400 } else { 9000 };
        for row in 1..=rows {
            let text = "é".repeat(lengths(row) / 2);
            table
                .numbered(row as i64 * 3, &[Cell::Null, (row as u64).pow(5).into(), (&*text).into()])
                .expect("writable");
        }
        table.end().expect("writable");
        database.view("wide", "SELECT id FROM many WHERE length(b) > 20000");
        database.end().expect("writable");
        let script = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1])\n\
                      assert db.execute('pragma integrity_check').fetchall() == [('ok',)]\n\
                      one = lambda query: db.execute(query).fetchone()\n\
                      print(one('select count(*), sum(id), sum(length(cast(b as blob))) from many'), one('select count(*) from empty'),\
                      one('select a from many where id = 300'), one('select count(*) from wide'))";
        let output = Command::new("python3").arg("-c").arg(script).arg(&path).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (ids, bytes): (usize, usize) = (rows * (rows + 1) / 2 * 3, (1..=rows).map(lengths).sum());
        let wide = (1..=rows).filter(|&row| lengths(row) / 2 > 20_000).count();
        let expected = format!("({rows}, {ids}, {bytes}) (0,) ({},) ({wide},)", 100_u64.pow(5));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
    }

    #[test]
    fn what_stays_on_a_leaf_leaves_whole_pages_for_the_rest() {
        assert_eq!(on_leaf(MOST_ON_LEAF), MOST_ON_LEAF);
        for payload in [MOST_ON_LEAF + 1, 20_000, 50_000, 1 << 20] {
            let local = on_leaf(payload);
            assert!((LEAST_ON_LEAF..=MOST_ON_LEAF).contains(&local));
            assert!(local == LEAST_ON_LEAF || (payload - local).is_multiple_of(PAGE - 4), "{payload}");
        }
    }
}

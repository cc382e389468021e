//! Columns of numbers as few bytes, and these as text.
//!
//! A number takes seven bits a byte, the lowest first; the top bit of a byte says that another one follows. A column of
//! differences has each number as its difference to the one before, with the sign in the lowest bit.

use serde_json::{Value, json};

/// Columns one after the other, by name.
#[derive(Default)]
pub(super) struct Columns {
    bytes: Vec<u8>,
    index: serde_json::Map<String, Value>,
}

impl Columns {
    /// Adds a column of numbers.
    pub(super) fn plain(&mut self, name: &str, numbers: impl IntoIterator<Item = u64>) {
        self.add(name, false, numbers.into_iter());
    }

    /// Adds a column of numbers that are near to the one before each.
    pub(super) fn differences(&mut self, name: &str, numbers: impl IntoIterator<Item = i64>) {
        let mut before = 0_i64;
        let differences = numbers.into_iter().map(|number| {
            let difference = number.wrapping_sub(before);
            before = number;
            (difference << 1 ^ difference >> 63) as u64
        });
        self.add(name, true, differences);
    }

    fn add(&mut self, name: &str, differences: bool, numbers: impl Iterator<Item = u64>) {
        let (start, mut count) = (self.bytes.len(), 0_u64);
        for mut number in numbers {
            while number >= 0x80 {
                self.bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            self.bytes.push(number as u8);
            count += 1;
        }
        self.index.insert(name.to_owned(), json!([start, count, differences]));
    }

    /// Where each column begins, how many numbers it has, and whether they are differences.
    pub(super) fn index(&self) -> Value {
        Value::Object(self.index.clone())
    }

    /// All of them as text.
    pub(super) fn text(&self) -> String {
        base64(&self.bytes)
    }
}

/// Bytes as text (RFC 4648, with padding).
pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = ALPHABET[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn numbers_take_seven_bits_a_byte_and_differences_have_their_sign_last() {
        let mut columns = Columns::default();
        columns.plain("a", [0, 127, 128, u64::MAX]);
        columns.differences("b", [5, 4, 4, 70, i64::MIN]);
        assert_eq!(columns.index(), json!({ "a": [0, 4, false], "b": [14, 5, true] }));
        let a = [0, 127, 0x80, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert_eq!(columns.bytes[..14], a);
        assert_eq!(columns.bytes[14..19], [10, 1, 0, 0x84, 1]);
    }
}

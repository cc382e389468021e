//! Numbers for people.

/// With a comma at each thousand.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit (powers of 1000) that leaves at least 1 of it.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes, 1000, &["B", "kB", "MB", "GB", "TB"])
}

/// Nanoseconds in the largest unit that leaves at least 1 of it.
pub(crate) fn nanoseconds(ns: u64) -> String {
    scaled(ns, 1000, &["ns", "µs", "ms", "s"])
}

fn scaled(number: u64, base: u64, units: &[&str]) -> String {
    let (mut scale, mut unit) = (1, 0);
    while unit + 1 < units.len() && number / scale >= base {
        scale *= base;
        unit += 1;
    }
    if unit == 0 {
        return format!("{number} {}", units[0]);
    }
    format!("{:.2} {}", number as f64 / scale as f64, units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let all = [0, 999, 1000, 12_345, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn units_change_at_their_size() {
        let all = [0, 999, 1000, 1_500_000, 141_000_000_000].map(bytes);
        assert_eq!(all, ["0 B", "999 B", "1.00 kB", "1.50 MB", "141.00 GB"]);
        assert_eq!(bytes(u64::MAX), "18446744.07 TB", "the largest unit holds the rest");
        assert_eq!([12, 1_234_000].map(nanoseconds), ["12 ns", "1.23 ms"]);
    }
}

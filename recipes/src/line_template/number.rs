//! Parses numbers within a line, and finds where they end.

/// Length limit of a number, in bytes.
const LONGEST: usize = 64;

/// Digit separators of some locales. Such numbers are not read.
const OTHER_SEPARATORS: [char; 3] = ['\'', '\u{a0}', '\u{202f}'];

/// Returns every number that the start of `text` can be read as, such as `1`, `0.25`, `1e-3`, `1,000` or
/// `nan`, each with its length in bytes, longest first.
///
/// A comma or an underscore before each group of three digits separates thousands. A number extends to the
/// last character that can belong to it, or ends before `next`, the next character of the template. If that
/// is a comma, readings without a comma come first: `1,512` is 1512, and 1 if the template has a comma after
/// it.
pub(super) fn readings(text: &str, next: Option<char>) -> Vec<(f64, usize)> {
    let bytes = text.as_bytes();
    let sign = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    if let Some(length) = word(&bytes[sign..]) {
        return text[..sign + length].parse().map(|value| (value, sign + length)).into_iter().collect();
    }
    let mut lengths = lengths(bytes, sign);
    lengths.sort_unstable();
    lengths.dedup();
    let longest = lengths.last().copied().unwrap_or(0);
    let may_end = |length: &usize| {
        let ends_for_next = next.is_some() && text[*length..].chars().next() == next;
        (*length == longest && !has_decimal_comma(&text[..*length], &text[*length..])) || ends_for_next
    };
    let value =
        |length: usize| text[..length].replace([',', '_'], "").parse().ok().map(|value| (value, length));
    let mut readings: Vec<_> = lengths.into_iter().rev().filter(may_end).filter_map(value).collect();
    if next == Some(',') {
        readings.sort_by_key(|(_, length)| text[..*length].contains(','));
    }
    readings
}

/// Returns `true` if a number can begin at offset `at` of `line`: it would not be the inside of another
/// number.
pub(super) fn begins(line: &str, at: usize) -> bool {
    let (before, rest) = line.as_bytes().split_at(at);
    let Some(first) = rest.first() else { return false };
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    let follows_digit = before.len() >= 2 && is_digit(before.get(before.len() - 2));
    let separated = line[..at].strip_suffix(OTHER_SEPARATORS);
    if separated.is_some_and(|before| before.ends_with(|c: char| c.is_ascii_digit())) && is_group(rest) {
        return false;
    }
    match before.last() {
        Some(b'0'..=b'9') => !(first.is_ascii_digit() || *first == b'.'),
        Some(b'.') => !follows_digit,
        Some(b',' | b'_') => !(follows_digit && continues(rest)),
        Some(byte) if byte.is_ascii_alphabetic() => !first.is_ascii_alphabetic(),
        _ => true,
    }
}

/// Returns the length of the word for NaN or infinity at the start of `bytes`; `None` if there is none.
fn word(bytes: &[u8]) -> Option<usize> {
    let is_here = |word: &&str| {
        bytes.get(..word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
            && !bytes.get(word.len()).is_some_and(u8::is_ascii_alphanumeric)
    };
    ["infinity", "inf", "nan"].iter().find(|word| is_here(word)).map(|word| word.len())
}

/// Returns the possible lengths in bytes of the number at the start of `bytes`, whose sign takes `sign`
/// bytes; empty if it is too long.
fn lengths(bytes: &[u8], sign: usize) -> Vec<usize> {
    let bytes = &bytes[..bytes.len().min(LONGEST + 1)];
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = sign + digits(sign);
    let mut ends: Vec<usize> = Vec::new();
    if whole > sign {
        ends.push(whole);
        if whole - sign <= 3 && bytes[sign] != b'0' {
            let separator = bytes.get(whole).copied().filter(|byte| matches!(byte, b',' | b'_'));
            let mut end = whole;
            while separator.is_some() && bytes.get(end).copied() == separator && is_group(&bytes[end + 1..]) {
                end += 4;
                ends.push(end);
            }
        }
    }
    let mut lengths = ends.clone();
    for end in ends.iter().copied().chain((whole == sign).then_some(sign)) {
        let mut point = None;
        if bytes.get(end) == Some(&b'.') {
            let fraction = digits(end + 1);
            if fraction > 0 || end > sign {
                point = Some(end + 1 + fraction);
            }
        }
        lengths.extend(point);
        let mantissas = point.into_iter().chain((end > sign).then_some(end));
        lengths.extend(mantissas.filter_map(|end| exponent(bytes, end)));
    }
    if lengths.iter().any(|length| *length > LONGEST) { Vec::new() } else { lengths }
}

/// Returns the end of the exponent that begins at offset `from`; `None` if there is no exponent.
fn exponent(bytes: &[u8], from: usize) -> Option<usize> {
    if !matches!(bytes.get(from), Some(b'e' | b'E')) {
        return None;
    }
    let sign = usize::from(matches!(bytes.get(from + 1), Some(b'+' | b'-')));
    let begin = from + 1 + sign;
    let digits = bytes.get(begin..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0).then_some(begin + digits)
}

/// Returns `true` if `bytes`, which follow a comma, belong to the number before it, as in `1,200` and `0,25`,
/// and are not a list item.
fn continues(bytes: &[u8]) -> bool {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    is_group(bytes) || (digits > 0 && bytes.get(digits) != Some(&b'.'))
}

/// Returns `true` if `bytes` begins with exactly three digits, as between thousands separators.
fn is_group(bytes: &[u8]) -> bool {
    bytes.len() >= 3
        && bytes[..3].iter().all(u8::is_ascii_digit)
        && !bytes.get(3).is_some_and(u8::is_ascii_digit)
}

/// Returns `true` if `rest` looks like a decimal comma with the decimals of `number`, as in `0,25`, so that
/// `number` alone must not be read.
fn has_decimal_comma(number: &str, rest: &str) -> bool {
    let Some(decimals) = rest.strip_prefix(',') else { return false };
    let digits = decimals.bytes().take_while(u8::is_ascii_digit).count();
    let after = &decimals.as_bytes()[digits..];
    let goes_on = matches!(after, [b',' | b'.', digit, ..] if digit.is_ascii_digit());
    digits > 0 && !goes_on && !number.contains(['.', 'e', 'E', ',', '_'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(text: &str) -> Option<(f64, usize)> {
        readings(text, None).first().copied()
    }

    #[test]
    fn the_longest_number_is_read() {
        for (text, value, length) in [
            ("1", 1.0, 1),
            ("12 loss", 12.0, 2),
            ("0.25.", 0.25, 4),
            ("5.", 5.0, 2),
            (".5 x", 0.5, 2),
            ("-1e-2,", -0.01, 5),
            ("+3E4x", 3e4, 4),
            ("3e", 3.0, 1),
            ("81ms", 81.0, 2),
            ("1,200/5,000", 1200.0, 5),
            ("1_000_000.5", 1_000_000.5, 11),
            ("3,0.5,0.91", 3.0, 1),
            ("inf,", f64::INFINITY, 3),
            ("-Infinity", f64::NEG_INFINITY, 9),
        ] {
            assert_eq!(longest(text), Some((value, length)), "{text}");
        }
        assert!(longest("NaN").is_some_and(|(value, length)| value.is_nan() && length == 3));
    }

    #[test]
    fn words_and_parts_of_numbers_are_none() {
        for text in ["", "-", "e5", ".", "info", "nano", "x1", "0,25", "0,512"] {
            assert_eq!(longest(text), None, "{text}");
        }
        assert_eq!(longest(&"1".repeat(LONGEST + 1)), None);
    }

    #[test]
    fn a_number_ends_earlier_only_for_what_the_template_has_next() {
        let lengths = |text, next| -> Vec<usize> {
            readings(text, next).into_iter().map(|(_, length)| length).collect()
        };
        assert_eq!(lengths("1,512,0.5", Some(',')), [1, 5]);
        assert_eq!(lengths("1,512,0.5", None), [5]);
        assert_eq!(lengths("0.25", Some('.')), [4, 1]);
        assert_eq!(lengths("0,5", Some(',')), [1]);
        assert_eq!(lengths("1e5", Some('e')), [3, 1]);
        assert_eq!(lengths("123", Some('2')), [3], "digits that stand together are one number");
    }

    #[test]
    fn a_number_begins_where_no_other_one_goes_on() {
        let begins_after = |before: &str, rest: &str| begins(&format!("{before}{rest}"), before.len());
        for (before, rest) in [("", "1"), ("x", "12"), ("=", "-1"), ("a.", "5"), ("3,", "0.5"), ("5", "-3")] {
            assert!(begins_after(before, rest), "{before}|{rest}");
        }
        for (before, rest) in [
            ("1", "2"),
            ("0", ".25"),
            ("0.", "25"),
            ("12,", "567 x"),
            ("0,", "25"),
            ("do", "nan"),
            ("1'", "234 x"),
            ("1\u{202f}", "234"),
            ("1\u{a0}", "234"),
        ] {
            assert!(!begins_after(before, rest), "{before}|{rest}");
        }
    }
}

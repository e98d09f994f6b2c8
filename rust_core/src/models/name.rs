//! Names and versions of models: which are safe as folder names, and which version is newer.
//!
//! Pure functions on strings; nothing here touches the disk.

use std::cmp::Ordering;

use super::NAME_BYTES_MAX;

/// What a name or version must look like, for messages.
pub(super) const NAME_EXPECTED: &str =
    "1 to 64 of a-z, 0-9, `.`, `_`, `-`, starting with a letter or digit";

/// Whether `text` can name a model or version: safe as one folder name on every file system.
pub(super) fn is_safe(text: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    !text.is_empty()
        && text.len() <= NAME_BYTES_MAX
        && text.bytes().all(allowed)
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

/// Whether `text` can name a file inside a version's folder: one visible path component.
pub(super) fn is_file_name(text: &str) -> bool {
    is_safe(&text.to_ascii_lowercase())
}

/// Orders versions, the newest last: part by part, numbers as integers and above text.
///
/// Parts are split at `.`, `_` and `-`: `2 < 10`, `1.9 < 1.10`, `1.0-rc1 < 1.0 < 1.0.1`, and a
/// version that is only text is never newer than a number. Total: equal only for equal strings.
pub(super) fn compare_versions(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (parts(a), parts(b));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return a.cmp(b),
            (Some(part), None) => rank(part).cmp(&1),
            (None, Some(part)) => 1.cmp(&rank(part)),
            (Some(x), Some(y)) => rank(x).cmp(&rank(y)).then_with(|| compare_parts(x, y)),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn parts(version: &str) -> impl Iterator<Item = &str> {
    version.split(['.', '_', '-'])
}

/// Text below the end of the version (1) below a number, so that `1.0-rc1 < 1.0 < 1.0.1`.
fn rank(part: &str) -> u8 {
    if is_number(part) { 2 } else { 0 }
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Integers of any length by value, text by bytes.
fn compare_parts(x: &str, y: &str) -> Ordering {
    if !is_number(x) {
        return x.cmp(y);
    }
    let (x, y) = (x.trim_start_matches('0'), y.trim_start_matches('0'));
    x.len().cmp(&y.len()).then_with(|| x.cmp(y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leaves_its_folder_is_not_safe() {
        for text in ["..", ".", "", "a/b", "/a", "a\\b", "a\0", "-a", ".a", "A", "ä", "a b", "a:b"]
        {
            assert!(!is_safe(text), "{text:?}");
        }
        assert!(!is_safe(&"a".repeat(NAME_BYTES_MAX + 1)));
        for text in ["wall-following", "1", "1.0_rc-2", "a..b"] {
            assert!(is_safe(text), "{text:?}");
        }
    }

    #[test]
    fn versions_order_as_integers_then_as_strings() {
        let ascending = [
            "beta",
            "canary",
            "1.0-rc1",
            "1.0",
            "1.0.1",
            "1.9",
            "1.10",
            "2",
            "10",
            "2024.1",
            "18446744073709551616",
            "18446744073709551617",
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(compare_versions(a, b), i.cmp(&j), "{a} against {b}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn the_order_of_versions_is_total(
            a in "[0-9a-c._-]{0,6}", b in "[0-9a-c._-]{0,6}", c in "[0-9a-c._-]{0,6}",
        ) {
            let (ab, bc) = (compare_versions(&a, &b), compare_versions(&b, &c));
            assert_eq!(ab, compare_versions(&b, &a).reverse());
            assert_eq!(ab == Ordering::Equal, a == b);
            if ab == bc {
                assert_eq!(compare_versions(&a, &c), ab);
            }
        }
    }
}

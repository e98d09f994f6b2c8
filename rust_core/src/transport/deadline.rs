//! `grpc-timeout`: the caller's deadline, read by us, since expiry must be DEADLINE_EXCEEDED and
//! must cover the label and nothing else.
//!
//! Source: gRPC over HTTP/2, "Timeout": at most eight digits and a unit of H, M, S, m, u or n.

use http::HeaderMap;

use crate::{error::Result, limits::DEADLINE_US_MAX};

use super::wire::invalid;

const EXPECTED: &str = "at most eight digits and a unit of H, M, S, m, u, n";

/// The header's value in µs, rounded up; `None` where there is no header. A malformed value is
/// refused by name, never read as no deadline; a huge one is cut to the longest.
pub fn timeout_us(headers: &HeaderMap) -> Result<Option<u64>> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let refused = || invalid("grpc-timeout", format!("{value:?}"), EXPECTED);
    let text = value.to_str().map_err(|_| refused())?;
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(refused)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refused());
    }
    let amount: u64 = digits.parse().map_err(|_| refused())?;
    let us = match unit {
        "H" => amount * 3_600_000_000,
        "M" => amount * 60_000_000,
        "S" => amount * 1_000_000,
        "m" => amount * 1_000,
        "u" => amount,
        "n" => amount.div_ceil(1_000),
        _ => return Err(refused()),
    };
    Ok(Some(us.min(DEADLINE_US_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<u64>> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        timeout_us(&headers)
    }

    #[test]
    fn reads_every_unit_and_cuts_what_is_huge() {
        let values = [("1n", 1), ("0S", 0), ("20m", 20_000), ("7u", 7), ("2S", 2_000_000)];
        for (text, us) in values {
            assert_eq!(parse(text).unwrap(), Some(us), "{text}");
        }
        assert_eq!(parse("99999999H").unwrap(), Some(DEADLINE_US_MAX));
        assert_eq!(timeout_us(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn refuses_what_is_malformed() {
        for text in ["123456789m", "-1S", "5x", "", "S", "1.5S", "+1S", "5"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}

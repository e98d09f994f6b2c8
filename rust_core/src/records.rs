//! Journaled labels on their way to a store: what the journal hands out, decoded.
//!
//! A body that is no record ends as dead, with its bytes kept and its reason said: no later try
//! would read it either, and it must not hold up the others.

use std::fmt;

use prost::Message as _;

use crate::{journal::Journal, proto::journal::Record};

/// A label with its number in the journal.
pub type Numbered = (u64, Record);

/// What a line of the log shows of a body.
const SHOWN_BYTES: usize = 32;

/// The records among what was taken, in the same order.
pub fn decoded(journal: &Journal, taken: Vec<(u64, Vec<u8>)>) -> Vec<Numbered> {
    let decode = |(number, body): (u64, Vec<u8>)| match Record::decode(body.as_slice()) {
        Ok(record) => Some((number, record)),
        Err(error) => {
            let kept_as = journal.give_up(number, &body).unwrap_or_default();
            let (bytes, begins) = (body.len(), Hex(&body[..body.len().min(SHOWN_BYTES)]));
            tracing::error!(
                number, %error, bytes, %begins, kept_as,
                "a journal record could not be decoded; it counts as dead"
            );
            None
        }
    };
    taken.into_iter().filter_map(decode).collect()
}

/// Bytes as people read them in a log.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

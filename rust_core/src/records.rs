//! Journaled labels on their way to a store: what the journal hands out, decoded.
//!
//! A body that is no record ends as dead, with its bytes kept and its reason said: no later try
//! would read it either, and it must not hold up the others.

use std::fmt;

use prost::{DecodeError, Message as _};

use crate::{journal::Journal, proto::journal::Record};

/// A label with its number in the journal.
pub type Numbered = (u64, Record);

/// What a line of the log shows of a body.
const SHOWN_BYTES: usize = 32;

/// Puts the records among what was taken at the front of `into`, in the same order: how many. What
/// stood there before is forgotten, and its texts' room used again.
pub fn decode(journal: &Journal, taken: &[(u64, Vec<u8>)], into: &mut Vec<Numbered>) -> usize {
    let mut count = 0;
    for (number, body) in taken {
        if into.len() == count {
            into.push(Numbered::default());
        }
        let (place, record) = &mut into[count];
        record.clear();
        if let Err(error) = record.merge(body.as_slice()) {
            give_up(journal, *number, body, &error);
            continue;
        }
        *place = *number;
        count += 1;
    }
    count
}

fn give_up(journal: &Journal, number: u64, body: &[u8], error: &DecodeError) {
    let kept_as = journal.give_up(number, body).unwrap_or_default();
    let (bytes, begins) = (body.len(), Hex(&body[..body.len().min(SHOWN_BYTES)]));
    tracing::error!(
        number, %error, bytes, %begins, kept_as,
        "a journal record could not be decoded; it counts as dead"
    );
}

/// Bytes as people read them in a log.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::journal::{self, JournalConfig, SystemFiles};

    #[test]
    fn a_record_in_a_used_place_has_nothing_of_what_stood_there() {
        let directory = tempfile::tempdir().unwrap();
        let config = JournalConfig {
            directory: directory.path().join("journal"),
            ..journal::tests::config()
        };
        let opened = journal::open(config, Arc::new(SystemFiles)).unwrap();
        let committer = std::thread::spawn(move || opened.committer.run());
        let full = Record {
            robot_id: "robot-1".into(),
            sequence: 7,
            scores: vec![0.25, 0.75],
            sku: "SKU-1".into(),
            ..Record::default()
        };
        let short = Record { sequence: 8, ..Record::default() };
        let body = full.encode_to_vec();
        // The second breaks off in its last field, when its first ones are already in their place.
        let broken = body[..body.len() - 1].to_vec();
        let taken = [(1, body), (2, broken), (3, short.encode_to_vec())];
        let mut rows = vec![(9, full.clone()); 4];
        assert_eq!(decode(&opened.journal, &taken, &mut rows), 2);
        assert_eq!(rows[..2], [(1, full), (3, short)]);
        opened.journal.close(Duration::from_secs(10)).unwrap();
        committer.join().unwrap().unwrap();
    }
}

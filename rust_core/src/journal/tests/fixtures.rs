//! Journals as each version has left them, in `tests/fixtures/journal/`: today's reads them.
//!
//! Each folder holds the files and `holds.json`, what is in them. A fixture is made once for each
//! version of the format and never again.

use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::journal::format::VERSION;
use crate::proto::journal::Record;

/// Where the fixtures are.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/journal")
}

/// Small segments, so that a few records need several, and stragglers are carried forward.
fn fixture_config(directory: &Path) -> JournalConfig {
    JournalConfig {
        directory: directory.to_path_buf(),
        segment_bytes: 8192,
        disk_bytes_max: 8192 * 6,
        reserve_bytes: 1024,
        ..config()
    }
}

fn record(number: u64) -> Record {
    let label = ["forward", "left", "right", "stop"][number as usize % 4];
    Record {
        robot_id: format!("robot-{}", number % 5),
        sequence: number,
        model: "kiva-floor".into(),
        version: "1".into(),
        label: label.into(),
        index: (number % 4) as u32,
        confidence: 0.5 + (number % 32) as f32 / 64.0,
        scores: vec![0.25, 0.5, 0.125, number as f32],
        payload_digest: (u128::from(number) * 0x9e37_79b9).to_le_bytes().to_vec(),
        source: 1,
        labeled_at_unix_us: 1_700_000_000_000_000 + number as i64,
        captured_at_unix_us: 1_699_999_999_000_000 + number as i64,
        sku: format!("sku-{}", number % 7),
    }
}

fn told(number: u64, pending: bool) -> Value {
    let Record { robot_id, sequence, label, confidence, .. } = record(number);
    json!({
        "number": number, "pending": pending, "robot_id": robot_id, "sequence": sequence,
        "label": label, "confidence": confidence,
    })
}

/// Two records are never confirmed, those before the last few are: stored, superseded or dead.
fn fill(hand: &mut Hand, last: u64) {
    for number in 1..=last {
        let body = record(number).encode_to_vec();
        let appended = match number % 3 {
            0 => hand.append_unawaited(&body),
            _ => hand.append(&[&body]),
        };
        assert_eq!(appended, Ok(number));
        hand.pass(Duration::from_millis(300)).unwrap();
        if ![3, 7].contains(&number) && number + 6 <= last {
            let outcome =
                [Outcome::Stored, Outcome::Superseded, Outcome::Dead][number as usize % 3];
            hand.confirm(&[number], outcome);
        }
    }
}

#[test]
#[ignore = "makes the fixture of this version, once"]
fn makes_the_fixture_of_this_version() {
    let folder = fixtures().join(format!("v{VERSION}"));
    assert!(!folder.exists(), "{} is there; a fixture is never made again", folder.display());
    let directory = folder.join("journal");
    let mut hand = Hand::open_with(fixture_config(&directory), Arc::new(SystemFiles)).unwrap();
    fill(&mut hand, 120);
    let stats = hand.journal.stats();
    assert!(stats.copied_total >= 2, "stragglers are carried forward");
    let pending = hand.taken_numbers();
    let holds = json!({
        "journal_id": hand.journal.journal_id(),
        "next_number": stats.next_number,
        "pending": pending.iter().map(|number| told(*number, true)).collect::<Vec<_>>(),
    });
    // As kill -9 would leave it.
    drop(hand);
    let text = serde_json::to_string_pretty(&holds).unwrap() + "\n";
    std::fs::write(folder.join("holds.json"), text).unwrap();
    std::fs::remove_file(directory.join("lock")).unwrap();
}

/// A copy of a fixture's files, and what they hold.
fn copied(folder: &Path) -> (tempfile::TempDir, Value) {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder.join("journal")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let text = std::fs::read_to_string(folder.join("holds.json")).unwrap();
    (copy, serde_json::from_str(&text).unwrap())
}

#[test]
fn the_journals_of_all_versions_are_read_whole_and_gone_on_with() {
    let mut versions: Vec<PathBuf> = std::fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    versions.sort();
    let expected: Vec<PathBuf> = (1..=VERSION).map(|v| fixtures().join(format!("v{v}"))).collect();
    assert_eq!(versions, expected, "each version of the format has its fixture");
    for folder in versions {
        let (copy, holds) = copied(&folder);
        let report = verify(copy.path(), &SystemFiles).unwrap();
        assert!(report.whole && report.tail_bytes == 0, "{report:?}");
        let mut hand = Hand::open_with(fixture_config(copy.path()), Arc::new(SystemFiles)).unwrap();
        assert_eq!(json!(hand.journal.journal_id()), holds["journal_id"]);
        assert_eq!(json!(hand.recovery.next_number), holds["next_number"]);
        let rows = hand.take();
        let seen = rows.iter().map(|(number, body)| {
            assert_eq!(Record::decode(&**body).unwrap(), record(*number));
            told(*number, true)
        });
        assert_eq!(json!(seen.collect::<Vec<_>>()), holds["pending"]);
        let numbers: Vec<u64> = rows.iter().map(|(number, _)| *number).collect();
        hand.confirm(&numbers, Outcome::Stored);
        assert_eq!(json!(hand.commit(&[b"the next"])), holds["next_number"]);
        drop(hand);
        let hand = Hand::open_with(fixture_config(copy.path()), Arc::new(SystemFiles)).unwrap();
        assert_eq!(hand.take().len(), 1, "what was confirmed is gone");
    }
}

//! What the journal promises when nothing breaks: numbers, durability, handing out, confirming,
//! closing.

use super::*;
use crate::journal::files::{LogFile, Mode};

#[test]
fn what_is_committed_is_there_after_reopening() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let id = hand.journal.journal_id();
    assert_eq!(hand.commit(&[b"a", b"b"]), 1);
    assert_eq!(hand.commit(&[b"c"]), 3);
    hand.close();
    let hand = Hand::open(&files);
    assert_eq!(hand.recovery.pending, 3);
    assert_eq!(hand.recovery.next_number, 4);
    assert_eq!((hand.recovery.cut_bytes, hand.recovery.quarantined.len()), (0, 0));
    assert_eq!(hand.journal.journal_id(), id);
    assert_eq!(hand.take(), [(1, b"a".to_vec()), (2, b"b".to_vec()), (3, b"c".to_vec())]);
}

#[test]
fn what_is_committed_survives_a_kill_without_close() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a"]);
    hand.append(&[b"never committed"]).unwrap();
    drop(hand);
    let hand = Hand::open(&files);
    assert_eq!(hand.take(), [(1, b"a".to_vec())]);
}

#[test]
fn a_first_record_commits_at_once_and_later_ones_keep_the_gap() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.settle().unwrap();
    hand.clock.advance(Duration::from_secs(1));
    hand.append(&[b"a"]).unwrap();
    assert_eq!(hand.committer.step().unwrap(), Next::Again);
    let at = hand.clock.now();
    assert_eq!(hand.told.lock().unwrap().as_slice(), [Ok(1)]);
    hand.append(&[b"b"]).unwrap();
    hand.append(&[b"c"]).unwrap();
    while hand.committer.step().unwrap() == Next::Again {}
    let due = at + Duration::from_micros(1000);
    assert_eq!(hand.committer.step().unwrap(), Next::Sleep(Some(due)));
    hand.clock.advance(Duration::from_micros(1000));
    let commits = hand.journal.stats().commits_total;
    hand.settle().unwrap();
    assert_eq!(hand.journal.stats().commits_total, commits + 1);
    assert_eq!(hand.told.lock().unwrap().as_slice(), [Ok(1), Ok(2), Ok(3)]);
}

#[test]
fn records_that_nobody_waits_for_wait_longer_but_not_beside_one_that_is_awaited() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.settle().unwrap();
    hand.append(&[b"a"]).unwrap();
    assert_eq!(hand.committer.step().unwrap(), Next::Again);
    let at = hand.clock.now();
    hand.append_unawaited(b"b").unwrap();
    while hand.committer.step().unwrap() == Next::Again {}
    let alone = at + Duration::from_micros(5000);
    assert_eq!(hand.committer.step().unwrap(), Next::Sleep(Some(alone)));
    hand.append(&[b"c"]).unwrap();
    let together = at + Duration::from_micros(1000);
    assert_eq!(hand.committer.step().unwrap(), Next::Sleep(Some(together)));
    let commits = hand.journal.stats().commits_total;
    hand.settle().unwrap();
    assert_eq!(hand.journal.stats().commits_total, commits + 1);
    assert_eq!(hand.told.lock().unwrap().as_slice(), [Ok(1), Ok(2), Ok(3)]);
}

#[test]
fn a_record_that_is_awaited_wakes_a_committer_that_waits_with_others() {
    let gap = Duration::from_secs(3600);
    let config = JournalConfig { commit_gap_us_min: gap.as_micros() as u64, ..config() };
    let hand = Hand::open_with(config, Arc::new(FaultyFiles::new())).unwrap();
    let Hand { journal, committer, clock, .. } = hand;
    let committing = std::thread::spawn(move || committer.run());
    let (told, news) = std::sync::mpsc::channel();
    let done = || -> Done {
        let told = told.clone();
        Box::new(move |result| told.send(result).unwrap())
    };
    let soon = Duration::from_secs(20);
    journal.append(vec![b"a".to_vec()], vec![], done()).unwrap();
    assert_eq!(news.recv_timeout(soon), Ok(Ok(1)));
    journal.append_unawaited(vec![b"b".to_vec()], vec![], done()).unwrap();
    clock.advance(gap);
    journal.append(vec![b"c".to_vec()], vec![], done()).unwrap();
    assert_eq!(news.recv_timeout(soon), Ok(Ok(2)));
    assert_eq!(news.recv_timeout(soon), Ok(Ok(3)));
    journal.close(soon).unwrap();
    committing.join().unwrap().unwrap();
}

#[test]
fn each_record_is_handed_out_once_in_a_life_and_again_in_the_next() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a", b"b", b"c"]);
    let first = hand.journal.take(2, 100, Duration::ZERO).unwrap();
    assert_eq!(first.len(), 2);
    hand.commit(&[b"d"]);
    assert_eq!(hand.taken_numbers(), [3, 4]);
    assert!(hand.take().is_empty());
    hand.confirm(&[1, 3], Outcome::Stored);
    drop(hand);
    assert_eq!(Hand::open(&files).taken_numbers(), [2, 4]);
}

#[test]
fn a_batch_keeps_to_its_bytes_but_holds_at_least_one_record() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[&[1; 40], &[2; 40], &[3; 40]]);
    let rows = |bytes_max| hand.journal.take(10, bytes_max, Duration::ZERO).unwrap().len();
    assert_eq!(rows(10), 1);
    assert_eq!(rows(80), 2);
}

#[test]
fn take_waits_for_a_commit() {
    let directory = tempfile::tempdir().unwrap();
    let config = JournalConfig { directory: directory.path().join("journal"), ..config() };
    let Opened { journal, committer, .. } = open(config, Arc::new(SystemFiles)).unwrap();
    let thread = std::thread::spawn(move || committer.run());
    let taker = journal.clone();
    let taken = std::thread::spawn(move || taker.take(10, 1000, Duration::from_secs(20)).unwrap());
    let reservation = journal.reserve(5).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = Box::new(move |result| sender.send(result).unwrap());
    journal.append(vec![b"hello".to_vec()], vec![reservation], done).unwrap();
    assert_eq!(receiver.recv().unwrap(), Ok(1));
    assert_eq!(taken.join().unwrap(), [(1, b"hello".to_vec())]);
    journal.confirm(&[1], Outcome::Stored);
    journal.close(Duration::from_secs(20)).unwrap();
    thread.join().unwrap().unwrap();
    assert_eq!(journal.stats().uncommitted_bytes, 0);
    assert!(matches!(journal.take(1, 1, Duration::ZERO), Err(Error::Stopped)));
    let done = Box::new(|_| panic!("it is refused"));
    assert!(matches!(journal.append(vec![], vec![], done), Err(Error::Stopped)));
}

#[test]
fn closing_commits_what_is_appended_and_the_confirmations() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a"]);
    hand.append(&[b"b"]).unwrap();
    hand.journal.confirm(&[1], Outcome::Stored);
    hand.close();
    assert_eq!(Hand::open(&files).taken_numbers(), [2]);
}

#[test]
fn confirmations_survive_and_travel_with_records_or_alone() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a", b"b", b"c", b"d"]);
    hand.journal.confirm(&[1, 2], Outcome::Stored);
    hand.commit(&[b"e"]);
    drop(hand);
    let mut hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), [3, 4, 5]);
    hand.confirm(&[4], Outcome::Dead);
    drop(hand);
    let mut hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), [3, 5]);
    hand.journal.confirm(&[3], Outcome::Stored);
    hand.pass(Duration::from_millis(150)).unwrap();
    drop(hand);
    assert_eq!(Hand::open(&files).taken_numbers(), [3, 5], "200 ms are not over");
}

#[test]
fn every_record_is_counted_once_whatever_becomes_of_it() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a", b"b", b"c", b"d"]);
    hand.journal.confirm(&[1, 1, 99], Outcome::Stored);
    hand.journal.confirm(&[2, 1], Outcome::Superseded);
    hand.journal.confirm(&[3], Outcome::Dead);
    hand.clock.advance(Duration::from_secs(2));
    let stats = hand.journal.stats();
    assert_eq!(stats.journaled_total, 4);
    assert_eq!((stats.stored_total, stats.superseded_total, stats.dead_total), (1, 1, 1));
    assert_eq!((stats.pending, stats.unknown_total), (1, 3));
    assert_eq!((stats.next_number, stats.durable_number), (5, 5));
    assert!(stats.oldest_pending_us >= 2_000_000);
    assert!(stats.live_bytes > 0);
    hand.pass(Duration::from_millis(300)).unwrap();
    drop(hand);
    let stats = Hand::open(&files).journal.stats();
    assert_eq!((stats.journaled_total, stats.pending), (1, 1));
}

#[test]
fn numbers_do_not_restart_when_an_empty_journal_is_killed() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let mut next = 1;
    for life in 0..6 {
        for _ in 0..40 {
            let first = hand.commit(&[&[7; 300], &[8; 300]]);
            assert_eq!(first, next, "life {life}");
            next = first + 2;
            hand.confirm(&[first, first + 1], Outcome::Stored);
        }
        hand.pass(Duration::from_secs(3)).unwrap();
        assert_eq!(hand.journal.stats().pending, 0);
        drop(hand);
        files.power_cut(life);
        hand = Hand::open(&files);
        assert_eq!(hand.recovery.next_number, next, "life {life}");
    }
    let first_left = files.lengths().into_keys().find(|path| *path == segment_path(1));
    assert_eq!(first_left, None, "the first segment is long deleted");
}

#[test]
fn scan_shows_every_durable_record_and_whether_it_is_pending() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a", b"b"]);
    hand.commit(&[b"c"]);
    hand.confirm(&[2], Outcome::Stored);
    let mut seen = Vec::new();
    hand.journal
        .scan(&mut |number, body, pending| seen.push((number, body.to_vec(), pending)))
        .unwrap();
    let expected = [(1, b"a".to_vec(), true), (2, b"b".to_vec(), false), (3, b"c".to_vec(), true)];
    assert_eq!(seen, expected);
}

#[test]
fn an_append_larger_than_a_segment_is_split_and_told_once() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.settle().unwrap();
    let body = [5_u8; 1000];
    let bodies: Vec<&[u8]> = vec![&body; 16];
    assert_eq!(hand.commit(&bodies), 1);
    assert_eq!(hand.taken_numbers(), (1..=16).collect::<Vec<u64>>());
    assert_eq!(hand.commit(&[]), 17);
}

#[test]
fn a_second_process_is_refused_and_touches_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let config = JournalConfig { directory: directory.path().to_path_buf(), ..config() };
    let held = open(config.clone(), Arc::new(SystemFiles)).unwrap();
    let look = || {
        let mut names = SystemFiles.list(directory.path()).unwrap();
        names.sort();
        names
    };
    let before = look();
    let refused = open(config.clone(), Arc::new(SystemFiles)).err().unwrap();
    assert!(matches!(refused, Error::InUse { what: "journal", .. }), "{refused}");
    assert_eq!(look(), before);
    drop(held);
    open(config, Arc::new(SystemFiles)).unwrap();
}

#[test]
fn a_newer_format_is_refused_and_nothing_is_touched() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a"]);
    drop(hand);
    let mut bytes = files.content(&segment_path(1));
    for copy in [0, 2048] {
        bytes[copy + 8] = 2;
        let sum = crc32c::crc32c(&bytes[copy..copy + 60]);
        bytes[copy + 60..copy + 64].copy_from_slice(&sum.to_le_bytes());
    }
    // A torn tail and an unfinished segment stay too.
    bytes[9000] = 1;
    files.set_content(&segment_path(1), &bytes);
    files.open(&segment_path(9).with_extension("log.new"), Mode::Create).unwrap();
    let before = (files.lengths(), files.calls());
    let refused = Hand::open_with(config(), Arc::new(files.clone())).err().unwrap();
    let expected = Error::JournalVersion { segment: segment::segment_name(1), found: 2, known: 1 };
    assert_eq!(refused, expected);
    assert_eq!((files.lengths(), files.calls()), before);
    assert_eq!(files.content(&segment_path(1)), bytes);
    assert_eq!(verify(Path::new(DIRECTORY), &files).unwrap_err(), expected);
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let config = JournalConfig { directory: file.join("journal"), ..config() };
    let error = open(config, Arc::new(SystemFiles)).err().unwrap();
    assert!(matches!(&error, Error::Disk { path, .. } if path.contains("file/journal")), "{error}");
}

#[test]
fn real_files_keep_what_the_double_keeps() {
    let directory = tempfile::tempdir().unwrap();
    let config = JournalConfig { directory: directory.path().to_path_buf(), ..config() };
    let reopen = || Hand::open_with(config.clone(), Arc::new(SystemFiles)).unwrap();
    let mut hand = reopen();
    for _ in 0..100 {
        let first = hand.commit(&[&[1; 200], &[2; 200]]);
        hand.confirm(&[first], Outcome::Stored);
        if first % 40 == 1 {
            hand.confirm(&[first + 1], Outcome::Stored);
        }
    }
    drop(hand);
    let hand = reopen();
    assert_eq!(hand.recovery.next_number, 201);
    let expected: Vec<u64> = (1..=100).map(|n| n * 2).filter(|n| n % 40 != 2).collect();
    assert_eq!(hand.taken_numbers(), expected);
    let report = verify(directory.path(), &SystemFiles).unwrap();
    assert!(report.whole, "{report:?}");
    assert_eq!(report.pending, expected.len() as u64);
    let stat = stat(directory.path(), &SystemFiles).unwrap();
    assert_eq!(stat.oldest_pending, Some(4));
    let rows = dump(directory.path(), &SystemFiles, 190, 3).unwrap();
    assert!(rows.iter().all(|row| row.number >= 190 && row.body.len() == 200));
    let segment: Arc<dyn LogFile> =
        SystemFiles.open(&directory.path().join(&stat.segments[0].file), Mode::Read).unwrap();
    assert_eq!(segment.length().unwrap(), config.segment_bytes);
}

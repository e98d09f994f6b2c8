//! Torn tails, flipped bytes, lost pages: what is said, what is cut, and who is spared.

use super::*;
use crate::journal::format::{GroupBuilder, Place, decode_group_header, journal_seed};

/// Three groups of two records each; returns the disk and the groups' offsets and lengths.
fn small_journal() -> (FaultyFiles, Vec<(usize, usize)>) {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let mut groups = Vec::new();
    let mut from = 4096;
    for group in 0..3_u8 {
        hand.commit(&[&[group * 2 + 1; 9], &[group * 2 + 2; 9]]);
        let bytes = files.content(&segment_path(1));
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let end = end.next_multiple_of(8);
        groups.push((from, end - from));
        from = end;
    }
    drop(hand);
    (files, groups)
}

#[test]
fn each_flipped_byte_costs_its_group_only_and_is_said() {
    let (disk, groups) = small_journal();
    let end = groups[2].0 + groups[2].1;
    // All bytes that say something, and some of the header page's zeros.
    let says = |at: &usize| *at >= 4096 || at % 2048 < 64 || at.is_multiple_of(97);
    for at in (0..end + 64).filter(says) {
        let files = disk.copy();
        files.flip(&segment_path(1), at, 0x20);
        let hand = Hand::open(&files);
        let recovery = &hand.recovery;
        let hit = groups.iter().position(|(from, length)| (*from..from + length).contains(&at));
        let lost: Vec<u64> =
            hit.map_or(vec![], |group| vec![group as u64 * 2 + 1, group as u64 * 2 + 2]);
        let expected: Vec<u64> = (1..=6).filter(|number| !lost.contains(number)).collect();
        assert_eq!(hand.taken_numbers(), expected, "byte {at}");
        assert!(
            recovery.next_number >= 7,
            "byte {at}: numbers restart at {}",
            recovery.next_number
        );
        match hit {
            Some(2) => assert!(recovery.cut_bytes > 0 && recovery.cut_kept_as.is_some(), "{at}"),
            Some(_) => {
                assert_eq!(recovery.quarantined.len(), 1, "byte {at}");
                let damage = &recovery.quarantined[0];
                assert_eq!(damage.numbers, Some((lost[0], lost[1])), "byte {at}");
                assert!(damage.kept_as.is_some(), "byte {at}");
            }
            None if at < 4096 => assert_eq!(recovery.quarantined.len(), 1, "byte {at}"),
            None => assert_eq!(recovery.cut_bytes, at as u64 + 1 - end as u64, "byte {at}"),
        }
    }
}

#[test]
fn a_cut_tail_stays_cut_and_the_journal_goes_on() {
    let (files, groups) = small_journal();
    files.flip(&segment_path(1), groups[2].0 + 70, 1);
    let mut hand = Hand::open(&files);
    let cut = hand.recovery.cut_bytes;
    assert!(cut > 0);
    let first = hand.commit(&[b"after"]);
    assert!(first >= 7);
    drop(hand);
    let hand = Hand::open(&files);
    assert_eq!((hand.recovery.cut_bytes, hand.recovery.quarantined.len()), (0, 0));
    assert_eq!(hand.taken_numbers(), [1, 2, 3, 4, first]);
    let kept =
        files.lengths().into_iter().find(|(path, _)| path.to_string_lossy().contains("quarantine"));
    assert!(kept.is_some());
}

#[test]
fn numbers_of_a_damaged_last_group_are_not_given_again_after_a_second_kill() {
    let (files, groups) = small_journal();
    files.flip(&segment_path(1), groups[2].0, 1);
    let next = Hand::open(&files).recovery.next_number;
    assert!(next >= 7);
    files.power_cut(3);
    assert_eq!(Hand::open(&files).recovery.next_number, next);
}

#[test]
fn numbers_do_not_restart_when_the_only_group_of_the_only_segment_is_damaged() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    while hand.journal.stats().durable_number < 100 {
        hand.commit(&[&[1; 300]]);
    }
    let seed = journal_seed(hand.journal.journal_id());
    drop(hand);
    let used = |id| files.content(&segment_path(id))[4096..].iter().any(|byte| *byte != 0);
    let ids = 1..=files.lengths().len() as u64;
    let there = ids.filter(|id| files.lengths().contains_key(&segment_path(*id)) && used(*id));
    let last = there.max().unwrap();
    for id in 1..last {
        files.remove(&segment_path(id)).unwrap();
    }
    let mut bytes = files.content(&segment_path(last));
    let place = Place { segment: last, offset: 4096 };
    let header = decode_group_header(&bytes[4096..], seed, place).unwrap();
    assert!(header.first_number > 50);
    bytes[4097..].fill(0);
    files.set_content(&segment_path(last), &bytes);
    assert!(Hand::open(&files).recovery.next_number > header.first_number);
}

#[test]
fn corruption_is_reported_at_each_start_until_its_segment_is_gone() {
    let (files, groups) = small_journal();
    files.flip(&segment_path(1), groups[0].0 + 66, 1);
    for _ in 0..2 {
        assert_eq!(Hand::open(&files).recovery.quarantined.len(), 1);
    }
    let report = verify(Path::new(DIRECTORY), &files).unwrap();
    assert!(!report.whole);
    let mut hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), [3, 4, 5, 6]);
    hand.confirm(&[3, 4, 5, 6], Outcome::Stored);
    for _ in 0..40 {
        let first = hand.commit(&[&[1; 500]]);
        hand.confirm(&[first], Outcome::Stored);
    }
    drop(hand);
    assert!(Hand::open(&files).recovery.quarantined.is_empty());
    assert!(verify(Path::new(DIRECTORY), &files).unwrap().whole);
}

#[test]
fn a_lost_page_before_the_mark_is_corruption_though_it_reads_as_zeros() {
    let (files, groups) = small_journal();
    let mut bytes = files.content(&segment_path(1));
    bytes[groups[1].0..groups[1].0 + groups[1].1].fill(0);
    files.set_content(&segment_path(1), &bytes);
    let hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), [1, 2, 5, 6]);
    assert_eq!(hand.recovery.quarantined[0].numbers, Some((3, 4)));
}

#[test]
fn a_durable_group_that_is_gone_from_a_segment_end_is_told_by_the_next_segment() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    while hand.journal.stats().durable_number < 60 {
        hand.commit(&[&[1; 300]]);
    }
    drop(hand);
    let mut bytes = files.content(&segment_path(1));
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[last - 250..].fill(0);
    files.set_content(&segment_path(1), &bytes);
    let hand = Hand::open(&files);
    let (first, last) = hand.recovery.quarantined[0].numbers.unwrap();
    assert_eq!(first, last);
    assert_eq!(hand.recovery.pending, 58);
    assert!(!hand.taken_numbers().contains(&first));
}

#[test]
fn the_record_after_a_torn_one_is_not_taken_for_durable() {
    let (files, groups) = small_journal();
    let seed = journal_seed(Hand::open(&files).journal.journal_id());
    let mark = groups[2].0 + groups[2].1;
    // Two groups that no later mark covers: the first torn, the second whole.
    let mut group = GroupBuilder::default();
    group.record(b"torn");
    let length = group.total_bytes_with(0) as usize;
    let mark_place = Place { segment: 1, offset: mark as u64 };
    let torn = group.finish(seed, mark_place, 7, mark_place).to_vec();
    group.clear();
    group.record(b"whole");
    let place = Place { segment: 1, offset: (mark + length) as u64 };
    let whole = group.finish(seed, place, 8, mark_place).to_vec();
    let mut bytes = files.content(&segment_path(1));
    bytes[mark..mark + 40].copy_from_slice(&torn[..40]);
    bytes[mark + length..mark + length + whole.len()].copy_from_slice(&whole);
    files.set_content(&segment_path(1), &bytes);
    let mut hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), [1, 2, 3, 4, 5, 6]);
    assert!(hand.recovery.cut_bytes as usize >= length);
    assert!(hand.recovery.quarantined.is_empty());
    let first = hand.commit(&[b"next"]);
    assert!(first > 8);
    drop(hand);
    assert_eq!(Hand::open(&files).taken_numbers(), [1, 2, 3, 4, 5, 6, first]);
}

#[test]
fn a_segment_of_another_journal_is_refused() {
    let (files, _) = small_journal();
    let other = FaultyFiles::new();
    other.new_id();
    drop(Hand::open(&other));
    files.set_content(&segment_path(2), &other.content(&segment_path(2)));
    let error = Hand::open_with(config(), Arc::new(files)).err().unwrap();
    assert!(error.to_string().contains("this is segment 2 of journal"), "{error}");
}

#[test]
fn a_missing_segment_file_is_said() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    while hand.journal.stats().durable_number < 90 {
        hand.commit(&[&[1; 300]]);
    }
    drop(hand);
    files.remove(&segment_path(2)).unwrap();
    let hand = Hand::open(&files);
    assert_eq!(hand.recovery.quarantined[0].reason, "the segment's file is missing");
    assert!(hand.recovery.pending > 30);
}

#[test]
fn a_record_damaged_while_the_process_runs_costs_its_group_and_is_given_up_by_copying() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    for _ in 0..60 {
        hand.commit(&[&[1; 300]]);
    }
    files.flip(&segment_path(1), 4096 + 100, 1);
    let taken = hand.taken_numbers();
    assert_eq!(taken, (2..=60).collect::<Vec<u64>>());
    hand.confirm(&taken, Outcome::Stored);
    hand.pass(Duration::from_secs(3)).unwrap();
    let stats = hand.journal.stats();
    assert_eq!((stats.pending, stats.stored_total, stats.dead_total), (0, 59, 1));
    assert_eq!(stats.quarantined_total, 1);
}

#[test]
fn a_flipped_byte_in_the_waste_at_a_segment_end_does_not_cost_the_next_segment() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let in_use = |id| files.content(&segment_path(id))[4096..].iter().any(|byte| *byte != 0);
    let mut last = 0;
    while !in_use(2) {
        last = hand.commit(&[&[1; 300]]);
    }
    drop(hand);
    files.flip(&segment_path(1), 16383, 1);
    let hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), (1..=last).collect::<Vec<u64>>());
    assert_eq!(hand.recovery.quarantined.len(), 1, "{:?}", hand.recovery);
}

#[test]
fn numbers_of_a_damaged_last_group_are_not_given_again_when_the_start_that_cuts_it_is_cut_short() {
    for calls in 0..40 {
        let (files, groups) = small_journal();
        files.flip(&segment_path(1), groups[2].0, 1);
        files.set_faults(|faults| faults.changes_until_cut = Some(calls));
        drop(Hand::open_with(config(), Arc::new(files.clone())));
        files.power_cut(calls);
        let hand = Hand::open(&files);
        assert!(hand.recovery.next_number >= 7, "cut at {calls}: {:?}", hand.recovery);
        assert_eq!(hand.taken_numbers(), [1, 2, 3, 4], "cut at {calls}");
    }
}

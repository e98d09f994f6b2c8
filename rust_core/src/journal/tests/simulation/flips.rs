//! Bytes that flip while no process has the journal open, and what each of them may cost.
//!
//! Reads the layout of the files for that: a flip may cost its group, and nothing else.

use std::collections::BTreeSet;

use super::model::Excused;
use super::*;
use crate::journal::faulty::Random;
use crate::journal::files::Mode;
use crate::journal::format::{Frame, Frames, decode_header_page, journal_seed};
use crate::journal::walk::{Found, Walker};

#[derive(Default)]
pub(super) struct Flips {
    count: u64,
    /// Segments one of whose header copies was hit; the other is left alone.
    headers: BTreeSet<u64>,
    /// The next start has to say something.
    unsaid: bool,
}

impl Flips {
    pub(super) fn any(&self) -> bool {
        self.count > 0
    }

    /// Whatever was flipped is reported, and nothing is where nothing was flipped. A tail is only
    /// reported by the start that cuts it; if that one fails, `quarantine/` still holds the bytes.
    pub(super) fn are_said(&mut self, recovery: &Recovery, files: &FaultyFiles) {
        let folder = Path::new(DIRECTORY).join("quarantine");
        let kept = files.list(&folder).is_ok_and(|names| !names.is_empty());
        let said = !recovery.quarantined.is_empty() || recovery.cut_bytes > 0 || kept;
        assert!(said || !self.unsaid, "a flipped byte was passed over in silence");
        assert!(self.any() || recovery.quarantined.is_empty(), "{:?}", recovery.quarantined);
        self.unsaid = false;
    }

    /// Flips bits of one byte somewhere; what was done, and what it may cost.
    pub(super) fn flip(
        &mut self,
        files: &FaultyFiles,
        random: &mut Random,
    ) -> Option<(String, Excused)> {
        let lengths = files.lengths();
        let segments: Vec<_> = lengths
            .iter()
            .filter_map(|(path, bytes)| {
                let id = segment::segment_of(path.file_name()?.to_str()?)?;
                (path.parent() == Some(Path::new(DIRECTORY))).then_some((id, path, *bytes))
            })
            .collect();
        if segments.is_empty() {
            return None;
        }
        let (id, path, bytes) = segments[random.below(segments.len() as u64) as usize];
        let used = files.content(path).iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64;
        let at = match random.below(8) {
            0 => random.below(bytes),
            1 => random.below(64) + 2048 * random.below(2),
            _ => 4096.min(used) + random.below(used.saturating_sub(4095)),
        };
        let mask = 1 << random.below(8);
        let excused = self.cost(files, path, id, at)?;
        files.flip(path, at as usize, mask);
        self.count += 1;
        self.unsaid = true;
        Some((format!("flip {mask:#x} at {at} of segment {id}: may cost {excused:?}"), excused))
    }

    /// What a flip may cost; `None` if it would hit what is damaged already.
    fn cost(&mut self, files: &FaultyFiles, path: &Path, id: u64, at: u64) -> Option<Excused> {
        let mut excused = Excused::default();
        if at < 4096 {
            return self.headers.insert(id).then_some(excused);
        }
        let page = decode_header_page(&files.content(path)[..4096]);
        let seed = journal_seed(page.header?.journal_id);
        let file = files.open(path, Mode::Read).ok()?;
        let bytes = file.length().ok()?;
        let mut walker = Walker::new(file, id, seed, bytes);
        loop {
            match walker.next().ok()? {
                Found::Group(header, body) => {
                    if !(header.offset..header.offset + header.total_bytes()).contains(&at) {
                        continue;
                    }
                    for frame in Frames::new(&header, body) {
                        match frame {
                            Frame::Record { number, .. } | Frame::Copy { number, .. } => {
                                excused.missing.insert(number);
                            }
                            Frame::Confirm { first, last, .. } => excused.back.extend(first..=last),
                        }
                    }
                    return Some(excused);
                }
                Found::Bad { from, to, .. } if (from..to + 64).contains(&at) => return None,
                Found::Bad { .. } => {}
                Found::End => return Some(excused),
            }
        }
    }
}

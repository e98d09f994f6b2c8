//! A file system in memory that breaks on demand: short writes, a full disk, failing syncs, flipped
//! bits, and power cuts that keep any subset of what was not synced.
//!
//! For tests only. Deterministic: each power cut takes a seed. Never touches the real disk.

mod disk;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

use self::disk::{Change, Disk, Inode, countdown};
use super::files::{FileLock, Files, LogFile, Mode};

/// The file system; clones share it.
#[derive(Clone, Default)]
pub struct FaultyFiles {
    disk: Arc<Mutex<Disk>>,
}

/// What breaks.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// No write takes more bytes than this at once.
    pub write_bytes_max: Option<usize>,
    /// Files may grow by so many bytes in all; then the disk is full.
    pub free_bytes: Option<u64>,
    /// The sync after so many good ones fails with EIO, and those after it falsely succeed.
    pub syncs_until_failure: Option<u64>,
    /// The write after so many good ones fails with EIO.
    pub writes_until_failure: Option<u64>,
    /// The power goes at the call after so many changing ones: they fail, and nothing reaches the
    /// disk.
    pub changes_until_cut: Option<u64>,
    /// The changing call after so many good ones fails with EIO, once, and changes nothing.
    pub changes_until_failure: Option<u64>,
    /// The read after so many good ones fails with EIO, once.
    pub reads_until_failure: Option<u64>,
    /// Syncs of files succeed and make nothing durable.
    pub syncs_lie: bool,
    /// Syncs of directories succeed and make nothing durable.
    pub directory_syncs_lie: bool,
}

impl Faults {
    /// Nothing breaks any more; who lies goes on lying.
    pub fn mended(&self) -> Faults {
        let Faults { syncs_lie, directory_syncs_lie, .. } = *self;
        Faults { syncs_lie, directory_syncs_lie, ..Faults::default() }
    }
}

/// How often the disk was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Writes.
    pub writes: u64,
    /// fdatasyncs.
    pub syncs: u64,
    /// Syncs of a directory.
    pub directory_syncs: u64,
    /// All calls that change something.
    pub changes: u64,
}

impl FaultyFiles {
    /// An empty disk without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes what breaks from now on.
    pub fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.disk.lock().faults);
    }

    /// What was asked so far.
    pub fn calls(&self) -> Calls {
        self.disk.lock().calls
    }

    /// Cuts the power: of what was not synced, any subset of sectors and names is kept. Every open
    /// file and lock is gone.
    pub fn power_cut(&self, seed: u64) {
        let mut disk = self.disk.lock();
        let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15);
        let keep_all = random.below(8) == 0;
        let keep_none = random.below(8) == 0;
        disk.cut(move || keep_all || (!keep_none && random.below(2) == 0));
    }

    /// Flips bits of one byte of a file, on the disk as in the page cache.
    pub fn flip(&self, path: &Path, offset: usize, mask: u8) {
        let mut disk = self.disk.lock();
        let inode = disk.names[path];
        disk.inodes[inode].now[offset] ^= mask;
        if let Some(byte) = disk.inodes[inode].durable.get_mut(offset) {
            *byte ^= mask;
        }
    }

    /// The bytes of a file as a process sees them.
    pub fn content(&self, path: &Path) -> Vec<u8> {
        let disk = self.disk.lock();
        disk.inodes[disk.names[path]].now.clone()
    }

    /// Replaces the bytes of a file, durably.
    pub fn set_content(&self, path: &Path, bytes: &[u8]) {
        let mut disk = self.disk.lock();
        let inode = disk.names[path];
        disk.inodes[inode].now = bytes.to_vec();
        disk.inodes[inode].durable = bytes.to_vec();
        disk.inodes[inode].dirty.clear();
    }

    /// All files and their lengths.
    pub fn lengths(&self) -> BTreeMap<PathBuf, u64> {
        let disk = self.disk.lock();
        let length = |inode: &usize| disk.inodes[*inode].now.len() as u64;
        disk.names.iter().map(|(path, inode)| (path.clone(), length(inode))).collect()
    }

    /// The most bytes that the files of a directory have held together at any moment.
    pub fn bytes_peak(&self, directory: &Path) -> u64 {
        self.disk.lock().bytes_peak.get(directory).copied().unwrap_or(0)
    }

    /// The longest read that was asked for.
    pub fn read_bytes_max(&self) -> usize {
        self.disk.lock().read_bytes_max
    }

    /// A copy of the whole disk as it is now, with nothing open on it.
    pub fn copy(&self) -> FaultyFiles {
        FaultyFiles { disk: Arc::new(Mutex::new(self.disk.lock().copy())) }
    }
}

struct FaultyFile {
    disk: Arc<Mutex<Disk>>,
    inode: usize,
    epoch: u64,
}

impl FaultyFile {
    fn disk(&self) -> io::Result<parking_lot::MutexGuard<'_, Disk>> {
        let disk = self.disk.lock();
        if disk.epoch != self.epoch {
            return Err(io::Error::other("the file was open before the power was cut"));
        }
        Ok(disk)
    }
}

impl LogFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk()?;
        disk.read_bytes_max = disk.read_bytes_max.max(buffer.len());
        countdown(&mut disk.faults.reads_until_failure)?;
        let content = &disk.inodes[self.inode].now;
        let rest = content.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk()?;
        disk.change()?;
        disk.calls.writes += 1;
        countdown(&mut disk.faults.writes_until_failure)?;
        let mut length = bytes.len().min(disk.faults.write_bytes_max.unwrap_or(usize::MAX));
        let held = disk.inodes[self.inode].now.len() as u64;
        let grows = (offset + length as u64).saturating_sub(held);
        if let Some(free) = &mut disk.faults.free_bytes {
            let granted = grows.min(*free);
            length = length.saturating_sub((grows - granted) as usize);
            *free -= granted;
            if length == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        disk.inodes[self.inode].write(&bytes[..length], offset as usize);
        if grows > 0 {
            disk.note_peak();
        }
        Ok(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk()?;
        let failed = disk.change();
        disk.calls.syncs += 1;
        let failed = failed.and_then(|()| countdown(&mut disk.faults.syncs_until_failure));
        let powered = disk.faults.changes_until_cut != Some(0);
        let lies = disk.faults.syncs_lie;
        let inode = &mut disk.inodes[self.inode];
        if failed.is_err() && powered {
            // As Linux does it: the pages count as clean from now on, though the disk lacks them.
            inode.dirty.clear();
        }
        failed?;
        if !lies {
            inode.sync();
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk()?.inodes[self.inode].now.len() as u64)
    }
}

struct FaultyLock {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    id: u64,
}

impl FileLock for FaultyLock {}

impl Drop for FaultyLock {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if disk.locks.get(&self.path) == Some(&self.id) {
            disk.locks.remove(&self.path);
        }
    }
}

impl Files for FaultyFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let missing: Vec<&Path> =
            path.ancestors().take_while(|path| !disk.directories.contains(*path)).collect();
        for path in missing.into_iter().rev() {
            disk.change()?;
            disk.directories.insert(path.to_path_buf());
            disk.note(Change::Directory(path.to_path_buf()));
            disk.change()?;
            disk.sync_names(super::files::directory_of(path));
        }
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk.lock();
        let inside = disk.names.keys().filter(|path| path.parent() == Some(directory));
        let names = inside.filter_map(|path| path.file_name()?.to_str());
        Ok(names.map(str::to_string).collect())
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn LogFile>> {
        let mut disk = self.disk.lock();
        let inode = match (disk.names.get(path).copied(), mode) {
            (Some(inode), Mode::Read | Mode::Write) => inode,
            (None, Mode::Read | Mode::Write) => return Err(io::ErrorKind::NotFound.into()),
            (_, Mode::Create) => {
                disk.change()?;
                disk.inodes.push(Inode::default());
                let inode = disk.inodes.len() - 1;
                disk.names.insert(path.to_path_buf(), inode);
                disk.note(Change::Name(path.to_path_buf(), inode));
                inode
            }
        };
        Ok(Arc::new(FaultyFile { disk: Arc::clone(&self.disk), inode, epoch: disk.epoch }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.change()?;
        let Some(inode) = disk.names.remove(path) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        disk.note(Change::Remove(path.to_path_buf()));
        let freed = disk.inodes[inode].now.len() as u64;
        if let Some(free) = &mut disk.faults.free_bytes {
            *free += freed;
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.change()?;
        let Some(inode) = disk.names.remove(from) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        disk.names.insert(to.to_path_buf(), inode);
        disk.note(Change::Rename(from.to_path_buf(), to.to_path_buf(), inode));
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.change()?;
        disk.calls.directory_syncs += 1;
        if !disk.faults.directory_syncs_lie {
            disk.sync_names(path);
        }
        Ok(())
    }

    fn new_id(&self) -> Uuid {
        let mut disk = self.disk.lock();
        disk.ids_made += 1;
        Uuid::from_u128(u128::from(Random(disk.ids_made).number()) << 64 | 1)
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let mut disk = self.disk.lock();
        if disk.locks.contains_key(path) {
            return Ok(None);
        }
        disk.locks_made += 1;
        let id = disk.locks_made;
        disk.locks.insert(path.to_path_buf(), id);
        let lock = FaultyLock { disk: Arc::clone(&self.disk), path: path.to_path_buf(), id };
        Ok(Some(Box::new(lock)))
    }
}

/// A small random sequence (SplitMix64), so that a seed is all that a failure needs.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }
}

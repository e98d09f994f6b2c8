//! Who this process is: an id made at the first start and kept in the state directory.

use std::{fs, io::Write as _, path::Path};

use crate::error::{Error, Result};

/// The id, made if there is none yet.
///
/// Errors: `Disk` where the directory cannot be read or written.
pub fn instance_id(state_dir: &Path) -> Result<String> {
    let path = state_dir.join("instance_id");
    let disk = |operation| {
        let path = path.display().to_string();
        move |e: std::io::Error| Error::Disk { operation, path, reason: e.to_string() }
    };
    match fs::read_to_string(&path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(disk("read")(error)),
    }
    new_instance_id(&path).map_err(disk("write"))
}

fn new_instance_id(path: &Path) -> std::io::Result<String> {
    let id = uuid::Uuid::new_v4().to_string();
    let mut file = fs::File::create(path)?;
    file.write_all(format!("{id}\n").as_bytes())?;
    file.sync_all()?;
    if let Some(directory) = path.parent() {
        fs::File::open(directory)?.sync_all()?;
    }
    Ok(id)
}

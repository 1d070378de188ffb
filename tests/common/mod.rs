//! Folders to break checkpoints in. The program's tests use it, too.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of its own that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// An empty one. The name is a test file's own.
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("{}_{name}", env!("CARGO_CRATE_NAME"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn with(self, file: &str, content: impl AsRef<[u8]>) -> Self {
        fs::write(self.0.join(file), content).unwrap();
        self
    }

    /// With copies of these files of another folder.
    pub(crate) fn with_copies(self, folder: &Path, files: &[&str]) -> Self {
        for file in files {
            fs::copy(folder.join(file), self.0.join(file)).unwrap();
        }
        self
    }

    /// With copies of all files of another folder.
    pub(crate) fn with_copies_of(self, folder: &Path) -> Self {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), self.0.join(entry.file_name())).unwrap();
            }
        }
        self
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The names in it, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

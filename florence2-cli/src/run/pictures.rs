//! Which pictures are asked about.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use florence2::Task;

use crate::Failure;

/// What a folder's pictures end in. A file that is named is read whatever it ends in.
const ENDINGS: [&str; 9] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jfif"];

/// A picture that is meant.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) path: PathBuf,
    /// Why there is none.
    pub(super) problem: Option<String>,
}

/// The files that are meant: files as they are, the pictures of folders, and what patterns match where the shell left
/// that to us. What is not there keeps its place, with the reason, unless nothing at all is there.
pub(super) fn expand(named: &[PathBuf]) -> Result<Vec<Picture>, Failure> {
    let mut pictures = Vec::new();
    for path in named {
        match found(path) {
            Ok(paths) => pictures.extend(paths.into_iter().map(|path| Picture { path, problem: None })),
            Err(problem) => pictures.push(Picture { path: path.clone(), problem: Some(problem) }),
        }
    }
    if pictures.is_empty() {
        return Err(Failure::Request(
            "no picture is named: give files, folders or patterns such as 'photos/*.jpg'".into(),
        ));
    }
    let problems: Option<Vec<&str>> = pictures.iter().map(|picture| picture.problem.as_deref()).collect();
    match problems {
        Some(problems) => Err(Failure::Request(problems.join("; "))),
        None => Ok(pictures),
    }
}

fn found(path: &Path) -> Result<Vec<PathBuf>, String> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => in_folder(path),
        Ok(_) => Ok(vec![path.to_owned()]),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.to_str() {
            Some(pattern) if pattern.contains(['*', '?', '[']) => matching(pattern),
            _ => Err(format!("{}{}", not_read(path, &error), task_hint(path))),
        },
        Err(error) => Err(not_read(path, &error)),
    }
}

/// For a task that stands among the pictures without its angle brackets; else empty.
pub(super) fn task_hint(path: &Path) -> String {
    match path.to_str().filter(|text| text.parse::<Task>().is_ok()) {
        Some(task) if !path.exists() => format!("; as a task it is written -t {task}"),
        _ => String::new(),
    }
}

fn not_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

fn is_picture(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|error| not_read(folder, &error))?;
    let mut pictures: Vec<PathBuf> =
        entries.iter().map(fs::DirEntry::path).filter(|path| is_picture(path) && path.is_file()).collect();
    if pictures.is_empty() {
        return Err(format!("the folder {} holds no pictures ({})", folder.display(), ENDINGS.join(", ")));
    }
    pictures.sort();
    Ok(pictures)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("{pattern}: {what}");
    let paths = glob::glob(pattern).map_err(|error| wrong(&error))?;
    let mut found = paths.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    found.retain(|path| path.is_file());
    if found.is_empty() {
        return Err(wrong(&"there is no such file, and nothing that the pattern matches"));
    }
    Ok(found)
}

//! Where answers are drawn.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use super::pictures::Picture;
use super::questions::Question;
use crate::Failure;

/// The file of each picture and question; `None` where there is nothing to draw.
#[derive(Debug, Default)]
pub(super) struct Overlays(Vec<Vec<Option<PathBuf>>>);

impl Overlays {
    pub(super) fn path(&self, picture: usize, question: usize) -> Option<&Path> {
        self.0.get(picture)?.get(question)?.as_deref()
    }

    /// Names all files, and finds out now whether they can be written.
    pub(super) fn plan(out: &Path, pictures: &[Picture], questions: &[Question]) -> Result<Self, Failure> {
        let wrong = |what: String| Failure::Request(format!("--overlay {}: {what}", out.display()));
        if questions.iter().all(|question| !question.kind().has_locations()) {
            return Err(wrong("answers in text have no places to draw".to_owned()));
        }
        let pattern = Pattern::read(out).map_err(wrong)?;
        let slugs = slugs(questions);
        let mut taken: HashMap<PathBuf, &Path> = HashMap::new();
        let inputs: HashSet<PathBuf> = pictures
            .iter()
            .map(|Picture { path, .. }| fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
            .collect();
        let mut plan = Vec::new();
        for (Picture { path: picture, problem }, name) in pictures.iter().zip(names(pictures)) {
            let mut row = Vec::new();
            for (question, slug) in questions.iter().zip(&slugs) {
                if problem.is_some() || !question.kind().has_locations() {
                    row.push(None);
                    continue;
                }
                let path = pattern.path(&name, slug);
                if let Some(other) = taken.insert(path.clone(), picture) {
                    let both = if other == picture.as_path() {
                        format!("several answers about {}", picture.display())
                    } else {
                        format!("answers about {} and {}", other.display(), picture.display())
                    };
                    return Err(wrong(format!(
                        "{both} would be drawn into {}; give a folder, or a pattern with {{name}} and {{task}}",
                        path.display()
                    )));
                }
                if inputs.contains(&path) || fs::canonicalize(&path).is_ok_and(|path| inputs.contains(&path))
                {
                    return Err(wrong(format!("{} is one of the pictures", path.display())));
                }
                row.push(Some(path));
            }
            plan.push(row);
        }
        if let Pattern::Folder(folder) = &pattern {
            fs::create_dir_all(folder).map_err(|error| wrong(format!("cannot make the folder: {error}")))?;
        }
        for path in plan.iter().flatten().flatten() {
            if let Some(folder) =
                path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            {
                return Err(wrong(format!("the folder {} does not exist; make it first", folder.display())));
            }
            can_write(path).map_err(|error| wrong(format!("cannot write {}: {error}", path.display())))?;
        }
        Ok(Self(plan))
    }
}

#[derive(Debug)]
enum Pattern {
    Folder(PathBuf),
    File(String),
}

impl Pattern {
    fn read(out: &Path) -> Result<Self, String> {
        let text = out.to_str().ok_or("the name is not UTF-8")?;
        if out.is_dir() || text.ends_with(std::path::is_separator) {
            return Ok(Self::Folder(out.to_owned()));
        }
        if !out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png")) {
            return Err(
                "a file to draw into ends in .png, and a folder that is not there yet in /".to_owned()
            );
        }
        for part in text.split('{').skip(1) {
            if let Some((name, _)) = part.split_once('}')
                && !matches!(name, "name" | "task")
            {
                return Err(format!("{{{name}}} stands for nothing; {{name}} and {{task}} do"));
            }
        }
        Ok(Self::File(text.to_owned()))
    }

    fn path(&self, name: &str, task: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(format!("{name}.{task}.png")),
            // In one pass: a picture may have {task} in its name.
            Self::File(pattern) => {
                let parts: Vec<String> =
                    pattern.split("{name}").map(|part| part.replace("{task}", task)).collect();
                parts.join(name).into()
            }
        }
    }
}

/// A name for each picture: without its ending, and numbered where pictures share it.
fn names(pictures: &[Picture]) -> Vec<String> {
    let stem =
        |picture: &Picture| picture.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // Some file systems take A for a.
    let key = |name: &str| name.to_lowercase();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for picture in pictures {
        *counts.entry(key(&stem(picture))).or_default() += 1;
    }
    let mut taken: HashSet<String> = counts.keys().cloned().collect();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let numbered = |picture: &Picture| {
        let name = stem(picture);
        if counts[&key(&name)] == 1 {
            return name;
        }
        let number = numbers.entry(key(&name)).or_default();
        loop {
            *number += 1;
            let name = format!("{name}-{number}");
            if taken.insert(key(&name)) {
                return name;
            }
        }
    };
    pictures.iter().map(numbered).collect()
}

/// A name for each question, numbered where a task is asked twice.
fn slugs(questions: &[Question]) -> Vec<String> {
    let mut slugs: Vec<String> = questions.iter().map(Question::slug).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for slug in &slugs {
        *counts.entry(slug.clone()).or_default() += 1;
    }
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for slug in slugs.iter_mut().filter(|slug| counts[slug.as_str()] > 1) {
        let number = numbers.entry(slug.clone()).or_default();
        *number += 1;
        *slug = format!("{slug}-{number}");
    }
    slugs
}

/// Leaves a file that is there as it is, and none that was not.
fn can_write(path: &Path) -> std::io::Result<()> {
    let there = path.exists();
    OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    if there { Ok(()) } else { fs::remove_file(path) }
}

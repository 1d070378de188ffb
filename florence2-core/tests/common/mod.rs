//! The stored answers, and when a result is one of them.

use std::fs;
use std::path::Path;

use florence2_core::{AnswerKind, Task};
use serde_json::Value;

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn own(file: &str) -> Vec<Value> {
    lines(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file))
}

/// A task that is none of the fifteen answers in text, as in the references.
pub(crate) fn kind_of(line: &Value) -> AnswerKind {
    line["task"].as_str().unwrap().parse().map_or(AnswerKind::Text, Task::answer_kind)
}

#[cfg(feature = "serde")]
mod with_serde {
    use florence2_core::{ImageSize, LocGrid, SizeError};
    use serde_json::Value;

    /// What the answer of a line lies over; `None` if it has places, and the picture no size.
    pub(crate) fn grid(line: &Value) -> Option<LocGrid> {
        let [width, height] = [0, 1].map(|at| &line["image_size"][at]);
        let size = match (width.as_u64(), height.as_u64()) {
            (Some(width), Some(height)) => {
                ImageSize::from_width_height(width.try_into().unwrap(), height.try_into().unwrap())
                    .map(LocGrid::from)
            }
            _ => LocGrid::from_extent(width.as_f64().unwrap(), height.as_f64().unwrap()),
        };
        match size {
            Ok(grid) => Some(grid),
            // A text needs no size.
            Err(SizeError::Zero) if !super::kind_of(line).has_locations() => {
                Some(ImageSize::from_width_height(1, 1).unwrap().into())
            }
            // The references make every coordinate 0 of it.
            Err(SizeError::Zero) => {
                assert_eq!(line["image_size"], serde_json::json!([0, 0]), "{}", line["id"]);
                None
            }
            Err(error) => panic!("{}: {error}", line["id"]),
        }
    }

    /// Whether the dictionaries are equal, numbers by their value: Python writes `5.9e+18` where Rust writes `5.9e18`.
    ///
    /// With a location over `i64::MAX` numpy makes the outline f64, so that only its f32 can be compared.
    pub(crate) fn assert_same(found: &Value, line: &Value, dialect: &str) {
        let (text, expected) = (line["text"].as_str().unwrap(), &line[dialect]);
        let equal: fn(f64, f64) -> bool = if text.contains("<loc_9223372036854775808>") {
            |a, b| a as f32 == b as f32
        } else {
            |a, b| a == b
        };
        assert!(
            same(found, expected, equal),
            "{} {dialect}\n{text:.300}\nfound    {found:.2000}\nexpected {expected:.2000}",
            line["id"]
        );
    }

    fn same(a: &Value, b: &Value, equal: fn(f64, f64) -> bool) -> bool {
        match (a, b) {
            (Value::Number(a), Value::Number(b)) => equal(a.as_f64().unwrap(), b.as_f64().unwrap()),
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, equal))
            }
            (Value::Object(a), Value::Object(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|((ka, a), (kb, b))| ka == kb && same(a, b, equal))
            }
            (a, b) => a == b,
        }
    }
}

#[cfg(feature = "serde")]
pub(crate) use with_serde::{assert_same, grid};

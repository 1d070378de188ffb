//! Where a tokenizer's own tokens stand in a text, as the checkpoints' tokenizer finds them.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use florence2_core::{Segment, TokenLayout, segments};
use serde_json::Value;

#[test]
fn tokens_are_found_where_the_checkpoints_tokenizer_finds_them() {
    let layout = TokenLayout::FLORENCE2;
    let mut compared = 0;
    for line in include_str!("../testdata/tokenization.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let ids: Vec<u32> = serde_json::from_value(line["ids"].clone()).unwrap();
        // The tokenizer puts one token at each end.
        let expected: Vec<u32> = ids[1..ids.len() - 1]
            .iter()
            .copied()
            .filter(|&id| layout.added(id).is_some() || layout.special(id).is_some())
            .collect();
        let found: Vec<u32> = segments(line["text"].as_str().unwrap())
            .filter_map(|segment| match segment {
                Segment::Text(_) => None,
                Segment::Special(token) => Some(layout.special_id(token)),
                Segment::Added(token) => Some(layout.added_id(token)),
            })
            .collect();
        assert_eq!(found, expected, "{line}");
        compared += found.len();
    }
    assert!(compared > 50, "{compared}");
}

//! The files of a tokenizer, checked.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::value::RawValue;

use super::{HIGHEST_ID, TokenizerError};
use crate::FileError;

/// A byte-level BPE, whatever files it came from.
pub(super) struct Vocabulary {
    /// Every token, the added ones among them: so the engine gives each the id that the file says.
    pub(super) ids: HashMap<String, u32>,
    pub(super) merges: Vec<(String, String)>,
    /// What is matched before BPE, by its text.
    pub(super) added: HashMap<String, Added>,
    pub(super) add_prefix_space: bool,
    pub(super) ignore_merges: bool,
}

/// A token that is matched before BPE.
#[derive(Debug, Deserialize)]
pub(super) struct Added {
    #[serde(default)]
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

impl Added {
    pub(super) fn new(content: &str, lstrip: bool) -> Self {
        Self { id: 0, content: content.to_owned(), single_word: false, lstrip, rstrip: false, special: true }
    }

    pub(super) fn into_engine(self) -> tokenizers::AddedToken {
        tokenizers::AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(false)
    }
}

impl Vocabulary {
    fn add(&mut self, token: Added) -> Result<(), TokenizerError> {
        let id = *self.ids.entry(token.content.clone()).or_insert(token.id);
        if id != token.id {
            return Err(TokenizerError::TwoIds { token: token.content, ids: [id, token.id] });
        }
        // An empty one would be everywhere.
        if !token.content.is_empty() {
            self.added.insert(token.content.clone(), token);
        }
        Ok(())
    }

    pub(super) fn highest_id(&self) -> u32 {
        self.ids.values().copied().max().unwrap_or_default()
    }

    /// What the engine takes for granted.
    pub(super) fn check(&self) -> Result<(), TokenizerError> {
        if self.highest_id() > HIGHEST_ID {
            return Err(TokenizerError::HighId(self.highest_id()));
        }
        let mut spelled = String::new();
        for byte in 0..=u8::MAX {
            spelled.clear();
            spelled.push(char_of(byte));
            if !self.ids.contains_key(&spelled) {
                return Err(TokenizerError::NoByte(byte));
            }
        }
        for (at, (left, right)) in self.merges.iter().enumerate() {
            let both = format!("{left}{right}");
            for token in [left, right, &both] {
                if !self.ids.contains_key(token) {
                    return Err(TokenizerError::Merge { at: at + 1, token: token.clone() });
                }
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct TokenizerJson<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Part>,
    pre_tokenizer: Option<Part>,
    decoder: Option<Part>,
    #[serde(borrow)]
    model: &'a RawValue,
}

/// A normaliser, a pre-tokenizer or a decoder.
#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    add_prefix_space: bool,
    use_regex: Option<bool>,
}

#[derive(Deserialize)]
struct ModelKind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
}

/// `"a b"`, or `["a", "b"]` in newer files.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Merge;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a merge, \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                merge(text).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                let mut next = || pair.next_element::<String>();
                let (left, right) = (next()?, next()?);
                let (Some(left), Some(right)) = (left, right) else {
                    return Err(serde::de::Error::invalid_length(0, &self));
                };
                match pair.next_element::<IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(serde::de::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

fn merge(text: &str) -> Option<Merge> {
    let (left, right) = text.split_once(' ')?;
    let whole = !left.is_empty() && !right.is_empty() && !right.contains(' ');
    whole.then(|| Merge(left.to_owned(), right.to_owned()))
}

fn parse<'a, T: Deserialize<'a>>(name: &str, json: &'a [u8]) -> Result<T, TokenizerError> {
    florence2_files::parse(json).map_err(|source| TokenizerError::Json { file: name.into(), source })
}

pub(super) fn from_json(json: &[u8]) -> Result<Vocabulary, TokenizerError> {
    const FILE: &str = "tokenizer.json";
    let file: TokenizerJson<'_> = parse(FILE, json)?;
    let kind: ModelKind = parse(FILE, file.model.get().as_bytes())?;
    if let Some(kind) = kind.kind.filter(|kind| kind != "BPE") {
        return Err(TokenizerError::OtherKind(format!("a {kind} model")));
    }
    if let Some(normalizer) = file.normalizer {
        return Err(TokenizerError::OtherKind(format!("a normaliser, {}", normalizer.kind)));
    }
    let byte_level = |part: Option<Part>, name: &str| match part {
        Some(part) if part.kind == "ByteLevel" && part.use_regex != Some(false) => Ok(part),
        Some(part) if part.kind == "ByteLevel" => {
            Err(TokenizerError::OtherKind(format!("a {name} that does not cut at words")))
        }
        Some(part) => Err(TokenizerError::OtherKind(format!("the {name} {}", part.kind))),
        None => Err(TokenizerError::OtherKind(format!("no {name}"))),
    };
    let add_prefix_space = byte_level(file.pre_tokenizer, "pre-tokenizer")?.add_prefix_space;
    byte_level(file.decoder.map(|part| Part { use_regex: None, ..part }), "decoder")?;
    let model: Model = parse(FILE, file.model.get().as_bytes())?;
    for (what, affix) in [
        ("a prefix within words", &model.continuing_subword_prefix),
        ("a suffix at the end of words", &model.end_of_word_suffix),
    ] {
        if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
            return Err(TokenizerError::OtherKind(format!("{what}, {affix:?}")));
        }
    }
    let mut vocabulary = Vocabulary {
        ids: model.vocab,
        merges: model.merges.into_iter().map(|Merge(left, right)| (left, right)).collect(),
        added: HashMap::new(),
        add_prefix_space,
        ignore_merges: model.ignore_merges,
    };
    file.added_tokens.into_iter().try_for_each(|token| vocabulary.add(token))?;
    Ok(vocabulary)
}

pub(super) fn from_vocab_and_merges(
    vocab: &[u8],
    merges: &[u8],
    added_tokens: Option<&[u8]>,
) -> Result<Vocabulary, TokenizerError> {
    let ids = parse("vocab.json", vocab)?;
    if let Some(found) = florence2_files::substitute(merges) {
        let (file, source) = ("merges.txt".into(), FileError::Substitute(found));
        return Err(TokenizerError::Json { file, source });
    }
    let mut lines = Vec::new();
    for (at, line) in merges.split(|&byte| byte == b'\n').enumerate() {
        let line = std::str::from_utf8(line).map_err(|_| TokenizerError::MergeLine { line: at + 1 })?;
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || line.starts_with("#version") {
            continue;
        }
        let Merge(left, right) = merge(line).ok_or(TokenizerError::MergeLine { line: at + 1 })?;
        lines.push((left, right));
    }
    let mut vocabulary = Vocabulary {
        ids,
        merges: lines,
        added: HashMap::new(),
        add_prefix_space: false,
        ignore_merges: false,
    };
    let added: HashMap<String, u32> = match added_tokens {
        Some(json) => parse("added_tokens.json", json)?,
        None => HashMap::new(),
    };
    for (content, id) in added {
        let lstrip = content == "<mask>";
        vocabulary.add(Added { id, ..Added::new(&content, lstrip) })?;
    }
    Ok(vocabulary)
}

/// The character that stands for a byte in a vocabulary, as GPT-2 has it: printable bytes of Latin-1 are their own
/// character, and the others, in order, are those from U+0100.
fn char_of(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let place = OTHERS.iter().position(|&other| other == byte).unwrap_or_default();
    char::from_u32(0x100 + place as u32).unwrap_or_default()
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte that a character of a vocabulary stands for.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        latin @ 0..0x100 => u8::try_from(latin).ok().filter(|&byte| is_printable(byte)),
        other => OTHERS.get(usize::try_from(other - 0x100).ok()?).copied(),
    }
}

/// The bytes that are not printable, in order.
const OTHERS: [u8; 68] = {
    let mut others = [0; 68];
    let (mut byte, mut len) = (0_u16, 0);
    while byte <= 0xff {
        if !is_printable(byte as u8) {
            others[len] = byte as u8;
            len += 1;
        }
        byte += 1;
    }
    others
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!((byte_of(' '), byte_of('\u{144}'), byte_of('\u{ad}')), (None, None, None));
    }
}

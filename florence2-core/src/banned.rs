//! The phrases that phrase grounding leaves out: pronouns, articles, and words such as `image`.

use alloc::collections::BTreeSet;
use alloc::string::String;

/// Which phrases [`AnswerKind::GroundedPhrases`](crate::AnswerKind::GroundedPhrases) leaves out.
///
/// A phrase is compared after trimming, case and all, and before characters outside of ASCII are dropped.
///
/// ```
/// use florence2_core::BannedPhrases;
///
/// let own = ["sky", "ground"].map(String::from).into();
/// assert!(BannedPhrases::Only(&own).contains("sky"));
/// assert!(BannedPhrases::Florence2.contains("the image"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BannedPhrases<'a> {
    /// [`BANNED_PHRASES`]: microsoft's fixed list, and the one in every published `processor_config.json`.
    #[default]
    Florence2,
    /// None: what transformers does where `processor_config.json` has no list.
    None,
    /// A list of one's own (`post_processor_config.phrase_grounding.banned_grounding_tokens`).
    Only(&'a BTreeSet<String>),
}

impl BannedPhrases<'_> {
    /// Whether it holds the phrase.
    #[must_use]
    pub fn contains(&self, phrase: &str) -> bool {
        match self {
            Self::Florence2 => {
                BANNED_PHRASES.binary_search_by_key(&(phrase.len(), phrase), by_length).is_ok()
            }
            Self::None => false,
            Self::Only(phrases) => phrases.contains(phrase),
        }
    }
}

/// Most phrases differ in length from those that they are compared with.
fn by_length<'a>(phrase: &&'a str) -> (usize, &'a str) {
    (phrase.len(), phrase)
}

/// The 72 of the published checkpoints, the shortest first, and in order where they are of a length.
#[rustfmt::skip]
pub const BANNED_PHRASES: [&str; 72] = [
    "I", "a", "an", "he", "it", "me", "us", "we", "all", "any", "few", "her", "him", "his", "its", "one",
    "our", "she", "the", "who", "you", "each", "hers", "lots", "many", "mine", "none", "ours", "some",
    "that", "them", "they", "this", "what", "whom", "your", "a set", "image", "their", "these", "those",
    "which", "whose", "yours", "anyone", "images", "itself", "myself", "nobody", "theirs", "a group",
    "another", "anybody", "herself", "himself", "oneself", "several", "someone", "anything", "everyone",
    "somebody", "yourself", "everybody", "ourselves", "something", "the image", "each other",
    "everything", "themselves", "yourselves", "one another", "other objects",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_has_no_twins() {
        assert!(BANNED_PHRASES.is_sorted_by(|a, b| by_length(a) < by_length(b)));
    }

    #[test]
    fn phrases_are_compared_letter_for_letter() {
        for phrase in BANNED_PHRASES {
            assert!(BannedPhrases::Florence2.contains(phrase));
            assert!(!BannedPhrases::None.contains(phrase));
        }
        for phrase in ["", "The image", "the image.", " it", "i"] {
            assert!(!BannedPhrases::Florence2.contains(phrase), "{phrase}");
        }
        let sky = BTreeSet::from(["sky".into()]);
        let own = BannedPhrases::Only(&sky);
        assert!(own.contains("sky") && !own.contains("it"));
    }
}

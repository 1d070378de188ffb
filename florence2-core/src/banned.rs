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
            Self::Florence2 => BANNED_PHRASES.binary_search(&phrase).is_ok(),
            Self::None => false,
            Self::Only(phrases) => phrases.contains(phrase),
        }
    }
}

/// The 72 of the published checkpoints, sorted.
#[rustfmt::skip]
pub const BANNED_PHRASES: [&str; 72] = [
    "I", "a", "a group", "a set", "all", "an", "another", "any", "anybody", "anyone", "anything", "each",
    "each other", "everybody", "everyone", "everything", "few", "he", "her", "hers", "herself", "him",
    "himself", "his", "image", "images", "it", "its", "itself", "lots", "many", "me", "mine", "myself",
    "nobody", "none", "one", "one another", "oneself", "other objects", "our", "ours", "ourselves",
    "several", "she", "some", "somebody", "someone", "something", "that", "the", "the image", "their",
    "theirs", "them", "themselves", "these", "they", "this", "those", "us", "we", "what", "which", "who",
    "whom", "whose", "you", "your", "yours", "yourself", "yourselves",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_has_no_twins() {
        assert!(BANNED_PHRASES.windows(2).all(|pair| pair[0] < pair[1]));
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

//! Which tokens would repeat an n-gram.

use alloc::vec::Vec;

/// For each place of a growing sequence, how much of what ends there is what the whole sequence ends with.
///
/// A token is banned where it followed, earlier on, the `n - 1` tokens that the sequence ends with now. That place is one
/// with a match of at least `n - 1`. Kept so, a step costs one comparison for each earlier token, whatever `n` is and
/// however much the sequence repeats itself.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// `matches[i]`: the longest common suffix of the sequence and of its first `i + 1` tokens, in tokens.
    matches: Vec<u32>,
}

impl Repeats {
    pub(crate) fn clone_from(&mut self, other: &Self) {
        self.matches.clone_from(&other.matches);
    }

    /// Takes in the last of `tokens`, after each before it. For 1-grams it need not.
    pub(crate) fn push(&mut self, tokens: &[u32]) {
        let Some((&last, earlier)) = tokens.split_last() else { return };
        let mut before = 0;
        self.matches.resize(earlier.len(), 0);
        for (matched, &token) in self.matches.iter_mut().zip(earlier) {
            let next = if token == last { before + 1 } else { 0 };
            before = core::mem::replace(matched, next);
        }
    }

    /// The tokens after which `tokens` would end with an `n`-gram that it has already; some more than once.
    pub(crate) fn banned<'a>(&'a self, tokens: &'a [u32], n: usize) -> impl Iterator<Item = u32> + 'a {
        // Every token is a 1-gram, the first too, which follows nothing.
        let all = if n == 1 { tokens } else { &[] };
        let followers = self.matches.iter().zip(tokens.iter().skip(1));
        let repeated = followers.filter(move |&(&matched, _)| n > 1 && matched as usize >= n - 1);
        all.iter().chain(repeated.map(|(_, follower)| follower)).copied()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::*;

    /// The definition: every earlier window of `n` whose beginning is the end of the sequence.
    fn by_definition(tokens: &[u32], n: usize) -> BTreeSet<u32> {
        if n == 0 || tokens.len() + 1 < n {
            return BTreeSet::new();
        }
        let end = &tokens[tokens.len() + 1 - n..];
        tokens.windows(n).filter(|window| window[..n - 1] == *end).map(|window| window[n - 1]).collect()
    }

    #[test]
    fn bans_are_those_of_the_definition() {
        let mut state = 5u64;
        let mut seen = 0;
        for letters in 1..5 {
            for _ in 0..40 {
                let (mut tokens, mut repeats) = (Vec::new(), Repeats::default());
                for _ in 0..40 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    tokens.push((state >> 33) as u32 % letters);
                    repeats.push(&tokens);
                    for n in [0, 1, 2, 3, 4, 7, 39, 40, 41, usize::MAX] {
                        let repeats = if n == 1 { &Repeats::default() } else { &repeats };
                        let banned: BTreeSet<u32> = repeats.banned(&tokens, n).collect();
                        assert_eq!(banned, by_definition(&tokens, n), "{tokens:?} {n}");
                        seen += banned.len();
                    }
                }
            }
        }
        assert!(seen > 10_000, "{seen}");
    }
}

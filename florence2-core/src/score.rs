//! Which pieces of the answer a shape or a label came from, and how probable they were.

/// The piece that a character came from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tag {
    /// Counted from 1; 0 where the text came without log-probabilities.
    piece: u32,
    log_prob: f32,
}

impl Tag {
    /// Text without log-probabilities.
    pub(crate) const NONE: Self = Self { piece: 0, log_prob: 0.0 };

    /// What is no log-probability is held at the nearest one, so that a score lies within 0 and 1.
    pub(crate) fn new(piece: u32, log_prob: f32) -> Self {
        let log_prob = if log_prob.is_nan() { f32::NEG_INFINITY } else { log_prob.min(0.0) };
        Self { piece, log_prob }
    }
}

/// The pieces that a stretch of text came from, each counted once.
///
/// Kept as the first piece and the rest, so that two neighbouring stretches which share a piece can be joined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    first: Tag,
    rest: f64,
    count: u32,
    last: u32,
}

impl Tally {
    pub(crate) fn of(tag: Tag) -> Self {
        let mut tally = Self::default();
        tally.add(tag);
        tally
    }

    /// Counts a piece that is not before any counted one.
    pub(crate) fn add(&mut self, tag: Tag) {
        if tag.piece == 0 || (self.count > 0 && self.last == tag.piece) {
            return;
        }
        if self.count == 0 {
            self.first = tag;
        } else {
            self.rest += f64::from(tag.log_prob);
        }
        self.count += 1;
        self.last = tag.piece;
    }

    /// Counts the pieces of a later stretch.
    pub(crate) fn join(&mut self, later: &Self) {
        if later.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *later;
            return;
        }
        self.add(later.first);
        self.rest += later.rest;
        self.count += later.count - 1;
        self.last = later.last;
    }

    /// `exp` of the mean log-probability; `None` if no piece is counted.
    pub(crate) fn score(&self) -> Option<f32> {
        if self.count == 0 {
            return None;
        }
        let sum = f64::from(self.first.log_prob) + self.rest;
        Some(libm::exp(sum / f64::from(self.count)) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_two_stretches_share_counts_once() {
        let tags = [(1, -1.0), (2, -2.0), (3, f32::NEG_INFINITY), (4, -4.0)].map(|(at, lp)| Tag::new(at, lp));
        let over = |tags: &[Tag]| {
            tags.iter().fold(Tally::default(), |mut tally, &tag| {
                tally.add(tag);
                tally
            })
        };
        for cut in 0..2 {
            let mut joined = over(&tags[..=cut]);
            joined.join(&over(&tags[cut..2]));
            assert_eq!(joined.count, 2);
            assert_eq!(joined.score(), over(&tags[..2]).score());
        }
        assert_eq!(over(&tags).score(), Some(0.0));
        assert_eq!(Tally::default().score(), None);
        assert_eq!(Tally::of(Tag::NONE).score(), None);
    }
}

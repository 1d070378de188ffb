//! The search: logits in, and out the tokens to feed and the rows to keep.
//!
//! It follows `_sample` and `_beam_search` of transformers' `generation/utils.py`, in `f32` and in their order, one ask
//! like another: an ask that is done leaves the batch, where the reference goes on to compute its rows.
//!
//! What a network computes is rows, and a row is a history of tokens. A *run* is what a row is computed for: the greedy
//! sequence, one of the samples, or a beam. Runs whose histories are equal share a row. That is so at the beginning (the
//! reference starts with one live beam and the rest at a score of -1e9), and still after a forced `<s>`.

use alloc::vec::Vec;
use core::ops::Range;

use super::config::{ConfigError, EarlyStopping, Finish, Generated, GenerationConfig, Progress, Sampling};
use super::logits::{Candidate, Softmax, take_best};
use super::repeats::Repeats;
use super::sampling::Weights;
use crate::model::ModelSpec;

/// What the reference takes for minus infinity: beams that are not live, places for finished beams that are free.
/// Real minus infinity, the score of a banned token, ranks under it.
const DEAD: f32 = -1.0e9;

/// A search for the answers to a batch of asks, one step at a time.
///
/// [`generate`](crate::generate()) is the loop around it. Who needs another loop (a scheduler, an asynchronous device)
/// writes:
///
/// ```
/// # use florence2_core::{GenerationConfig, ModelSpec, Search, SpecialIds};
/// # let spec = ModelSpec { image_width: 1, image_height: 1, image_tokens: 1, vocabulary_size: 8,
/// #     max_prompt_tokens: 3, max_positions: 4, special: SpecialIds::FLORENCE2 };
/// let mut search = Search::new(&spec, 1, &GenerationConfig::default())?;
/// while let Some(step) = search.step() {
///     if let Some(rows) = step.select {
///         // model.select_rows(&mut state, rows)?;
/// #       let _ = rows;
///     }
///     let mut logits = vec![0.0; step.tokens.len() * spec.vocabulary_size];
///     // model.decode_step(&mut state, step.tokens, &mut logits)?;
///     search.advance(&mut logits)?;
///     for progress in search.progress() {
///         println!("{:?}", progress.tokens);
///     }
/// }
/// let answers = search.finish();
/// # assert_eq!(answers[0][0].tokens[0], spec.special.bos);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Search {
    plan: Plan,
    asks: Vec<AskState>,
    /// New tokens of every running row.
    made: usize,
    /// The rows of the state that the next step is taken in.
    rows: Rows,
    /// Those of the step before; their buffers are used again.
    spare: Rows,
    /// Whether `rows` are other rows than the state has.
    moved: bool,
    updates: Vec<Update>,
    scratch: Scratch,
}

/// What the network is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The rows that the state is to keep, for [`select_rows`](crate::VisionSeq2Seq::select_rows); `None` if they stay
    /// as they are.
    pub select: Option<&'a [usize]>,
    /// The token to feed to each row, for [`decode_step`](crate::VisionSeq2Seq::decode_step).
    pub tokens: &'a [u32],
}

/// Logits that no search can go on from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// A number of logits that is not `rows × vocabulary_size`.
    #[error("{expected} logits were due, a vocabulary for each row, but {found} came")]
    LogitsLength {
        /// Rows times vocabulary; 0 if the search is over.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// NaN or infinite, or minus infinity for every token of a row.
    #[error(
        "the network gave {logit} for token {token} at step {step} of ask {ask}, which is no logit; its weights may be \
         damaged, or its numbers overflow in this precision (try f32)"
    )]
    NotALogit {
        /// Index of the ask.
        ask: usize,
        /// New tokens before this one.
        step: usize,
        /// The token whose logit it is; 0 where all of a row are minus infinity.
        token: u32,
        /// What it was.
        logit: f32,
    },
    /// Every token was banned, and nothing had been finished.
    #[error("no token is left that ask {ask} could go on with at step {step}; no_repeat_ngram bans them all")]
    NoTokenLeft {
        /// Index of the ask.
        ask: usize,
        /// New tokens before this one.
        step: usize,
    },
}

/// A configuration that has been checked, and what it needs of the network's description.
#[derive(Debug)]
struct Plan {
    config: GenerationConfig,
    vocabulary: usize,
    max_new_tokens: usize,
    bos: u32,
    eos: u32,
}

impl Plan {
    /// The only token that can come next, after so many new ones.
    fn forced(&self, made: usize) -> Option<u32> {
        if self.config.force_eos && made + 1 == self.max_new_tokens {
            Some(self.eos)
        } else {
            (self.config.force_bos && made == 0).then_some(self.bos)
        }
    }

    /// What the sum of log-probabilities of so many new tokens is divided by.
    fn penalty(&self, made: usize) -> f32 {
        libm::pow(made as f64, f64::from(self.config.length_penalty)) as f32
    }

    /// Why a run of so many new tokens ends with this one, if it does.
    fn ends(&self, made: usize, token: u32) -> Option<Finish> {
        let full = made == self.max_new_tokens;
        if full && (self.config.force_eos || token != self.eos) {
            Some(Finish::Length)
        } else {
            (token == self.eos).then_some(Finish::EndOfSequence)
        }
    }
}

#[derive(Debug, Default)]
struct AskState {
    /// Its rows among those of the batch.
    rows: Range<usize>,
    /// Beams with the best first, samples in order. Empty once the ask is done.
    runs: Vec<Run>,
    /// The best finished beams, the best first; as many places as beams.
    pool: Vec<Place>,
    /// What is returned, by sequence.
    results: Vec<Option<Generated>>,
    /// Of each sequence that is observed.
    reports: Vec<Report>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    row: usize,
    /// Log-probabilities, added up.
    score: f32,
    sequence: usize,
}

/// A place for a finished beam. A free one has a score, too, against which beams have to win it.
#[derive(Debug)]
struct Place {
    score: f32,
    beam: Option<Generated>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Report {
    /// Tokens that were reported.
    tokens: usize,
    /// Whether that was all.
    closed: bool,
}

/// Tokens that became certain in the last step.
#[derive(Debug)]
struct Update {
    ask: usize,
    sequence: usize,
    source: Source,
    tokens: Range<usize>,
}

/// Where they can be read.
#[derive(Clone, Copy, Debug)]
enum Source {
    Row(usize),
    Result,
    /// The first place of the pool.
    Pool,
}

/// A history, the start token included.
#[derive(Debug, Default)]
struct Row {
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    repeats: Repeats,
}

/// The rows of a state, and where each came from: row `select[i]` of the state before, and `tokens[i]` after it.
#[derive(Debug, Default)]
struct Rows {
    /// As many as `tokens`, and then some that were used before.
    rows: Vec<Row>,
    select: Vec<usize>,
    tokens: Vec<u32>,
}

impl Rows {
    fn clear(&mut self) {
        self.select.clear();
        self.tokens.clear();
    }

    fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Row `parent` of `before`, and a token more; or the row that is this already, among those from `start` on.
    fn add(
        &mut self,
        start: usize,
        before: &Self,
        parent: usize,
        token: u32,
        log_prob: f32,
        ngram: usize,
    ) -> usize {
        let same = |at: &usize| self.select[*at] == parent && self.tokens[*at] == token;
        if let Some(at) = (start..self.len()).find(same) {
            return at;
        }
        let at = self.len();
        if at == self.rows.len() {
            self.rows.push(Row::default());
        }
        let (row, parent_row) = (&mut self.rows[at], &before.rows[parent]);
        row.tokens.clone_from(&parent_row.tokens);
        row.log_probs.clone_from(&parent_row.log_probs);
        row.tokens.push(token);
        row.log_probs.push(log_prob);
        if ngram > 1 {
            row.repeats.clone_from(&parent_row.repeats);
            row.repeats.push(&row.tokens);
        }
        self.select.push(parent);
        self.tokens.push(token);
        at
    }
}

impl Row {
    fn generated(&self, score: f32, finish: Finish) -> Generated {
        Generated { tokens: self.tokens[1..].to_vec(), log_probs: self.log_probs.clone(), score, finish }
    }

    fn ended(&self, token: u32, log_prob: f32, score: f32, finish: Finish) -> Generated {
        let mut generated = self.generated(score, finish);
        generated.tokens.push(token);
        generated.log_probs.push(log_prob);
        generated
    }
}

/// Buffers that each step uses again.
#[derive(Debug, Default)]
struct Scratch {
    /// Of each row.
    softmaxes: Vec<Softmax>,
    best: Vec<Candidate>,
    next: Vec<Candidate>,
    weights: Weights,
}

/// What one step makes of one ask's logits.
struct Scores<'a> {
    /// Of all rows, banned tokens at minus infinity. `None` if the token is forced.
    logits: Option<&'a [f32]>,
    softmaxes: &'a [Softmax],
    vocabulary: usize,
}

impl Scores<'_> {
    fn row(&self, row: usize) -> &[f32] {
        self.logits.map_or(&[], |logits| &logits[row * self.vocabulary..][..self.vocabulary])
    }

    /// As the reference scores it: 0 for a forced token.
    fn log_prob(&self, row: usize, token: u32) -> f32 {
        if self.logits.is_none() { 0.0 } else { self.softmaxes[row].log_prob(self.row(row)[token as usize]) }
    }
}

impl Search {
    /// Begins with one row for each ask.
    ///
    /// # Errors
    ///
    /// If the [configuration](GenerationConfig::validate) cannot be followed.
    pub fn new(spec: &ModelSpec, asks: usize, config: &GenerationConfig) -> Result<Self, ConfigError> {
        config.validate(spec)?;
        let plan = Plan {
            config: config.clone(),
            vocabulary: spec.vocabulary_size,
            max_new_tokens: config.max_new_tokens(spec),
            bos: spec.special.bos,
            eos: spec.special.eos,
        };
        let start = spec.special.decoder_start;
        let mut rows = Rows::default();
        for _ in 0..asks {
            let mut row = Row::default();
            row.tokens.push(start);
            row.repeats.push(&row.tokens);
            rows.rows.push(row);
            rows.tokens.push(start);
        }
        let asks = (0..asks).map(|row| AskState::new(row, config)).collect();
        Ok(Self {
            plan,
            asks,
            made: 0,
            rows,
            spare: Rows::default(),
            moved: false,
            updates: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// What the network is to do next; `None` if every ask is done. It stays the same until [`advance`](Self::advance).
    pub fn step(&self) -> Option<Step<'_>> {
        let Rows { select, tokens, .. } = &self.rows;
        (!tokens.is_empty()).then(|| Step { select: self.moved.then_some(select), tokens })
    }

    /// Takes in the logits of a step, `rows × vocabulary_size`, row after row, and overwrites some of them.
    ///
    /// # Errors
    ///
    /// If logits cannot be searched. Unless it is only their number that is wrong, the search has then ended:
    /// [`finish`](Self::finish) gives the sequences that were complete.
    pub fn advance(&mut self, logits: &mut [f32]) -> Result<(), SearchError> {
        let expected = self.rows.len() * self.plan.vocabulary;
        if self.rows.len() == 0 || logits.len() != expected {
            return Err(SearchError::LogitsLength { expected, found: logits.len() });
        }
        let result = self.advance_rows(logits);
        if result.is_err() {
            // What is running is between two steps, and of no use.
            self.rows.clear();
            self.updates.clear();
            for ask in &mut self.asks {
                ask.runs.clear();
                ask.rows = 0..0;
            }
        }
        result
    }

    fn advance_rows(&mut self, logits: &mut [f32]) -> Result<(), SearchError> {
        let before = self.rows.len();
        match self.plan.forced(self.made) {
            Some(token) => self.take(Some(token), None)?,
            None => {
                self.score(logits)?;
                self.take(None, Some(logits))?;
            }
        }
        let stayed = self.rows.len() == before && self.rows.select.iter().copied().eq(0..before);
        self.moved = !stayed;
        // A forced end needs no logits.
        if self.rows.len() > 0
            && self.made + 1 == self.plan.max_new_tokens
            && let Some(token) = self.plan.forced(self.made)
        {
            self.take(Some(token), None)?;
        }
        self.update();
        Ok(())
    }

    /// Of each ask that was running in the last step, and of each of its samples, the tokens that became certain in it.
    ///
    /// Of a beam search that is what its beams agree on, those that can still become the best one. At its end it is the
    /// rest of the answer.
    pub fn progress(&self) -> impl Iterator<Item = Progress<'_>> {
        self.updates.iter().map(|update| {
            let ask = &self.asks[update.ask];
            let generated = match update.source {
                Source::Row(row) => {
                    let row = &self.rows.rows[row];
                    Some((&row.tokens[1..], &row.log_probs[..]))
                }
                Source::Result => ask.results[update.sequence].as_ref().map(Generated::parts),
                Source::Pool => ask.pool.first().and_then(|place| place.beam.as_ref()).map(Generated::parts),
            };
            let (tokens, log_probs) = generated.unwrap_or_default();
            let range = update.tokens.clone();
            Progress {
                ask: update.ask,
                sequence: update.sequence,
                tokens: &tokens[range.clone()],
                log_probs: &log_probs[range],
            }
        })
    }

    /// The sequences of each ask: the best first, samples in order.
    ///
    /// What is still running is cancelled, and comes back with what it has; of beams, the best ones of the running and
    /// the finished. A beam search gives fewer sequences than were asked for only if so few are possible.
    pub fn finish(mut self) -> Vec<Vec<Generated>> {
        let made = self.made;
        let penalty = if made == 0 { 1.0 } else { self.plan.penalty(made) };
        for ask in &mut self.asks {
            let runs = core::mem::take(&mut ask.runs);
            if self.plan.config.beams == 1 {
                for run in runs {
                    let row = &self.rows.rows[run.row];
                    ask.results[run.sequence] = Some(row.generated(run.score / penalty, Finish::Cancelled));
                }
            } else if !runs.is_empty() {
                let mut best: Vec<Generated> = ask.pool.drain(..).filter_map(|place| place.beam).collect();
                // Of runs in one row the first is the best.
                for row in ask.rows.clone() {
                    let Some(run) = runs.iter().find(|run| run.row == row) else { continue };
                    best.push(self.rows.rows[row].generated(run.score / penalty, Finish::Cancelled));
                }
                best.sort_by(|a, b| b.score.total_cmp(&a.score));
                best.truncate(ask.results.len());
                ask.results = best.into_iter().map(Some).collect();
            }
        }
        self.asks.into_iter().map(|ask| ask.results.into_iter().flatten().collect()).collect()
    }

    /// What each row's logits are divided by, and which tokens are not to be taken.
    fn score(&mut self, logits: &mut [f32]) -> Result<(), SearchError> {
        let Self { plan, asks, rows, made, scratch, .. } = self;
        scratch.softmaxes.clear();
        for (ask, state) in asks.iter().enumerate() {
            for row in state.rows.clone() {
                let logits = &mut logits[row * plan.vocabulary..][..plan.vocabulary];
                let softmax = Softmax::of(logits).map_err(|bad| SearchError::NotALogit {
                    ask,
                    step: *made,
                    token: bad.token as u32,
                    logit: bad.logit,
                })?;
                scratch.softmaxes.push(softmax);
                let row = &rows.rows[row];
                for token in row.repeats.banned(&row.tokens, plan.config.no_repeat_ngram) {
                    logits[token as usize] = f32::NEG_INFINITY;
                }
                if *made < plan.config.min_new_tokens {
                    logits[plan.eos as usize] = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    /// Gives each run its next token.
    fn take(&mut self, forced: Option<u32>, logits: Option<&[f32]>) -> Result<(), SearchError> {
        let Self { plan, asks, made, rows, spare, scratch, .. } = self;
        core::mem::swap(rows, spare);
        rows.clear();
        let Scratch { softmaxes, best, next, weights } = scratch;
        let scores = Scores { logits, softmaxes, vocabulary: plan.vocabulary };
        let mut step = Taking { plan, made: *made, forced, scores, before: spare, rows, best, next, weights };
        for (index, ask) in asks.iter_mut().enumerate() {
            let start = step.rows.len();
            if !ask.runs.is_empty() {
                let taken = if plan.config.beams == 1 { step.draw(ask) } else { step.beams(ask) };
                taken.map_err(|NoTokenLeft| SearchError::NoTokenLeft { ask: index, step: *made })?;
            }
            ask.rows = start..step.rows.len();
        }
        *made += 1;
        Ok(())
    }

    fn update(&mut self) {
        let Self { plan, asks, made, rows, updates, .. } = self;
        updates.clear();
        for (index, ask) in asks.iter_mut().enumerate() {
            for sequence in 0..ask.reports.len() {
                let report = ask.reports[sequence];
                if report.closed {
                    continue;
                }
                let (source, settled) = match (&ask.results[sequence], plan.config.beams) {
                    (Some(result), _) => (Source::Result, result.tokens.len()),
                    (None, 1) => match ask.runs.iter().find(|run| run.sequence == sequence) {
                        Some(run) => (Source::Row(run.row), *made),
                        None => continue,
                    },
                    (None, _) => ask.settled(plan, *made, rows),
                };
                let tokens = report.tokens..settled.max(report.tokens);
                ask.reports[sequence] =
                    Report { tokens: tokens.end, closed: matches!(source, Source::Result) };
                updates.push(Update { ask: index, sequence, source, tokens });
            }
        }
    }
}

impl AskState {
    fn new(row: usize, config: &GenerationConfig) -> Self {
        let beams = config.beams > 1;
        let runs = if beams { config.beams } else { config.sequences };
        let run = |at| Run { row, score: if beams && at > 0 { DEAD } else { 0.0 }, sequence: at };
        let place = |_| Place { score: DEAD, beam: None };
        Self {
            rows: row..row + 1,
            runs: (0..runs).map(run).collect(),
            pool: if beams { (0..runs).map(place).collect() } else { Vec::new() },
            results: (0..config.sequences).map(|_| None).collect(),
            reports: alloc::vec![Report::default(); if beams { 1 } else { runs }],
        }
    }

    /// What all beams begin with that can still become the best: the best finished one, and those running ones that can
    /// beat it at any length.
    fn settled(&self, plan: &Plan, made: usize, rows: &Rows) -> (Source, usize) {
        let best = self.pool.first().filter(|place| place.beam.is_some());
        // A sum of log-probabilities only falls, so that its best length is the one with the least share for each.
        let length = if plan.config.length_penalty > 0.0 { plan.max_new_tokens } else { made };
        let penalty = plan.penalty(length);
        let can_win = |run: &&Run| {
            let score = run.score / penalty;
            score > f32::NEG_INFINITY && best.is_none_or(|best| score > best.score)
        };
        let mut contenders = self.runs.iter().filter(can_win).map(|run| run.row);
        let finished = best.and_then(|best| best.beam.as_ref()).map(|beam| &beam.tokens[..]);
        let (source, all) = match (contenders.next(), finished) {
            (Some(row), _) => (Source::Row(row), &rows.rows[row].tokens[1..]),
            (None, Some(finished)) => return (Source::Pool, finished.len()),
            (None, None) => return (Source::Pool, 0),
        };
        let common = |length: usize, other: &[u32]| {
            all[..length].iter().zip(other).take_while(|(a, b)| a == b).count()
        };
        let length = contenders.fold(all.len(), |length, row| common(length, &rows.rows[row].tokens[1..]));
        (source, finished.map_or(length, |finished| common(length, finished)))
    }
}

struct NoTokenLeft;

/// One step on its way through the asks.
struct Taking<'a> {
    plan: &'a Plan,
    /// New tokens before this one.
    made: usize,
    forced: Option<u32>,
    scores: Scores<'a>,
    before: &'a Rows,
    rows: &'a mut Rows,
    best: &'a mut Vec<Candidate>,
    next: &'a mut Vec<Candidate>,
    weights: &'a mut Weights,
}

impl Taking<'_> {
    /// One token for each run: the best one, or a draw.
    fn draw(&mut self, ask: &mut AskState) -> Result<(), NoTokenLeft> {
        let plan = self.plan;
        let start = self.rows.len();
        let mut weighed = None;
        let mut kept = 0;
        for at in 0..ask.runs.len() {
            let Run { row, score, sequence } = ask.runs[at];
            let token = match (self.forced, plan.config.sampling) {
                (Some(token), _) => token,
                (None, None) => {
                    // By the logits themselves: log-probabilities may round two of them to one. If all tokens are
                    // banned it is the first, as in the reference.
                    self.best.clear();
                    take_best(self.best, 1, 0, self.scores.row(row), |logit| logit);
                    self.best[0].token
                }
                (None, Some(sampling)) => {
                    if weighed != Some(row) {
                        self.weights.weigh(self.scores.row(row), &sampling);
                        weighed = Some(row);
                    }
                    self.sample(&sampling, sequence)?
                }
            };
            let log_prob = self.scores.log_prob(row, token);
            let score = score + log_prob;
            let made = self.made + 1;
            if let Some(finish) = plan.ends(made, token) {
                let score = score / plan.penalty(made);
                ask.results[sequence] = Some(self.before.rows[row].ended(token, log_prob, score, finish));
            } else {
                let ngram = plan.config.no_repeat_ngram;
                let row = self.rows.add(start, self.before, row, token, log_prob, ngram);
                ask.runs[kept] = Run { row, score, sequence };
                kept += 1;
            }
        }
        ask.runs.truncate(kept);
        Ok(())
    }

    fn sample(&self, sampling: &Sampling, sequence: usize) -> Result<u32, NoTokenLeft> {
        self.weights.draw(sampling.uniform(sequence, self.made)).ok_or(NoTokenLeft)
    }

    /// The reference's `_beam_search`, one round of its loop for one ask.
    fn beams(&mut self, ask: &mut AskState) -> Result<(), NoTokenLeft> {
        let plan = self.plan;
        let beams = plan.config.beams;
        let made = self.made + 1;

        // Twice as many as beams, so that there are enough to go on with if each beam finds an end.
        self.best.clear();
        for (beam, run) in ask.runs.iter().enumerate() {
            match self.forced {
                // Other tokens have minus infinity, and are not taken before any of these.
                Some(token) => self.best.push(Candidate { score: run.score, beam, token }),
                None => {
                    let softmax = self.scores.softmaxes[run.row];
                    let full = self.best.len() == 2 * beams;
                    if full && self.best[2 * beams - 1].score >= softmax.best() + run.score {
                        continue;
                    }
                    let score = |logit| softmax.log_prob(logit) + run.score;
                    take_best(self.best, 2 * beams, beam, self.scores.row(run.row), score);
                }
            }
        }

        // Those that finish are the last choice to go on with, but still a choice before banned ones.
        self.next.clear();
        for &candidate in &*self.best {
            let end = plan.ends(made, candidate.token).is_some();
            let score = candidate.score + if end { DEAD } else { 0.0 };
            let place = self.next.partition_point(|other| other.score >= score);
            self.next.insert(place, Candidate { score, ..candidate });
        }
        self.next.truncate(beams);

        // To finish, a beam must end and rank among the first.
        let penalty = plan.penalty(made);
        for candidate in self.best.iter().take(beams) {
            let Some(finish) = plan.ends(made, candidate.token) else { continue };
            let score = candidate.score / penalty;
            let place = ask.pool.partition_point(|other| other.score >= score);
            if place < beams {
                let row = ask.runs[candidate.beam].row;
                let log_prob = self.scores.log_prob(row, candidate.token);
                let beam = self.before.rows[row].ended(candidate.token, log_prob, score, finish);
                ask.pool.pop();
                ask.pool.insert(place, Place { score, beam: Some(beam) });
            }
        }

        let length = match plan.config.early_stopping {
            EarlyStopping::WhenCertain if plan.config.length_penalty > 0.0 => plan.max_new_tokens,
            _ => made,
        };
        let can_improve = self.next[0].score / plan.penalty(length) > ask.pool[beams - 1].score;
        let enough = plan.config.early_stopping == EarlyStopping::WhenEnough
            && ask.pool.iter().all(|place| place.beam.is_some());
        if made == plan.max_new_tokens || enough || !can_improve {
            ask.runs.clear();
            let mut finished = ask.pool.drain(..).filter_map(|place| place.beam);
            for result in &mut ask.results {
                *result = finished.next();
            }
            return if ask.results[0].is_some() { Ok(()) } else { Err(NoTokenLeft) };
        }

        let start = self.rows.len();
        self.best.clear();
        for &Candidate { score, beam, token } in &*self.next {
            let parent = ask.runs[beam].row;
            let log_prob = self.scores.log_prob(parent, token);
            let row = self.rows.add(start, self.before, parent, token, log_prob, plan.config.no_repeat_ngram);
            // Not yet into `runs`, which the next beams still come from.
            self.best.push(Candidate { score, beam: row, token });
        }
        for (run, next) in ask.runs.iter_mut().zip(&*self.best) {
            (run.row, run.score) = (next.beam, next.score);
        }
        Ok(())
    }
}

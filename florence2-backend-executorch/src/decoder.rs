//! The decoder: what is kept of an encoded prompt, and steps, in either form.

use std::sync::Arc;

use florence2_core::RequestError;

use crate::error::RunError;
use crate::model::run;
use crate::parts::{Cached, Decoder};
use crate::program::Program;
use crate::tensor::{Floats, Input, Whole};

/// A cache grows by so many entries at a time, so that it is seldom copied. Entries that are not used yet cost a step little.
const BLOCK: usize = 32;

/// An encoded prompt, as steps look at it.
#[derive(Debug)]
pub(crate) struct Encoded {
    mask: Whole,
    seen: Seen,
}

#[derive(Debug)]
enum Seen {
    /// `[1, length, width of the text]`
    Hidden { values: Floats, shape: [usize; 3] },
    /// Keys, and behind them values, of all layers.
    Cross(Vec<Floats>),
}

/// Rows of one ask, which run together where the form can.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    ask: Arc<Encoded>,
    /// Which rows of the batch they are.
    pub(crate) rows: Vec<usize>,
    past: Past,
}

#[derive(Clone, Debug)]
enum Past {
    /// What each row was fed.
    Tokens(Vec<Vec<u32>>),
    Cache(Cache),
}

/// Own keys, and behind them values, of all layers: `[rows][heads][capacity][size]` each.
#[derive(Clone, Debug)]
struct Cache {
    values: Vec<Floats>,
    heads: usize,
    size: usize,
    capacity: usize,
    /// The capacity that is never exceeded.
    positions: usize,
}

impl Decoder {
    /// Prepares what steps look at, of the hidden states of an encoded prompt and its mask of ones.
    pub(crate) fn look_at(
        &self,
        programs: &mut [Program],
        hidden: Floats,
        shape: [usize; 3],
        mask: &[u32],
    ) -> Result<Encoded, RunError> {
        let of = |dtype| Whole::new(dtype, mask);
        Ok(match self {
            Self::Window { mask, .. } => {
                Encoded { mask: of(*mask), seen: Seen::Hidden { values: hidden, shape } }
            }
            Self::Cached(cached) => {
                let Cached { cross, layers, heads, size, length, .. } = cached;
                let (key, value) = ([1, *heads, *size, *length], [1, *heads, *length, *size]);
                let shapes: Vec<&[usize]> =
                    (0..2 * layers).map(|at| if at < *layers { &key[..] } else { &value }).collect();
                let copy = |outputs: &[&[f32]]| outputs.iter().map(|values| Floats::of(values)).collect();
                let values = run(programs, cross, &[Input::floats(&shape, &hidden)], &shapes, copy)?;
                Encoded { mask: of(cached.mask), seen: Seen::Cross(values) }
            }
        })
    }

    /// One row of an ask, which has seen no token.
    pub(crate) fn begin(&self, ask: Encoded, row: usize) -> Group {
        let past = match self {
            Self::Window { .. } => Past::Tokens(vec![Vec::new()]),
            Self::Cached(cached) => Past::Cache(Cache::new(cached)),
        };
        Group { ask: Arc::new(ask), rows: vec![row], past }
    }

    /// Feeds a token to each row of a group, by the tokens of all rows of the batch, and writes their logits.
    pub(crate) fn step(
        &self,
        programs: &mut [Program],
        group: &mut Group,
        position: usize,
        tokens: &[u32],
        pad: u32,
        logits: &mut [f32],
    ) -> Result<(), RunError> {
        let Group { ask, rows, past } = group;
        match (self, &ask.seen, past) {
            (
                Self::Window { method, window, vocabulary, ids, .. },
                Seen::Hidden { values, shape },
                Past::Tokens(past),
            ) => {
                for (&row, past) in rows.iter().zip(past) {
                    past.push(tokens[row]);
                    // What stands behind is not looked at.
                    let mut all = past.clone();
                    all.resize(*window, pad);
                    let all = Whole::new(*ids, &all);
                    let (window_shape, prompt) = ([1, *window], [1, ask.mask.len()]);
                    let inputs = [
                        Input::floats(shape, values),
                        Input::whole(&prompt, &ask.mask),
                        Input::whole(&window_shape, &all),
                    ];
                    let logits = &mut logits[row * vocabulary..][..*vocabulary];
                    let copy = |outputs: &[&[f32]]| {
                        logits.copy_from_slice(&outputs[0][position * vocabulary..][..*vocabulary]);
                    };
                    run(programs, method, &inputs, &[&[1, *window, *vocabulary]], copy)?;
                }
                Ok(())
            }
            (Self::Cached(cached), Seen::Cross(cross), Past::Cache(cache)) => {
                cache.make_room(rows.len(), position);
                let fed: Vec<u32> = rows.iter().map(|&row| tokens[row]).collect();
                cached.step(programs, &ask.mask, cross, cache, position, &fed, |at, given| {
                    let vocabulary = cached.vocabulary;
                    logits[rows[at] * vocabulary..][..vocabulary].copy_from_slice(given);
                })
            }
            // States are told apart by the network that made them, so that this does not happen.
            _ => Err(RequestError::ForeignState.into()),
        }
    }

    /// New groups, of rows of an old one that have seen `position` tokens: their places in the batch, and those in the old
    /// group that they come from.
    pub(crate) fn pick(&self, mut group: Group, picked: &[(usize, usize)], position: usize) -> Vec<Group> {
        let most = match self {
            Self::Window { .. } => usize::MAX,
            Self::Cached(cached) => cached.rows,
        };
        let mut chunks = picked.chunks(most);
        let Some(first) = chunks.next() else { return Vec::new() };
        let others = chunks.map(|chunk| {
            let mut other = group.clone();
            other.seat(chunk, position);
            other
        });
        let mut groups: Vec<Group> = others.collect();
        group.seat(first, position);
        groups.push(group);
        groups
    }
}

impl Group {
    /// Makes it one of these rows. Beams are mostly the same ones again: a row stays where it is, and only one that is
    /// taken a second time is copied, to a place that nobody has taken.
    fn seat(&mut self, picked: &[(usize, usize)], position: usize) {
        let mut seats: Vec<Option<usize>> = vec![None; picked.len()];
        let mut copied = Vec::new();
        for &(row, from) in picked {
            match seats.get_mut(from) {
                Some(seat) if seat.is_none() => *seat = Some(row),
                _ => copied.push((row, from)),
            }
        }
        let count = picked.len().max(self.rows.len());
        self.past.resize(count);
        let mut copied = copied.into_iter();
        for (to, seat) in seats.iter_mut().enumerate().filter(|(_, seat)| seat.is_none()) {
            if let Some((row, from)) = copied.next() {
                *seat = Some(row);
                self.past.copy(from, to, position);
            }
        }
        self.past.resize(picked.len());
        self.rows = seats.into_iter().flatten().collect();
    }
}

impl Past {
    /// Makes it the past of so many rows.
    fn resize(&mut self, rows: usize) {
        match self {
            Self::Tokens(past) => past.resize(rows, Vec::new()),
            Self::Cache(cache) => {
                let row = cache.heads * cache.capacity * cache.size;
                cache.values.iter_mut().for_each(|values| values.resize(rows * row));
            }
        }
    }

    /// Makes one row what another is, which has seen so many tokens.
    fn copy(&mut self, from: usize, to: usize, position: usize) {
        match self {
            Self::Tokens(past) => past[to] = past[from].clone(),
            Self::Cache(Cache { values, heads, size, capacity, .. }) => {
                for values in values {
                    for head in 0..*heads {
                        let [from, to] = [from, to].map(|row| (row * *heads + head) * *capacity * *size);
                        values.copy_within(from..from + position * *size, to);
                    }
                }
            }
        }
    }
}

impl Cached {
    /// Runs a step of one row on zeros.
    pub(crate) fn try_out(&self, programs: &mut [Program]) -> Result<(), RunError> {
        let mask = Whole::new(self.mask, &vec![1; self.prompt]);
        let cross = vec![Floats::zeros(self.heads * self.size * self.length); 2 * self.layers];
        self.step(programs, &mask, &cross, &mut Cache::new(self), 0, &[0], |_, _| ())
    }

    #[expect(clippy::too_many_arguments, reason = "a step has many inputs")]
    fn step(
        &self,
        programs: &mut [Program],
        mask: &Whole,
        cross: &[Floats],
        cache: &mut Cache,
        position: usize,
        tokens: &[u32],
        mut give: impl FnMut(usize, &[f32]),
    ) -> Result<(), RunError> {
        let &Self { layers, heads, size, length, vocabulary, .. } = self;
        let rows = tokens.len();
        let fed = Whole::new(self.tokens, tokens);
        let at = Whole::new(self.position, &[u32::try_from(position).unwrap_or(u32::MAX)]);
        let own = [rows, heads, cache.capacity, size];
        let (key, value) = ([1, heads, size, length], [1, heads, length, size]);
        let (fed_shape, mask_shape) = ([rows, 1], [1, mask.len()]);
        let mut inputs =
            vec![Input::whole(&fed_shape, &fed), Input::whole(&[1], &at), Input::whole(&mask_shape, mask)];
        inputs.extend(cache.values.iter().map(|values| Input::floats(&own, values)));
        let shape = |at| if at < layers { &key } else { &value };
        inputs.extend(cross.iter().enumerate().map(|(at, values)| Input::floats(shape(at), values)));
        let (logits, new) = ([rows, vocabulary], [rows, heads, 1, size]);
        let mut shapes: Vec<&[usize]> = vec![&logits];
        shapes.resize(1 + 2 * layers, &new);
        let new = run(programs, &self.step, &inputs, &shapes, |outputs| {
            for (at, logits) in outputs[0].chunks_exact(vocabulary).enumerate() {
                give(at, logits);
            }
            // They lie where the next run writes, and the cache is still an input.
            outputs[1..].concat()
        })?;
        let capacity = cache.capacity;
        for (values, new) in cache.values.iter_mut().zip(new.chunks_exact(rows * heads * size)) {
            for (of_head, new) in values.chunks_exact_mut(capacity * size).zip(new.chunks_exact(size)) {
                of_head[position * size..][..size].copy_from_slice(new);
            }
        }
        Ok(())
    }
}

impl Cache {
    /// Of one row.
    fn new(&Cached { layers, heads, size, positions, .. }: &Cached) -> Self {
        let capacity = BLOCK.min(positions);
        let values = vec![Floats::zeros(heads * capacity * size); 2 * layers];
        Self { values, heads, size, capacity, positions }
    }

    /// Sees that there is an entry at this position.
    fn make_room(&mut self, rows: usize, position: usize) {
        if position < self.capacity {
            return;
        }
        let (old, size) = (self.capacity * self.size, self.size);
        self.capacity = (self.capacity + BLOCK).min(self.positions);
        for values in &mut self.values {
            let mut longer = Floats::zeros(rows * self.heads * self.capacity * size);
            for (longer, values) in
                longer.chunks_exact_mut(self.capacity * size).zip(values.chunks_exact(old))
            {
                longer[..old].copy_from_slice(values);
            }
            *values = longer;
        }
    }
}

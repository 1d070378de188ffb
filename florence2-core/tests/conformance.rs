//! The scripted network keeps the laws, and each law catches the networks that break it.
#![cfg(feature = "dev")]
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use florence2_core::dev::conformance::{Fixture, check_all, laws};
use florence2_core::dev::scripted::{Script, Scripted, ScriptedError, ScriptedImage, ScriptedState};
use florence2_core::{Ask, ModelSpec, PixelValues, VisionSeq2Seq};

fn pixels() -> Vec<PixelValues> {
    let picture = |grey: u8| PixelValues::new(6, 4, vec![f32::from(grey); 72]).unwrap();
    (0..3).map(picture).collect()
}

fn with_fixture<T>(tolerance: f32, check: impl FnOnce(&Fixture<'_>) -> T) -> T {
    let pixels = pixels();
    let prompts: [&[u32]; 3] = [&[0, 4, 2], &[0, 5, 6, 7, 2], &[8]];
    check(&Fixture {
        pixels: &pixels,
        prompts: &prompts,
        tokens: &[0, 11, 4, 9],
        tolerance,
        use_up_positions: true,
    })
}

#[test]
fn the_scripted_network_keeps_every_law() {
    let mut model = Scripted::small(12, Script::default());
    with_fixture(0.0, |fixture| check_all(&mut model, fixture)).unwrap();
    with_fixture(0.0, |fixture| check_all(&mut &mut model, fixture)).unwrap();
}

#[test]
fn a_fixture_that_shows_nothing_is_refused() {
    let mut model = Scripted::small(12, Script::default());
    with_fixture(0.0, |whole| {
        for fixture in [
            Fixture { pixels: &whole.pixels[..1], ..*whole },
            Fixture { prompts: &whole.prompts[..1], ..*whole },
            Fixture { tokens: &[3, 3, 3], ..*whole },
            Fixture { tokens: &[3, 4], ..*whole },
        ] {
            assert!(check_all(&mut model, &fixture).is_err());
        }
    });
    // A tolerance in which everything is the same.
    assert!(with_fixture(1e9, |fixture| check_all(&mut model, fixture)).is_err());
}

/// A way to break the contract.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    NoPositionsForPrompts,
    EosOutside,
    PictureIgnored,
    PromptIgnored,
    TokensIgnored,
    OnlyLastToken,
    LastTokenIgnored,
    PicturesReversed,
    PicturesMixed,
    PictureDropped,
    PictureMadeOfNothing,
    ImageWorksOnce,
    PaddingShows,
    RowsShareTokens,
    RowsShareImage,
    LastRowUnwritten,
    BatchRounds(f32),
    SelectsNothing,
    SelectsQuestionsOnly,
    SelectsTokensOnly,
    SelectsInOrder,
    RepeatsShareTokens,
    SelectsTokensOfTheFirstStep,
    TokensInTheModel,
    RowsOfTheLastRequest,
    SelectsInEveryState,
    TakesAnyPicture,
    TakesNoAsk,
    TakesEmptyPrompt,
    TakesLongPrompt,
    RefusesLongestPrompt,
    TakesUnknownPromptId,
    TakesFewTokens,
    TakesAnyLogits,
    TakesUnknownToken,
    TakesEmptySelection,
    TakesUnknownRow,
    HarmedByErrors,
    OnePositionLess,
    OnePositionMore,
}

struct Broken {
    inner: Scripted,
    spec: ModelSpec,
    fault: Fault,
    history: Vec<u32>,
    errors: u32,
    /// Whether rows of any state were.
    selected: bool,
}

struct State {
    /// Knows the contract.
    inner: ScriptedState,
    rows: Vec<(ScriptedImage, Vec<u32>, Vec<u32>)>,
    selections: usize,
}

struct Image {
    hash: ScriptedImage,
    uses: core::cell::Cell<u32>,
}

impl Broken {
    fn new(fault: Fault) -> Self {
        let inner = Scripted::small(12, Script::default());
        let mut spec = inner.spec().clone();
        match fault {
            Fault::NoPositionsForPrompts => spec.max_prompt_tokens = 0,
            Fault::EosOutside => spec.special.eos = 12,
            _ => {}
        }
        Self { inner, spec, fault, history: Vec::new(), errors: 0, selected: false }
    }

    /// Passes an error on, unless the fault is not to have it.
    fn checked<T>(
        &mut self,
        result: Result<T, ScriptedError>,
        taken: impl FnOnce() -> T,
    ) -> Result<T, ScriptedError> {
        result.or_else(|error| {
            self.errors += 1;
            let takes = match error {
                ScriptedError::ImageSize { .. } => self.fault == Fault::TakesAnyPicture,
                ScriptedError::NoAsks => self.fault == Fault::TakesNoAsk,
                ScriptedError::EmptyPrompt(_) => self.fault == Fault::TakesEmptyPrompt,
                ScriptedError::LongPrompt { .. } => self.fault == Fault::TakesLongPrompt,
                ScriptedError::UnknownId(_) => {
                    matches!(self.fault, Fault::TakesUnknownPromptId | Fault::TakesUnknownToken)
                }
                ScriptedError::Length { expected, .. } => match self.fault {
                    Fault::TakesFewTokens => expected < 12,
                    Fault::TakesAnyLogits => expected >= 12,
                    _ => false,
                },
                ScriptedError::NoRows => self.fault == Fault::TakesEmptySelection,
                ScriptedError::UnknownRow(_) => self.fault == Fault::TakesUnknownRow,
                ScriptedError::Positions(_) => self.fault == Fault::OnePositionMore,
                _ => false,
            };
            if takes { Ok(taken()) } else { Err(error) }
        })
    }
}

impl VisionSeq2Seq for Broken {
    type Image = Image;
    type State = State;
    type Error = ScriptedError;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<Image>, ScriptedError> {
        let images = self.inner.encode_image(pixels);
        let mut images = self.checked(images, || vec![ScriptedImage(0); pixels.len()])?;
        match self.fault {
            Fault::PictureIgnored => images.fill(ScriptedImage(0)),
            Fault::PicturesReversed => images.reverse(),
            Fault::PicturesMixed if images.len() > 1 => images[1].0 ^= images[0].0,
            Fault::PictureDropped if images.len() > 1 => drop(images.pop()),
            Fault::PictureMadeOfNothing if images.is_empty() => images.push(ScriptedImage(0)),
            _ => {}
        }
        Ok(images.into_iter().map(|hash| Image { hash, uses: 0.into() }).collect())
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, Image>]) -> Result<State, ScriptedError> {
        let plain: Vec<_> =
            asks.iter().map(|ask| Ask { image: &ask.image.hash, prompt: ask.prompt }).collect();
        let unknown = |ask: &Ask<'_, Image>| ask.prompt.iter().any(|&id| id >= 12);
        let inner = if self.fault == Fault::TakesUnknownToken && asks.iter().any(unknown) {
            Err(ScriptedError::Spent)
        } else {
            self.inner.encode_prompt(&plain)
        };
        let mut scripted = self.inner.clone();
        let nothing: [Ask<'_, ScriptedImage>; 1] = [Ask { image: &ScriptedImage(0), prompt: &[1] }];
        let inner = self.checked(inner, || scripted.encode_prompt(&nothing).unwrap())?;
        let longest = asks.iter().map(|ask| ask.prompt.len()).max().unwrap_or_default();
        if self.fault == Fault::RefusesLongestPrompt && longest == 59 {
            return Err(ScriptedError::LongPrompt { ask: 0, tokens: longest, most: 58 });
        }
        let rows = asks
            .iter()
            .map(|ask| {
                let mut image = ask.image.hash;
                let mut prompt = ask.prompt.to_vec();
                match self.fault {
                    Fault::PromptIgnored => prompt.clear(),
                    Fault::PaddingShows => prompt.resize(longest, 1),
                    Fault::RowsShareImage => image = asks[0].image.hash,
                    Fault::ImageWorksOnce => {
                        image.0 ^= u64::from(ask.image.uses.replace(ask.image.uses.get() + 1) > 3);
                    }
                    Fault::HarmedByErrors => image.0 ^= u64::from(self.errors > 0),
                    _ => {}
                }
                (image, prompt, Vec::new())
            })
            .collect();
        let mut state = State { inner, rows, selections: 0 };
        match self.fault {
            Fault::TokensInTheModel => self.history.clear(),
            Fault::RowsOfTheLastRequest => {
                state.rows.iter_mut().for_each(|row| row.2.clone_from(&self.history));
            }
            _ => {}
        }
        Ok(state)
    }

    fn decode_step(
        &mut self,
        state: &mut State,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), ScriptedError> {
        let mut scratch = logits.to_vec();
        let result = self.inner.decode_step(&mut state.inner, tokens, &mut scratch);
        let result = match result {
            Err(ScriptedError::UnknownId(_)) if self.fault == Fault::TakesUnknownPromptId => {
                Err(ScriptedError::Spent)
            }
            other => other,
        };
        self.checked(result, || ())?;
        let batch = state.rows.len();
        let shared = tokens.first().copied().unwrap_or_default();
        for (at, ((image, prompt, history), logits)) in
            state.rows.iter_mut().zip(logits.chunks_mut(12)).enumerate()
        {
            let token = tokens.get(at).copied().unwrap_or_default();
            if self.fault == Fault::SelectsInEveryState && self.selected && state.selections == 0 {
                history.clear();
            }
            history.push(if self.fault == Fault::RowsShareTokens { shared } else { token });
            if self.fault == Fault::OnePositionLess && history.len() == 64 {
                return Err(ScriptedError::Positions(63));
            }
            let seen: Vec<u32> = match self.fault {
                Fault::TokensIgnored => Vec::new(),
                Fault::OnlyLastToken => vec![token],
                Fault::LastTokenIgnored => history[..history.len() - 1].to_vec(),
                Fault::TokensInTheModel => {
                    self.history.push(token);
                    self.history.clone()
                }
                _ => history.clone(),
            };
            if self.fault == Fault::LastRowUnwritten && at + 1 == batch && batch > 1 {
                continue;
            }
            let mut found = self.inner.logits(*image, prompt, &seen);
            if let Fault::BatchRounds(by) = self.fault {
                found.iter_mut().for_each(|logit| *logit += by * (batch > 1) as u8 as f32);
            }
            let length = logits.len();
            logits.copy_from_slice(&found[..length]);
        }
        if self.fault == Fault::RowsOfTheLastRequest {
            self.history = tokens.to_vec();
        }
        Ok(())
    }

    fn select_rows(&mut self, state: &mut State, rows: &[usize]) -> Result<(), ScriptedError> {
        let result = self.inner.select_rows(&mut state.inner, rows);
        self.checked(result, || ())?;
        state.selections += 1;
        let old = state.rows.clone();
        let row = |at: usize| old.get(at).cloned().unwrap_or_else(|| old[0].clone());
        state.rows = rows.iter().map(|&at| row(at)).collect();
        for (at, new) in state.rows.iter_mut().enumerate() {
            match self.fault {
                Fault::SelectsNothing => *new = row(at),
                Fault::SelectsQuestionsOnly => new.2 = row(at).2,
                Fault::SelectsTokensOnly => (new.0, new.1) = (row(at).0, row(at).1),
                Fault::SelectsInOrder => {
                    let mut sorted = rows.to_vec();
                    sorted.sort_unstable();
                    *new = row(sorted[at]);
                }
                // As if a row that is taken twice were one row, fed twice.
                Fault::RepeatsShareTokens if rows[..at].contains(&rows[at]) => new.2.push(0),
                Fault::SelectsTokensOfTheFirstStep if state.selections > 1 => new.2 = row(at).2,
                _ => {}
            }
        }
        self.selected = true;
        Ok(())
    }
}

#[test]
fn a_law_catches_each_broken_network() {
    let depends = "logits depend on picture, prompt and tokens";
    let pictures = "pictures in a batch are as alone";
    let batch = "asks in a batch are as alone";
    let select = "selected rows are what they were";
    let refused = "bad input is refused, and does no harm";
    let positions = "every position can be used, and no more";
    for (fault, law) in [
        (Fault::NoPositionsForPrompts, "the description is sound"),
        (Fault::EosOutside, "the description is sound"),
        (Fault::PictureIgnored, depends),
        (Fault::PromptIgnored, depends),
        (Fault::TokensIgnored, depends),
        (Fault::OnlyLastToken, depends),
        (Fault::LastTokenIgnored, depends),
        (Fault::PicturesReversed, pictures),
        (Fault::PicturesMixed, pictures),
        (Fault::PictureDropped, depends),
        (Fault::PictureDropped, pictures),
        (Fault::PictureMadeOfNothing, pictures),
        (Fault::ImageWorksOnce, "a picture serves many prompts"),
        (Fault::PaddingShows, batch),
        (Fault::RowsShareTokens, batch),
        (Fault::RowsShareImage, batch),
        (Fault::LastRowUnwritten, batch),
        (Fault::BatchRounds(1e-3), batch),
        (Fault::SelectsNothing, select),
        (Fault::SelectsQuestionsOnly, select),
        (Fault::SelectsTokensOnly, select),
        (Fault::SelectsInOrder, select),
        (Fault::RepeatsShareTokens, select),
        (Fault::SelectsTokensOfTheFirstStep, select),
        (Fault::TokensInTheModel, "states do not disturb each other"),
        (Fault::SelectsInEveryState, "states do not disturb each other"),
        (Fault::RowsOfTheLastRequest, "a dropped state leaves nothing behind"),
        (Fault::TakesAnyPicture, refused),
        (Fault::TakesNoAsk, refused),
        (Fault::TakesEmptyPrompt, refused),
        (Fault::TakesLongPrompt, refused),
        (Fault::RefusesLongestPrompt, refused),
        (Fault::TakesUnknownPromptId, refused),
        (Fault::TakesFewTokens, refused),
        (Fault::TakesAnyLogits, refused),
        (Fault::TakesUnknownToken, refused),
        (Fault::TakesEmptySelection, refused),
        (Fault::TakesUnknownRow, refused),
        (Fault::HarmedByErrors, refused),
        (Fault::OnePositionLess, positions),
        (Fault::OnePositionMore, positions),
    ] {
        with_fixture(1e-4, |fixture| {
            let check = laws::<Broken>().into_iter().find(|(name, _)| *name == law).unwrap().1;
            assert_eq!(check(&mut Broken::new(Fault::None), fixture), Ok(()), "{law}");
            let caught = check(&mut Broken::new(fault), fixture);
            assert!(caught.is_err(), "{law:?} does not catch {fault:?}");
            assert!(check_all(&mut Broken::new(fault), fixture).is_err());
        });
    }
    with_fixture(1e-4, |fixture| {
        check_all(&mut Broken::new(Fault::None), fixture).unwrap();
        // What the tolerance allows is no fault.
        check_all(&mut Broken::new(Fault::BatchRounds(1e-5)), fixture).unwrap();
    });
}

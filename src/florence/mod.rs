//! From a picture to an answer.
//!
//! [`Florence2`] holds what a checkpoint's folder has: the network, its tokenizer, and how pictures are prepared for it.
//! A picture is [seen](Florence2::see) once, which is most of the work, and asked any number of prompts.

mod backend;
mod error;
mod output;
mod timed;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use florence2_core::{
    AddedToken, AnswerStream, Ask, Dialect, GenerationConfig, ImageSize, Instance, ModelSpec, ParseOptions,
    PixelValues, Progress, Prompt, SpecialToken, VisionSeq2Seq, generate,
};

use crate::record::banned_phrases;
use crate::{Image, LARGEST_FILE, Preprocessor, Tokenizer};

pub use backend::{Backend, BackendFromBytes};
pub use error::{Error, Mismatch};
use output::Rules;
pub use output::{Output, OutputToken, Sequence, Timings};
use timed::Timed;

/// A checkpoint, ready to be shown pictures and asked about them.
///
/// A picture is [seen](Self::see) once, which is most of the work, and asked any number of prompts. Generic over the
/// network, which a [`Backend`] makes; any [`VisionSeq2Seq`] of one's own does, too ([`from_parts`](Self::from_parts)).
///
/// # What of a checkpoint's files is used
///
/// | file | |
/// |---|---|
/// | `config.json`, the weights | by the [`Backend`] |
/// | `tokenizer.json`, or `vocab.json`, `merges.txt`, `added_tokens.json` | [`Tokenizer`] |
/// | `preprocessor_config.json` | [`Preprocessor`] |
/// | `processor_config.json` | if it is there: the banned phrases of transformers' dialect |
/// | `generation_config.json` | no: see below |
///
/// `generation_config.json` is absent from many fine-tunes and wrong in others (it may say that answers begin with `</s>`
/// and end with `<pad>`), and the two libraries that read it do not agree on what holds without it. The network's own
/// ids are those of `config.json`, and everything else is [`GenerationConfig`], whose default is what the
/// published `config.json` asks for.
pub struct Florence2<M> {
    model: M,
    words: Words,
    preprocessor: Preprocessor,
}

/// What turns a prompt into ids, and ids into an answer.
struct Words {
    tokenizer: Tokenizer,
    rules: Rules,
}

impl<M: VisionSeq2Seq> Florence2<M> {
    /// Loads a checkpoint from its folder.
    ///
    /// # Errors
    ///
    /// If a file is missing, cannot be read or is not what it should be, if the files do not belong together, or if the
    /// backend cannot load the network.
    pub fn load<B: Backend<Model = M>>(folder: impl AsRef<Path>, backend: B) -> Result<Self, Error> {
        let folder = folder.as_ref();
        match fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(Error::NotAFolder(folder.to_owned())),
            Err(source) => return Err(Error::Read { path: folder.to_owned(), source }),
        }
        // The processors' files come first: what is wrong with them is told at once.
        let path = folder.join("preprocessor_config.json");
        let json = match read_if_there(&path)? {
            Some(json) => json,
            None => return Err(Error::NoPreprocessor(folder.to_owned())),
        };
        let preprocessor =
            Preprocessor::from_json(&json).map_err(|source| Error::Preprocessor { path, source })?;
        let path = folder.join("processor_config.json");
        let banned = match read_if_there(&path)? {
            Some(json) => {
                Some(banned_phrases(&json).map_err(|source| Error::ProcessorConfig { path, source })?)
            }
            None => None,
        };
        // The tokenizer takes about half as long as the weights of a base checkpoint, so that it is read meanwhile.
        let (tokenizer, model) = thread::scope(|scope| {
            let read = || Tokenizer::from_folder(folder);
            match thread::Builder::new().spawn_scoped(scope, read) {
                Ok(reading) => {
                    let model = backend.load(folder);
                    (reading.join().unwrap_or_else(|panic| resume_unwind(panic)), model)
                }
                // Where there are no threads: one after the other.
                Err(_) => (read(), backend.load(folder)),
            }
        });
        let (tokenizer, model) = (tokenizer?, model.map_err(|error| Error::Load(Box::new(error)))?);
        Self::from_parts(model, tokenizer, preprocessor).map(|florence| florence.with_banned(banned))
    }

    /// The tiny checkpoint that comes with this crate. It was trained on drawn scenes, and knows nothing else: coloured
    /// circles, squares, triangles and stars, with a sign or without.
    ///
    /// # Errors
    ///
    /// If the backend cannot load the network, as where its device is not there.
    #[cfg(feature = "demo")]
    pub fn demo<B: BackendFromBytes<Model = M>>(backend: B) -> Result<Self, Error> {
        use crate::demo;
        let tokenizer = Tokenizer::from_json(demo::TOKENIZER)?;
        let path = |name: &str| Path::new("demo").join(name);
        let preprocessor = Preprocessor::from_json(demo::PREPROCESSOR_CONFIG)
            .map_err(|source| Error::Preprocessor { path: path("preprocessor_config.json"), source })?;
        let banned = banned_phrases(demo::PROCESSOR_CONFIG)
            .map_err(|source| Error::ProcessorConfig { path: path("processor_config.json"), source })?;
        let model = backend
            .load_bytes(demo::CONFIG, demo::WEIGHTS, demo::IMAGE_SIZE)
            .map_err(|error| Error::Load(Box::new(error)))?;
        Self::from_parts(model, tokenizer, preprocessor).map(|florence| florence.with_banned(Some(banned)))
    }

    /// From a network, a tokenizer and a preprocessor that were loaded apart.
    ///
    /// # Errors
    ///
    /// If they do not belong together: pictures of another size than the network takes, ids that it has no rows for,
    /// or other special ids.
    pub fn from_parts(model: M, tokenizer: Tokenizer, preprocessor: Preprocessor) -> Result<Self, Error> {
        let (spec, layout) = (model.spec(), tokenizer.layout());
        let network = (spec.image_width, spec.image_height);
        // Without a size pictures keep their own, which each has to have right.
        if let Some(preprocessor) = preprocessor.size().map(sides).filter(|&sides| sides != network) {
            return Err(Mismatch::ImageSize { preprocessor, network }.into());
        }
        for (token, network) in [
            (SpecialToken::Bos, spec.special.bos),
            (SpecialToken::Pad, spec.special.pad),
            (SpecialToken::Eos, spec.special.eos),
        ] {
            let tokenizer = layout.special_id(token);
            if tokenizer != network {
                return Err(Mismatch::SpecialId { token, tokenizer, network }.into());
            }
        }
        let highest = AddedToken::all().map(|token| layout.added_id(token)).max().unwrap_or_default();
        if highest as usize >= spec.vocabulary_size {
            return Err(Mismatch::Vocabulary { tokenizer: highest, network: spec.vocabulary_size }.into());
        }
        Ok(Self { model, words: Words { tokenizer, rules: Rules::default() }, preprocessor })
    }

    /// Sets whose rules are followed: how a prompt's input is trimmed, and how answers are read.
    ///
    /// In transformers' dialect phrase grounding leaves out what the checkpoint's `processor_config.json` lists, which may
    /// be nothing; in microsoft's, and where there is no such file, Florence-2's 72 phrases.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.words.rules.dialect = dialect;
        self
    }

    /// Sets whether white space between location tokens is passed over ([`ParseOptions::spaced_locations`]).
    #[must_use]
    pub fn with_spaced_locations(mut self, on: bool) -> Self {
        self.words.rules.spaced_locations = on;
        self
    }

    /// Sets what phrase grounding leaves out in transformers' dialect, as if `processor_config.json` listed it.
    #[must_use]
    pub fn with_banned(mut self, phrases: Option<BTreeSet<String>>) -> Self {
        self.words.rules.banned = phrases.map(Arc::new);
        self
    }

    /// The network.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.words.tokenizer
    }

    /// How answers are read.
    pub fn parse_options(&self) -> ParseOptions<'_> {
        self.words.rules.options()
    }

    /// The ids of a prompt as the network is asked it, `<s>` and `</s>` included.
    ///
    /// # Errors
    ///
    /// If the prompt is too long for the network, or holds a token that it does not know. Asking says the same; a program
    /// may want to know before it loads a picture.
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        self.words.prompt_ids(prompt, self.model.spec())
    }

    /// Shows a picture to the network. This is most of the work of a short answer, and is done once for all prompts.
    ///
    /// # Errors
    ///
    /// If the network fails, or if `preprocessor_config.json` does not have pictures resized, and it has another size than
    /// the network takes.
    pub fn see(&mut self, image: &Image) -> Result<Seen<M>, Error> {
        self.see_all([image])?.pop().ok_or(Error::WrongCount { given: 1, returned: 0 })
    }

    /// Shows several pictures at once: each is seen as if it came alone. Whether that is faster depends on the device.
    ///
    /// # Errors
    ///
    /// As [`see`](Self::see).
    pub fn see_all<'i>(
        &mut self,
        images: impl IntoIterator<Item = &'i Image>,
    ) -> Result<Vec<Seen<M>>, Error> {
        let start = Instant::now();
        let (sizes, pixels): (Vec<ImageSize>, Vec<PixelValues>) =
            images.into_iter().map(|image| (image.size(), self.preprocessor.pixel_values(image))).unzip();
        if pixels.is_empty() {
            return Ok(Vec::new());
        }
        let spec = self.model.spec();
        let network = (spec.image_width, spec.image_height);
        if let Some(odd) = pixels.iter().find(|pixels| (pixels.width(), pixels.height()) != network) {
            return Err(Error::PictureSize { picture: (odd.width(), odd.height()), network });
        }
        let images = self.model.encode_image(&pixels).map_err(|error| Error::Model(Box::new(error)))?;
        if images.len() != sizes.len() {
            return Err(Error::WrongCount { given: sizes.len(), returned: images.len() });
        }
        let vision = start.elapsed() / u32::try_from(sizes.len()).unwrap_or(u32::MAX);
        Ok(images.into_iter().zip(sizes).map(|(image, size)| Seen { image, size, vision }).collect())
    }

    /// Asks about a picture.
    ///
    /// # Errors
    ///
    /// If the prompt is too long for the network, the configuration cannot be followed, or the network fails.
    pub fn ask(
        &mut self,
        seen: &Seen<M>,
        prompt: &Prompt,
        config: &GenerationConfig,
    ) -> Result<Output, Error> {
        let mut outputs = self.ask_many(&[(seen, prompt)], config)?;
        outputs.pop().ok_or(Error::WrongCount { given: 1, returned: 0 })
    }

    /// Asks several prompts at once, about one picture or several: an output for each, in order, the same as if it
    /// came alone but for rounding.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub fn ask_many(
        &mut self,
        asks: &[(&Seen<M>, &Prompt)],
        config: &GenerationConfig,
    ) -> Result<Vec<Output>, Error> {
        self.ask_observed(asks, config, |_| ControlFlow::Continue(()))
    }

    /// Asks as [`ask_many`](Self::ask_many), and tells of every token once no later step can take it back.
    ///
    /// Where `observe` breaks, all answers end with what there is of them, and say
    /// [`Finish::Cancelled`](florence2_core::Finish::Cancelled).
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub fn ask_observed(
        &mut self,
        asks: &[(&Seen<M>, &Prompt)],
        config: &GenerationConfig,
        mut observe: impl FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<Output>, Error> {
        run(&mut self.model, &self.words, asks, config, &mut observe)
    }

    /// Asks as [`ask`](Self::ask), and gives the answer piece by piece, each as soon as no later step can take it back.
    ///
    /// Joined, the instances of all pieces are the output's answer, with its scores. With beams, only what all running
    /// beams agree on is certain, so that pieces come later than tokens are decoded. Where several sequences are asked
    /// for, the pieces are those of the first.
    ///
    /// Where `give` breaks, the answer ends with what there is of it.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub fn ask_streaming(
        &mut self,
        seen: &Seen<M>,
        prompt: &Prompt,
        config: &GenerationConfig,
        mut give: impl FnMut(Piece) -> ControlFlow<()>,
    ) -> Result<Output, Error> {
        let options = self.words.rules.options();
        let mut stream = AnswerStream::new(prompt.answer_kind(), seen.size, &options);
        let mut decoder = self.words.tokenizer.decoder();
        let mut last = 0.0;
        let mut broken = false;
        let mut observe = |progress: Progress<'_>| {
            if progress.sequence > 0 {
                return ControlFlow::Continue(());
            }
            let mut piece = Piece::default();
            for (&id, &log_prob) in progress.tokens.iter().zip(progress.log_probs) {
                let text = decoder.push(id);
                piece.instances.extend(stream.push_scored(&text, log_prob));
                piece.text.push_str(&text);
                last = log_prob;
            }
            if piece.is_empty() {
                return ControlFlow::Continue(());
            }
            let flow = give(piece);
            broken = flow.is_break();
            flow
        };
        let outputs = run(&mut self.model, &self.words, &[(seen, prompt)], config, &mut observe);
        let output = outputs?.pop().ok_or(Error::WrongCount { given: 1, returned: 0 })?;
        if !broken {
            let text = decoder.finish();
            let mut instances = if text.is_empty() { Vec::new() } else { stream.push_scored(&text, last) };
            instances.extend(stream.finish());
            let piece = Piece { text, instances };
            if !piece.is_empty() {
                // Nothing is left that could be broken off.
                let _ = give(piece);
            }
        }
        Ok(output)
    }
}

impl<M: fmt::Debug> fmt::Debug for Florence2<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Florence2")
            .field("model", &self.model)
            .field("tokenizer", &self.words.tokenizer)
            .field("preprocessor", &self.preprocessor)
            .field("rules", &self.words.rules)
            .finish()
    }
}

/// A picture that the network has seen. It belongs to the [`Florence2`] that saw it.
pub struct Seen<M: VisionSeq2Seq> {
    image: M::Image,
    size: ImageSize,
    vision: Duration,
}

impl<M: VisionSeq2Seq> Seen<M> {
    /// The original picture's size, in whose pixels answers are.
    pub fn size(&self) -> ImageSize {
        self.size
    }

    /// How long it took to see it, resizing and all; of pictures that were seen together, an even share.
    pub fn vision_time(&self) -> Duration {
        self.vision
    }
}

impl<M: VisionSeq2Seq> fmt::Debug for Seen<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen").field("size", &self.size).field("vision", &self.vision).finish_non_exhaustive()
    }
}

/// A part of an answer that has become certain.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Piece {
    /// What the network wrote, special and location tokens and all.
    pub text: String,
    /// What that adds to the answer: text, or things that are now complete. May be empty.
    pub instances: Vec<Instance>,
}

impl Piece {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.instances.is_empty()
    }
}

/// Asks the network, and reads what it answers.
fn run<M: VisionSeq2Seq>(
    model: &mut M,
    words: &Words,
    asks: &[(&Seen<M>, &Prompt)],
    config: &GenerationConfig,
    observe: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Vec<Output>, Error> {
    if asks.is_empty() {
        return Ok(Vec::new());
    }
    config.validate(model.spec())?;
    let prompts = asks.iter().map(|(_, prompt)| words.prompt_ids(prompt, model.spec()));
    let prompts = prompts.collect::<Result<Vec<_>, Error>>()?;
    let rows: Vec<Ask<'_, M::Image>> =
        asks.iter().zip(&prompts).map(|((seen, _), prompt)| Ask { image: &seen.image, prompt }).collect();
    let mut timed = Timed::new(model);
    let start = Instant::now();
    let generated = generate(&mut timed, &rows, config, observe)?;
    let whole = start.elapsed();
    let (prompt, steps) = (timed.prompt, timed.steps);
    if generated.len() != asks.len() {
        return Err(Error::WrongCount { given: asks.len(), returned: generated.len() });
    }
    let outputs = asks.iter().zip(generated).map(|((seen, asked), sequences)| {
        let decode = whole.saturating_sub(prompt);
        let timings = Timings { vision: seen.vision, prompt, decode, steps, batch: asks.len() };
        let read = |generated| words.read(generated, seen.size, asked, model.spec());
        let sequences = sequences.into_iter().map(read).collect();
        Output::new(asked, seen.size, &words.rules, timings, sequences)
            .ok_or(Error::WrongCount { given: asks.len(), returned: 0 })
    });
    outputs.collect()
}

impl Words {
    /// The ids of a prompt, if the network has room for them.
    fn prompt_ids(&self, prompt: &Prompt, spec: &ModelSpec) -> Result<Vec<u32>, Error> {
        let ids = self.tokenizer.encode(&prompt.sentence(self.rules.dialect))?;
        let room = spec.max_prompt_tokens;
        if ids.len() > room {
            return Err(Error::PromptTooLong { tokens: ids.len(), room });
        }
        match ids.iter().find(|&&id| id as usize >= spec.vocabulary_size) {
            Some(&id) => {
                let token = self.tokenizer.decode(&[id]);
                Err(Error::UnknownToken { token, id, vocabulary: spec.vocabulary_size })
            }
            None => Ok(ids),
        }
    }
}

fn sides(size: ImageSize) -> (usize, usize) {
    (size.width() as usize, size.height() as usize)
}

fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let bytes = florence2_files::read_if_there(path, LARGEST_FILE).map_err(failed)?;
    let text = bytes.map(String::from_utf8).transpose();
    text.map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}

//! The parts of the network among the programs of a folder, each checked by what its methods take and give.

use std::path::{Path, PathBuf};

use crate::error::{ExecuTorchError, LoadError, RunError};
use crate::folder::{Candidate, Form, Part, Programs, Role, ambiguous, check};
use crate::model::ExecuTorch;
use crate::program::Program;
use crate::runtime::Runtime;
use crate::tensor::{Dtype, Signature, TensorType, WholeType};

const PARTS: [Part; 3] = [Part::Vision, Part::Encoder, Part::Decoder];

/// A method of one of the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) program: usize,
    pub(crate) name: String,
    pub(crate) part: &'static str,
}

/// The network's parts, and the programs that have them.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) programs: Vec<Program>,
    pub(crate) vision: Vision,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: Decoder,
}

/// `f32[1, 3, height, width]` to `f32[1, image tokens, width of the text]`
#[derive(Debug)]
pub(crate) struct Vision {
    pub(crate) method: Method,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) tokens: usize,
    /// Of the text.
    pub(crate) dimension: usize,
}

/// Image tokens, ids and mask `[1, prompt]` each, to `f32[1, image tokens + prompt, width of the text]`
#[derive(Debug)]
pub(crate) struct Encoder {
    pub(crate) method: Method,
    pub(crate) prompt: usize,
    pub(crate) ids: WholeType,
    pub(crate) mask: WholeType,
}

#[derive(Debug)]
pub(crate) enum Decoder {
    /// Hidden states, mask, and ids `[1, window]`, to `f32[1, window, vocabulary]`
    Window {
        method: Method,
        window: usize,
        vocabulary: usize,
        mask: WholeType,
        ids: WholeType,
    },
    Cached(Cached),
}

/// `cross` makes keys `[1, heads, size, length]` and values `[1, heads, length, size]` of hidden states, those of all layers.
///
/// `step` takes tokens `[rows, 1]`, position `[1]`, mask `[1, prompt]`, own keys and values `[rows, heads, past, size]`, and
/// those of `cross`, and gives logits `[rows, vocabulary]` and new keys and values `[rows, heads, 1, size]`.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) cross: Method,
    pub(crate) step: Method,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) size: usize,
    /// Image tokens and prompt.
    pub(crate) length: usize,
    /// Of the prompt alone.
    pub(crate) prompt: usize,
    /// The most rows of a run.
    pub(crate) rows: usize,
    /// The most entries of the past, and so the most tokens.
    pub(crate) positions: usize,
    pub(crate) vocabulary: usize,
    pub(crate) tokens: WholeType,
    pub(crate) position: WholeType,
    pub(crate) mask: WholeType,
}

impl Decoder {
    pub(crate) fn vocabulary(&self) -> usize {
        match self {
            Self::Window { vocabulary, .. } => *vocabulary,
            Self::Cached(cached) => cached.vocabulary,
        }
    }

    pub(crate) fn positions(&self) -> usize {
        match self {
            Self::Window { window, .. } => *window,
            Self::Cached(cached) => cached.positions,
        }
    }
}

/// The files that were looked into.
struct Opened<'a> {
    programs: Vec<Program>,
    /// Files that have passed already.
    checked: Vec<PathBuf>,
    executorch: &'a ExecuTorch,
}

/// A part where it was found: in which form, which program, and by which method.
type Found = (Form, usize, &'static str);

impl Opened<'_> {
    fn get(&mut self, path: &Path) -> Result<usize, LoadError> {
        if let Some(at) = self.programs.iter().position(|program| program.file() == path) {
            return Ok(at);
        }
        if !self.checked.iter().any(|checked| checked == path) {
            check(path)?;
        }
        self.programs.push(Program::open(path, self.executorch.map).map_err(|source| refused(path, source))?);
        Ok(self.programs.len() - 1)
    }

    /// Checks files at once: a checksum takes as long as loading.
    fn check(&mut self, files: Vec<PathBuf>) -> Result<(), LoadError> {
        std::thread::scope(|scope| {
            let start = |file| std::thread::Builder::new().spawn_scoped(scope, move || check(file));
            // Where there are no threads to be had: one after the other.
            let running: Vec<_> = files.iter().map(|file| start(file).map_err(|_| file)).collect();
            running.into_iter().try_for_each(|running| {
                match running.map(std::thread::ScopedJoinHandle::join) {
                    Ok(Ok(result)) => result,
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    Err(file) => check(file),
                }
            })
        })?;
        self.checked = files;
        Ok(())
    }

    /// The program of a candidate, and its methods.
    fn look(&mut self, candidate: &Candidate) -> Result<(usize, Vec<String>), LoadError> {
        let at = self.get(&candidate.path)?;
        let program = &mut self.programs[at];
        let methods = program.methods().map_err(|source| refused(&candidate.path, source))?;
        Ok((at, methods))
    }

    /// The file with the methods of a part; or what is missing.
    fn find(&mut self, part: Part, folder: &Programs) -> Result<Result<Found, String>, LoadError> {
        let ExecuTorch { variants, paths, form, .. } = self.executorch;
        let forms: &[Form] = match (part, form) {
            (Part::Decoder, None) => &[Form::Cached, Form::Window],
            (Part::Decoder, Some(Form::Cached)) => &[Form::Cached],
            _ => &[Form::Window],
        };
        let (mut last, mut stranger) = (Vec::new(), None);
        for candidates in folder.candidates(part, variants, paths) {
            let candidates = match candidates {
                Ok(candidates) => candidates,
                Err(problem) => return Ok(Err(problem)),
            };
            for &form in forms {
                let mut found: Option<(&Candidate, Found)> = None;
                for candidate in &candidates {
                    // One by its name is enough, and no other need be looked at beside it; nor it beside one by its methods.
                    let by_name = |candidate: &Candidate| candidate.role != Role::ByMethods;
                    if found.is_some_and(|(first, _)| by_name(first) || by_name(candidate)) {
                        break;
                    }
                    let (program, methods) = match self.look(candidate) {
                        Ok(looked) => looked,
                        // Of whatever else lies there it is told only if nothing else is found.
                        Err(error) if !candidate.is_ours() => {
                            stranger = stranger.or(Some(error));
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    let Some(method) = method_of(part, form, candidate.role, &methods) else {
                        last = methods;
                        continue;
                    };
                    if let Some((first, _)) = found {
                        return Ok(Err(ambiguous(part, &first.path, &candidate.path)));
                    }
                    found = Some((candidate, (form, program, method)));
                }
                if let Some((_, found)) = found {
                    return Ok(Ok(found));
                }
            }
        }
        match stranger {
            Some(error) => Err(error),
            None => Ok(Err(folder.missing(part, variants, paths, *form, &last))),
        }
    }
}

/// The method that has a part, among those of a file.
fn method_of(part: Part, form: Form, role: Role, methods: &[String]) -> Option<&'static str> {
    let has = |name: &str| methods.iter().any(|method| method == name);
    let own = match part {
        Part::Vision => "vision",
        Part::Encoder => "encoder",
        Part::Decoder => "decoder",
    };
    match form {
        Form::Cached => (has("cross") && has("step")).then_some("step"),
        Form::Window if has(own) => Some(own),
        // What it is, only its name can tell.
        Form::Window => (has("forward") && matches!(role, Role::One(_))).then_some("forward"),
    }
}

fn refused(file: &Path, source: ExecuTorchError) -> LoadError {
    LoadError::ExecuTorch { file: file.to_owned(), source }
}

impl Parts {
    /// ExecuTorch must have been started before.
    pub(crate) fn find(folder: &Path, executorch: &ExecuTorch) -> Result<Self, LoadError> {
        let folder = Programs::find(folder)?;
        let mut opened = Opened { programs: Vec::new(), checked: Vec::new(), executorch };
        let mut first: Vec<PathBuf> = Vec::new();
        for part in PARTS {
            let candidates = folder.candidates(part, &executorch.variants, &executorch.paths);
            let candidates = candidates.into_iter().flatten().flatten();
            first.extend(candidates.filter(Candidate::is_ours).map(|candidate| candidate.path).next());
        }
        first.sort();
        first.dedup();
        opened.check(first)?;
        // Now something is run: whoever comes later gets these threads.
        Runtime::with_threads(executorch.threads)?;
        let mut problems = Vec::new();
        let mut found = Vec::new();
        for part in PARTS {
            match opened.find(part, &folder)? {
                Ok((form, program, name)) => {
                    found.push((form, Method { program, name: name.to_owned(), part: part.name() }));
                }
                Err(problem) => problems.push(problem),
            }
        }
        let Ok([(_, vision), (_, encoder), (form, decoder)]) = <[_; 3]>::try_from(found) else {
            let found = folder.names();
            return Err(LoadError::Parts { folder: folder.folder, problems, found });
        };
        let programs = &mut opened.programs;
        let vision = Vision::new(vision, programs)?;
        let encoder = Encoder::new(encoder, programs, &vision)?;
        let decoder = match form {
            Form::Window => window(decoder, programs, &vision, &encoder)?,
            Form::Cached => {
                let cross = Method { name: "cross".to_owned(), ..decoder.clone() };
                Decoder::Cached(Cached::new(cross, decoder, programs, &vision, &encoder)?)
            }
        };
        let mut parts = Self { programs: opened.programs, vision, encoder, decoder };
        parts.let_go();
        parts.prepare()?;
        Ok(parts)
    }

    fn methods(&mut self) -> Vec<&mut Method> {
        let mut methods = vec![&mut self.vision.method, &mut self.encoder.method];
        match &mut self.decoder {
            Decoder::Window { method, .. } => methods.push(method),
            Decoder::Cached(Cached { cross, step, .. }) => methods.extend([cross, step]),
        }
        methods
    }

    /// Closes the files that have no part.
    fn let_go(&mut self) {
        let used: Vec<usize> = self.methods().iter().map(|method| method.program).collect();
        let mut kept = Vec::new();
        let programs = std::mem::take(&mut self.programs);
        for (at, program) in programs.into_iter().enumerate().filter(|(at, _)| used.contains(at)) {
            kept.push(at);
            self.programs.push(program);
        }
        for method in self.methods() {
            method.program = kept.iter().position(|&at| at == method.program).unwrap_or_default();
        }
    }

    /// Loads the methods. One after the other: most of it waits for memory, and each needs some that it gives back.
    fn prepare(&mut self) -> Result<(), LoadError> {
        let methods: Vec<Method> = self.methods().into_iter().map(|method| method.clone()).collect();
        methods.iter().try_for_each(|method| {
            let program = &mut self.programs[method.program];
            program.prepare(&method.name).map_err(|source| refused(program.file(), source))
        })
    }

    /// Runs a step of one row. What a method says of its inputs are the greatest lengths: whether shorter ones will do, only a
    /// run can tell.
    pub(crate) fn try_out(&mut self) -> Result<(), LoadError> {
        let Self { programs, decoder, .. } = self;
        let Decoder::Cached(cached) = decoder else { return Ok(()) };
        let tried = cached.try_out(programs);
        tried.map_err(|error| {
            let what = match &error {
                RunError::ExecuTorch { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            let problem = format!(
                "one row and a short past are not taken, so that their numbers are not free ({what})"
            );
            match Look::at(&cached.step, programs) {
                Ok(look) => look.wrong(problem),
                Err(error) => error,
            }
        })
    }
}

/// A method that is looked at.
struct Look<'a> {
    file: &'a Path,
    method: &'a Method,
    signature: Signature,
}

impl<'a> Look<'a> {
    fn at(method: &'a Method, programs: &'a mut [Program]) -> Result<Self, LoadError> {
        let program = &mut programs[method.program];
        let signature = program.signature(&method.name);
        let signature = signature.map_err(|source| refused(program.file(), source))?;
        Ok(Self { file: program.file(), method, signature })
    }

    fn wrong(&self, problem: impl Into<String>) -> LoadError {
        let Self { file, method, signature } = self;
        LoadError::signature(file, &method.name, method.part, signature, problem.into())
    }

    /// Checks how many there are of each.
    fn count(&self, inputs: usize, outputs: usize) -> Result<(), LoadError> {
        let Signature { inputs: taken, outputs: given } = &self.signature;
        if (taken.len(), given.len()) == (inputs, outputs) {
            return Ok(());
        }
        let (taken, given) = (taken.len(), given.len());
        Err(self.wrong(format!(
            "its inputs are {taken} and its outputs {given}, and {inputs} and {outputs} are expected"
        )))
    }

    /// An input of f32, by the lengths of its axes; `None` for one that may be any.
    fn floats<const N: usize>(
        &self,
        at: usize,
        shape: [Option<usize>; N],
        what: &str,
    ) -> Result<[usize; N], LoadError> {
        self.fits(&self.signature.inputs[at], shape, what)
    }

    fn output<const N: usize>(
        &self,
        at: usize,
        shape: [Option<usize>; N],
        what: &str,
    ) -> Result<[usize; N], LoadError> {
        self.fits(&self.signature.outputs[at], shape, what)
    }

    fn fits<const N: usize>(
        &self,
        found: &TensorType,
        shape: [Option<usize>; N],
        what: &str,
    ) -> Result<[usize; N], LoadError> {
        let lengths = lengths(&found.shape, shape).filter(|_| found.dtype == Dtype::F32);
        lengths
            .ok_or_else(|| self.wrong(format!("its {what} is {found}, and f32{} is expected", Shape(&shape))))
    }

    /// An input of whole numbers, by the lengths of its axes, and what they are in.
    fn whole<const N: usize>(
        &self,
        at: usize,
        shape: [Option<usize>; N],
        what: &str,
    ) -> Result<([usize; N], WholeType), LoadError> {
        let found = &self.signature.inputs[at];
        let dtype = found.dtype.whole().filter(|dtype| {
            // A mask may be in anything, and ids are looked up.
            what == "mask" || matches!(dtype, WholeType::I64 | WholeType::I32)
        });
        let lengths = lengths(&found.shape, shape);
        let wrong = || self.wrong(format!("its {what} is {found}, and i64{} is expected", Shape(&shape)));
        lengths.zip(dtype).ok_or_else(wrong)
    }
}

/// The lengths of axes, if they are the expected ones.
fn lengths<const N: usize>(found: &[usize], expected: [Option<usize>; N]) -> Option<[usize; N]> {
    let lengths = <[usize; N]>::try_from(found).ok()?;
    let fit = |(&found, expected): (&usize, Option<usize>)| {
        found > 0 && expected.is_none_or(|length| length == found)
    };
    lengths.iter().zip(expected).all(fit).then_some(lengths)
}

struct Shape<'a>(&'a [Option<usize>]);
impl std::fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lengths =
            self.0.iter().map(|length| length.map_or_else(|| "any".to_owned(), |length| length.to_string()));
        write!(f, "[{}]", lengths.collect::<Vec<_>>().join(", "))
    }
}

impl Vision {
    fn new(method: Method, programs: &mut [Program]) -> Result<Self, LoadError> {
        let look = Look::at(&method, programs)?;
        look.count(1, 1)?;
        let [_, _, height, width] = look.floats(0, [Some(1), Some(3), None, None], "picture")?;
        let [_, tokens, dimension] = look.output(0, [Some(1), None, None], "output")?;
        Ok(Self { height, width, tokens, dimension, method })
    }
}

impl Encoder {
    fn new(method: Method, programs: &mut [Program], vision: &Vision) -> Result<Self, LoadError> {
        let look = Look::at(&method, programs)?;
        look.count(3, 1)?;
        let (tokens, dimension) = (vision.tokens, vision.dimension);
        look.floats(0, [Some(1), Some(tokens), Some(dimension)], "first input, image tokens,")?;
        let ([_, prompt], ids) = look.whole(1, [Some(1), None], "second input, ids,")?;
        let (_, mask) = look.whole(2, [Some(1), Some(prompt)], "mask")?;
        look.output(0, [Some(1), Some(tokens + prompt), Some(dimension)], "output")?;
        Ok(Self { prompt, ids, mask, method })
    }
}

fn window(
    method: Method,
    programs: &mut [Program],
    vision: &Vision,
    encoder: &Encoder,
) -> Result<Decoder, LoadError> {
    let look = Look::at(&method, programs)?;
    look.count(3, 1)?;
    let length = vision.tokens + encoder.prompt;
    look.floats(0, [Some(1), Some(length), Some(vision.dimension)], "first input, hidden states,")?;
    let (_, mask) = look.whole(1, [Some(1), Some(encoder.prompt)], "mask")?;
    let ([_, window], ids) = look.whole(2, [Some(1), None], "third input, ids,")?;
    let [_, _, vocabulary] = look.output(0, [Some(1), Some(window), None], "output")?;
    Ok(Decoder::Window { window, vocabulary, mask, ids, method })
}

impl Cached {
    fn new(
        cross: Method,
        step: Method,
        programs: &mut [Program],
        vision: &Vision,
        encoder: &Encoder,
    ) -> Result<Self, LoadError> {
        let length = vision.tokens + encoder.prompt;
        let look = Look::at(&cross, programs)?;
        let outputs = look.signature.outputs.len();
        if outputs == 0 || !outputs.is_multiple_of(2) {
            return Err(look.wrong(format!("it has {outputs} outputs, and two for each layer are expected")));
        }
        let layers = outputs / 2;
        look.count(1, 2 * layers)?;
        look.floats(0, [Some(1), Some(length), Some(vision.dimension)], "input")?;
        let [_, heads, size, _] = look.output(0, [Some(1), None, None, Some(length)], "first key")?;
        if heads.checked_mul(size) != Some(vision.dimension) {
            let width = vision.dimension;
            return Err(look.wrong(format!("{heads} heads of {size} are not the width of the text, {width}")));
        }
        let key = [1, heads, size, length].map(Some);
        let value = [1, heads, length, size].map(Some);
        for layer in 0..layers {
            look.output(layer, key, "key")?;
            look.output(layers + layer, value, "value")?;
        }

        let look = Look::at(&step, programs)?;
        look.count(3 + 4 * layers, 1 + 2 * layers)?;
        let ([rows, _], tokens) = look.whole(0, [None, Some(1)], "first input, tokens,")?;
        let (_, position) = look.whole(1, [Some(1)], "second input, position,")?;
        let (_, mask) = look.whole(2, [Some(1), Some(encoder.prompt)], "mask")?;
        let own = [Some(rows), Some(heads), None, Some(size)];
        let [_, _, positions, _] = look.floats(3, own, "first own key")?;
        let own = [rows, heads, positions, size].map(Some);
        for layer in 0..2 * layers {
            look.floats(3 + layer, own, "own key or value")?;
        }
        for layer in 0..layers {
            look.floats(3 + 2 * layers + layer, key, "key of cross")?;
            look.floats(3 + 3 * layers + layer, value, "value of cross")?;
        }
        let [_, vocabulary] = look.output(0, [Some(rows), None], "logits")?;
        for layer in 0..2 * layers {
            look.output(1 + layer, [rows, heads, 1, size].map(Some), "new key or value")?;
        }
        Ok(Self {
            cross,
            step,
            layers,
            heads,
            size,
            length,
            prompt: encoder.prompt,
            rows,
            positions,
            vocabulary,
            tokens,
            position,
            mask,
        })
    }
}

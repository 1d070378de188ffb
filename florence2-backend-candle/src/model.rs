//! How to load a network, and the network behind the trait.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use florence2_core::{Ask, ModelSpec, PixelValues, RequestError, SpecialIds, VisionSeq2Seq};
use florence2_files::{IMAGE_SIZE, ImageSizeError, image_size};

use crate::config::{CONFIG, NetworkConfig};
use crate::error::{LoadError, RunError};
use crate::weights::{Weights, WeightsSummary};
use crate::{cpu, device, json};

/// Where the network runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The processor, with this crate's own kernels.
    #[default]
    Cpu,
    /// The processor, with candle's operators. Slower than [`Cpu`](Self::Cpu), unless the features `mkl` or
    /// `accelerate` bring a library for its products; a second implementation to compare with.
    CandleCpu,
    /// An NVIDIA GPU by its number; needs the feature `cuda`.
    Cuda(usize),
    /// An Apple GPU by its number; needs the feature `metal`.
    Metal(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::CandleCpu => f.write_str("candle-cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Metal(index) => write!(f, "metal:{index}"),
        }
    }
}

/// How weights are held.
///
/// On [`Device::Cpu`] all arithmetic is `f32`, and this is the type of the weights in memory: half the memory, and
/// half of what a step has to read, for `F16` and `Bf16`. A checkpoint that is stored in `f16` loses nothing by `F16`.
/// On other devices, arithmetic is of this type, too, but for norms and softmax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits, 11 of them for the mantissa.
    F16,
    /// 16 bits, 8 of them for the mantissa; the range of `F32`.
    Bf16,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// How to load and run a network.
///
/// ```no_run
/// use florence2_backend_candle::{Candle, Dtype};
///
/// let model = Candle { dtype: Dtype::F16, ..Candle::default() }.load("Florence-2-base-ft".as_ref())?;
/// # Ok::<(), florence2_backend_candle::LoadError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Candle {
    /// Where it runs.
    pub device: Device,
    /// How weights are held.
    pub dtype: Dtype,
    /// Threads of the processor; `None` for as many as there are cores, shared with the rest of the process. Results
    /// do not depend on it.
    pub threads: Option<NonZeroUsize>,
    /// Width and height of the pictures. `None`: what the folder's `preprocessor_config.json` says, or 768×768.
    pub image_size: Option<(usize, usize)>,
}

impl Candle {
    /// Loads a checkpoint from its folder: `config.json`, and the weights as `model.safetensors`, shards with an index,
    /// or `pytorch_model.bin`, in microsoft's layout or that of transformers.
    ///
    /// # Errors
    ///
    /// If a file is missing or broken, if the configuration asks for what this network does not do, if a tensor is
    /// missing, of another shape, not finite or left over, or if the device cannot be used.
    pub fn load(&self, folder: &Path) -> Result<CandleModel, LoadError> {
        let config = read_config(folder)?;
        let size = match self.image_size {
            Some(size) => size,
            None => preprocessor_size(folder)?,
        };
        self.build(&config, Weights::open(folder)?, size)
    }

    /// Loads a checkpoint from memory: the text of its `config.json`, and the bytes of its `model.safetensors`.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn load_bytes(&self, config: &str, safetensors: Vec<u8>) -> Result<CandleModel, LoadError> {
        let config = NetworkConfig::parse(CONFIG.as_ref(), config.as_bytes())?;
        self.build(&config, Weights::from_bytes(safetensors)?, self.image_size.unwrap_or(IMAGE_SIZE))
    }

    fn build(
        &self,
        config: &NetworkConfig,
        mut weights: Weights,
        (width, height): (usize, usize),
    ) -> Result<CandleModel, LoadError> {
        let map = config.vision.map(width, height)?;
        let pool = match self.threads {
            Some(threads) => {
                let builder = rayon::ThreadPoolBuilder::new().num_threads(threads.get());
                let pool = builder.build();
                Some(pool.map_err(|source| LoadError::Threads { threads: threads.get(), source })?)
            }
            None => None,
        };
        weights.limit(match self.dtype {
            Dtype::F32 => f32::MAX,
            Dtype::F16 => half::f16::MAX.to_f32(),
            Dtype::Bf16 => half::bf16::MAX.to_f32(),
        });
        let tensors = &weights;
        let (network, positions) = run(pool.as_ref(), || match self.device {
            Device::Cpu => {
                let precision = match self.dtype {
                    Dtype::F32 => cpu::Precision::F32,
                    Dtype::F16 => cpu::Precision::F16,
                    Dtype::Bf16 => cpu::Precision::Bf16,
                };
                let network = cpu::Network::load(tensors, config, precision)?;
                let positions = network.positions();
                Ok::<_, LoadError>((Network::Cpu(Box::new(network)), positions))
            }
            other => {
                let network = device::Network::load(tensors, config, other, self.dtype)?;
                let positions = network.positions();
                Ok((Network::Device(Box::new(network)), positions))
            }
        })?;
        let summary = weights.summary();
        weights.finish()?;
        let image_tokens = map.0 * map.1 + 1;
        // Encoder and decoder have as many in every published checkpoint.
        let positions = positions.0.min(positions.1);
        if image_tokens >= positions {
            return Err(LoadError::Config {
                file: CONFIG.into(),
                key: "the picture's size".to_owned(),
                value: format!("{width}x{height}"),
                need: format!(
                    "its {image_tokens} image tokens leave no room for a prompt in {} positions",
                    positions
                ),
            });
        }
        let text = &config.text;
        let spec = ModelSpec {
            image_width: width,
            image_height: height,
            image_tokens,
            vocabulary_size: text.vocabulary,
            max_prompt_tokens: positions - image_tokens,
            max_positions: positions,
            special: SpecialIds {
                bos: text.bos,
                pad: text.pad,
                eos: text.eos,
                decoder_start: text.decoder_start,
            },
        };
        Ok(CandleModel { id: next_id(), spec, network, pool, weights: summary })
    }
}

/// What a folder holds, as far as can be told without reading the weights. Each of its files is judged by itself.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// Ids of the vocabulary, by `config.json`.
    pub vocabulary_size: Result<usize, LoadError>,
    /// What the weights are.
    pub weights: Result<WeightsSummary, LoadError>,
    /// Width and height of the pictures, by `preprocessor_config.json`. Without such a file 768×768.
    ///
    /// An error, too, if the network that `config.json` describes cannot take them.
    pub image_size: Result<(usize, usize), LoadError>,
}

/// Reads a folder's configuration and the heads of its weights.
///
/// What is an error in the result is one that [`Candle::load`] would return. Where there is none, tensors may still be
/// missing or of another shape.
#[must_use]
pub fn inspect(folder: &Path) -> Inspection {
    let config = read_config(folder);
    let image_size = preprocessor_size(folder).and_then(|(width, height)| {
        if let Ok(config) = &config {
            config.vision.map(width, height)?;
        }
        Ok((width, height))
    });
    Inspection {
        vocabulary_size: config.map(|config| config.text.vocabulary),
        weights: Weights::open(folder).map(|weights| weights.summary()),
        image_size,
    }
}

fn read_config(folder: &Path) -> Result<NetworkConfig, LoadError> {
    let path = folder.join(CONFIG);
    NetworkConfig::parse(&path, &json::read(&path)?)
}

/// Width and height in `preprocessor_config.json`, or those of all published checkpoints if it names none.
fn preprocessor_size(folder: &Path) -> Result<(usize, usize), LoadError> {
    let path = folder.join("preprocessor_config.json");
    let Some(json) = json::read_if_there(&path)? else { return Ok(IMAGE_SIZE) };
    image_size(&json).map_err(|error| match error {
        ImageSizeError::File(error) => json::failed(&path, error),
        ImageSizeError::NoSides(value) => LoadError::Preprocessor { file: path, value },
    })
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn run<T: Send>(pool: Option<&rayon::ThreadPool>, f: impl FnOnce() -> T + Send) -> T {
    match pool {
        Some(pool) => pool.install(f),
        None => f(),
    }
}

/// A loaded network.
#[derive(Debug)]
pub struct CandleModel {
    /// Tells images and states of one network from those of another.
    id: u64,
    spec: ModelSpec,
    network: Network,
    pool: Option<rayon::ThreadPool>,
    weights: WeightsSummary,
}

#[derive(Debug)]
enum Network {
    Cpu(Box<cpu::Network>),
    Device(Box<device::Network>),
}

/// A picture, encoded.
#[derive(Clone)]
pub struct Image {
    model: u64,
    tokens: ImageTokens,
}

#[derive(Clone)]
enum ImageTokens {
    Cpu(Vec<f32>),
    Device(candle_core::Tensor),
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").finish_non_exhaustive()
    }
}

/// A batch of prompts that are being answered.
pub struct State {
    model: u64,
    position: usize,
    rows: StateRows,
}

enum StateRows {
    Cpu(Vec<cpu::Row>),
    Device(device::State),
    Spent,
}

impl State {
    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        match &self.rows {
            StateRows::Cpu(rows) => rows.len(),
            StateRows::Device(state) => state.rows(),
            StateRows::Spent => 0,
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("position", &self.position)
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

impl Image {
    /// The image tokens, `[tokens, width of the text]`, row-major.
    ///
    /// # Errors
    ///
    /// If they cannot be brought back from the device.
    pub fn to_vec(&self) -> Result<Vec<f32>, RunError> {
        match &self.tokens {
            ImageTokens::Cpu(tokens) => Ok(tokens.clone()),
            ImageTokens::Device(tokens) => {
                Ok(tokens.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1()?)
            }
        }
    }
}

impl CandleModel {
    /// What the weights are that it was loaded from.
    pub fn weights(&self) -> &WeightsSummary {
        &self.weights
    }
}

impl VisionSeq2Seq for CandleModel {
    type Image = Image;
    type State = State;
    type Error = RunError;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<Image>, RunError> {
        self.spec.check_pixels(pixels)?;
        run(self.pool.as_ref(), || {
            let encode = |pixels: &PixelValues| {
                let tokens = match &self.network {
                    Network::Cpu(network) => ImageTokens::Cpu(network.image(pixels)),
                    Network::Device(network) => ImageTokens::Device(network.image(pixels)?),
                };
                Ok(Image { model: self.id, tokens })
            };
            pixels.iter().map(encode).collect()
        })
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, Image>]) -> Result<State, RunError> {
        if let Some(ask) = asks.iter().position(|ask| ask.image.model != self.id) {
            return Err(RequestError::ForeignImage { ask }.into());
        }
        self.spec.check_prompts(asks.iter().map(|ask| ask.prompt))?;
        let rows = run(self.pool.as_ref(), || match &self.network {
            Network::Cpu(network) => {
                let asks: Vec<_> = asks
                    .iter()
                    .filter_map(|ask| match &ask.image.tokens {
                        ImageTokens::Cpu(tokens) => Some((tokens.as_slice(), ask.prompt)),
                        ImageTokens::Device(_) => None,
                    })
                    .collect();
                Ok::<_, RunError>(StateRows::Cpu(network.encode(&asks)))
            }
            Network::Device(network) => {
                let asks: Vec<_> = asks
                    .iter()
                    .filter_map(|ask| match &ask.image.tokens {
                        ImageTokens::Device(tokens) => Some((tokens, ask.prompt)),
                        ImageTokens::Cpu(_) => None,
                    })
                    .collect();
                Ok(StateRows::Device(network.encode(&asks)?))
            }
        })?;
        Ok(State { model: self.id, position: 0, rows })
    }

    fn decode_step(&mut self, state: &mut State, tokens: &[u32], logits: &mut [f32]) -> Result<(), RunError> {
        let rows = self.check_state(state)?;
        let result = self.decode(state, rows, tokens, logits);
        if result.is_err() {
            state.rows = StateRows::Spent;
        }
        result
    }

    fn select_rows(&mut self, state: &mut State, rows: &[usize]) -> Result<(), RunError> {
        let count = self.check_state(state)?;
        let result =
            RequestError::check_selection(rows, count).map_err(RunError::from).and_then(
                |()| match &mut state.rows {
                    StateRows::Cpu(old) => {
                        *old = rows.iter().map(|&row| old[row].clone()).collect();
                        Ok(())
                    }
                    StateRows::Device(state) => Ok(state.select(rows)?),
                    StateRows::Spent => Err(RequestError::Spent.into()),
                },
            );
        if result.is_err() {
            state.rows = StateRows::Spent;
        }
        result
    }
}

impl CandleModel {
    fn check_state(&self, state: &State) -> Result<usize, RunError> {
        if state.model != self.id {
            return Err(RequestError::ForeignState.into());
        }
        if matches!(state.rows, StateRows::Spent) {
            return Err(RequestError::Spent.into());
        }
        Ok(state.rows())
    }

    fn decode(
        &self,
        state: &mut State,
        rows: usize,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), RunError> {
        self.spec.check_step(rows, state.position, tokens, logits)?;
        let position = state.position;
        run(self.pool.as_ref(), || match (&self.network, &mut state.rows) {
            (Network::Cpu(network), StateRows::Cpu(rows)) => {
                network.step(rows, position, tokens, logits);
                Ok(())
            }
            (Network::Device(network), StateRows::Device(state)) => {
                network.step(state, position, tokens, logits).map_err(RunError::from)
            }
            _ => Err(RequestError::ForeignState.into()),
        })?;
        state.position += 1;
        Ok(())
    }
}

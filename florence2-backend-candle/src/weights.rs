//! The weights of a checkpoint: files found, names brought into one layout, each tensor checked before it is read.
//!
//! Tensors are read in parts that stay in a cache until they are repacked or moved to a device, not mapped: a map would
//! count against the process beside that copy, and a file that is cut short under a map ends the process.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::tensor::{Dtype, Metadata};
use serde::Deserialize;

use crate::error::LoadError;
use crate::json;
use crate::pickle::{self, Problem};

/// Whose names the tensors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The checkpoints as microsoft published them: `vision_tower.…`, `language_model.model.…`.
    Microsoft,
    /// As the transformers library writes them: `model.vision_tower.…`, `model.language_model.…`.
    Transformers,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Microsoft => "microsoft",
            Self::Transformers => "transformers",
        })
    }
}

/// The four names that one matrix goes by.
pub(crate) const EMBEDDINGS: [&str; 4] = [
    "model.language_model.shared.weight",
    "model.language_model.encoder.embed_tokens.weight",
    "model.language_model.decoder.embed_tokens.weight",
    "lm_head.weight",
];
/// Added to the logits; in microsoft's files, where it is zero.
pub(crate) const LOGITS_BIAS: &str = "model.final_logits_bias";
/// Stored as `[inputs, outputs]` in microsoft's layout, and as `[outputs, inputs]` in the other.
pub(crate) const IMAGE_PROJECTION: &str = "model.multi_modal_projector.image_projection.weight";

/// A checkpoint's tensors by their names in the transformers layout.
pub(crate) struct Weights {
    layout: Layout,
    entries: BTreeMap<String, Entry>,
    sources: Vec<Source>,
    /// The largest magnitude that the type has in which weights will be held.
    largest: f32,
}

struct Entry {
    /// The name in the file.
    name: String,
    source: usize,
    shape: Vec<usize>,
    stored: Stored,
    used: AtomicBool,
}

/// Where a tensor's numbers lie in its source, in row-major order.
struct Stored {
    dtype: Dtype,
    begin: u64,
    length: usize,
}

enum Source {
    /// Read by several threads at a time.
    File {
        path: PathBuf,
        file: File,
    },
    Memory(Vec<u8>),
}

/// What a checkpoint's weights are, as the heads of their files say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightsSummary {
    /// The layout of the tensors' names.
    pub layout: Layout,
    /// The files; none if they came from memory.
    pub files: Vec<PathBuf>,
    /// Tensors in them.
    pub tensors: usize,
    /// Numbers in them; tied matrices count as often as they are stored.
    pub parameters: u64,
    /// How they are stored.
    pub dtypes: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Finds the weights of a folder and reads what they hold, but no tensor yet.
    pub(crate) fn open(folder: &Path) -> Result<Self, LoadError> {
        let whole = folder.join("model.safetensors");
        let pickle = folder.join("pytorch_model.bin");
        let mut found = Found::default();
        if whole.exists() {
            found.safetensors(whole)?;
        } else if let Some(index) = Index::read(folder, "model.safetensors.index.json")? {
            for shard in index.shards(folder, "model.safetensors.index.json")? {
                found.safetensors(shard)?;
            }
            found.compare(&index, folder, "model.safetensors.index.json")?;
        } else if pickle.exists() {
            found.pickle(pickle)?;
        } else if let Some(index) = Index::read(folder, "pytorch_model.bin.index.json")? {
            for shard in index.shards(folder, "pytorch_model.bin.index.json")? {
                found.pickle(shard)?;
            }
            found.compare(&index, folder, "pytorch_model.bin.index.json")?;
        } else {
            return Err(LoadError::NoWeights { folder: folder.to_owned() });
        }
        found.finish()
    }

    /// From the bytes of a safetensors file.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, LoadError> {
        let mut found = Found::default();
        let path = Path::new("the weights in memory");
        let (begin, metadata) = header(path, &mut bytes.as_slice(), bytes.len() as u64)?;
        found.sources.push(Source::Memory(bytes));
        found.tensors(path, begin, &metadata)?;
        found.finish()
    }

    /// Refuses tensors with numbers beyond a type's largest, which would become infinite in it.
    pub(crate) fn limit(&mut self, largest: f32) {
        self.largest = largest;
    }

    pub(crate) fn summary(&self) -> WeightsSummary {
        let mut dtypes: Vec<_> = self.entries.values().map(|entry| entry.stored.name()).collect();
        dtypes.sort();
        dtypes.dedup();
        let parameters = self.entries.values();
        let parameters = parameters
            .map(|entry| entry.shape.iter().fold(1u64, |product, &n| product.saturating_mul(n as u64)));
        let files = self.sources.iter().filter_map(|source| match source {
            Source::File { path, .. } => Some(path.clone()),
            Source::Memory(_) => None,
        });
        WeightsSummary {
            layout: self.layout,
            tensors: self.entries.len(),
            parameters: parameters.fold(0, u64::saturating_add),
            dtypes,
            files: files.collect(),
        }
    }

    pub(crate) fn holds(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    fn shape(&self, name: &str) -> Result<&[usize], LoadError> {
        self.entries.get(name).map(|entry| entry.shape.as_slice()).ok_or_else(|| self.missing(name))
    }

    /// Finds a tensor, which must have this shape, to be read from front to end or in parts.
    ///
    /// It must not be the [`IMAGE_PROJECTION`], whose order is not the same in both layouts.
    pub(crate) fn find(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, LoadError> {
        debug_assert_ne!(name, IMAGE_PROJECTION);
        self.find_stored(name, shape)
    }

    fn find_stored(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, LoadError> {
        let Some(entry) = self.entries.get(name) else { return Err(self.missing(name)) };
        if entry.shape != shape {
            return Err(LoadError::Shape {
                name: entry.name.clone(),
                layout: self.layout,
                found: entry.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        entry.used.store(true, Ordering::Relaxed);
        Ok(Tensor { entry, source: &self.sources[entry.source], largest: self.largest })
    }

    /// Reads a tensor, which must have this shape.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        if self.layout == Layout::Microsoft && name == IMAGE_PROJECTION {
            let mut stored = shape.to_vec();
            stored.reverse();
            let values = self.find_stored(name, &stored)?.read_all()?;
            return Ok(transpose(&values, stored[0], stored[1]));
        }
        self.find_stored(name, shape)?.read_all()
    }

    /// The matrix that embeds tokens and also gives the logits: any of its four names, all of which must agree.
    pub(crate) fn embeddings(&self, shape: &[usize]) -> Result<Tensor<'_>, LoadError> {
        let mut names =
            EMBEDDINGS.into_iter().filter(|name| self.holds(name)).collect::<Vec<_>>().into_iter();
        let Some(first) = names.next() else { return Err(self.missing(EMBEDDINGS[0])) };
        let first = self.find(first, shape)?;
        for name in names {
            let second = self.find(name, shape)?;
            if !first.is_same_as(&second)? {
                let [first, second] = [first, second].map(|tensor| tensor.entry.name.clone());
                return Err(LoadError::NotTied { first, second });
            }
        }
        Ok(first)
    }

    /// A table of positions, `[positions][width]`, without the two rows that BART leaves unused in front.
    ///
    /// How many there are is the file's to say: configurations with 1024 for 4096 rows were published.
    pub(crate) fn positions(&self, name: &str, width: usize) -> Result<Vec<f32>, LoadError> {
        const OFFSET: usize = 2;
        let rows = self.shape(name)?.first().copied().unwrap_or_default().max(OFFSET + 1);
        let mut positions = self.tensor(name, &[rows, width])?;
        positions.drain(..OFFSET * width);
        Ok(positions)
    }

    /// After everything was read: that there is nothing else.
    pub(crate) fn finish(self) -> Result<(), LoadError> {
        let unused = self
            .entries
            .into_values()
            .filter(|entry| !entry.used.load(Ordering::Relaxed))
            .map(|entry| entry.name);
        let names: Vec<_> = unused.collect();
        if names.is_empty() { Ok(()) } else { Err(LoadError::Unused { names, layout: self.layout }) }
    }

    fn missing(&self, name: &str) -> LoadError {
        let name = match self.layout {
            Layout::Microsoft => microsoft_name(name),
            Layout::Transformers => name.to_owned(),
        };
        LoadError::Missing { name, layout: self.layout }
    }
}

impl Index {
    fn read(folder: &Path, file: &str) -> Result<Option<Self>, LoadError> {
        let path = folder.join(file);
        json::read_if_there(&path)?.map(|json| json::parse(&path, &json)).transpose()
    }

    fn shards(&self, folder: &Path, file: &str) -> Result<Vec<PathBuf>, LoadError> {
        let mut names: Vec<&str> = self.weight_map.values().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let problem = |problem: String| LoadError::Index { file: folder.join(file), problem };
        if names.is_empty() {
            return Err(problem("it names no file".to_owned()));
        }
        for name in &names {
            // A shard lies beside its index; anything else would read files of somebody else's choice.
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(problem(format!("{name:?} is not the name of a file in this folder")));
            }
            if !folder.join(name).exists() {
                return Err(problem(format!("the shard {name} is missing")));
            }
        }
        Ok(names.into_iter().map(|name| folder.join(name)).collect())
    }
}

#[derive(Default)]
struct Found {
    sources: Vec<Source>,
    /// Under their names in the files.
    entries: BTreeMap<String, Entry>,
}

impl Found {
    fn safetensors(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let io = |source| LoadError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let (begin, metadata) = header(&path, &mut file, length)?;
        self.sources.push(Source::File { path: path.clone(), file });
        self.tensors(&path, begin, &metadata)
    }

    fn tensors(&mut self, path: &Path, begin: u64, metadata: &Metadata) -> Result<(), LoadError> {
        for (name, info) in metadata.tensors() {
            let (from, to) = info.data_offsets;
            let stored = Stored { dtype: info.dtype, begin: begin + from as u64, length: to - from };
            self.insert(path, name, info.shape.clone(), stored)?;
        }
        Ok(())
    }

    fn pickle(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let io = |source| LoadError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let tensors = pickle::tensors(&mut file, length).map_err(|problem| match problem {
            Problem::Io(source) => io(source),
            Problem::Broken(problem) => LoadError::Weights { file: path.clone(), problem },
        })?;
        self.sources.push(Source::File { path: path.clone(), file });
        for pickle::Tensor { name, dtype, shape, begin, length } in tensors {
            self.insert(&path, name, shape, Stored { dtype, begin, length })?;
        }
        Ok(())
    }

    fn insert(
        &mut self,
        path: &Path,
        name: String,
        shape: Vec<usize>,
        stored: Stored,
    ) -> Result<(), LoadError> {
        let entry = Entry {
            name: name.clone(),
            source: self.sources.len() - 1,
            shape,
            stored,
            used: AtomicBool::new(false),
        };
        if self.entries.insert(name.clone(), entry).is_some() {
            let problem = format!("the tensor {name} is in another file, too");
            return Err(LoadError::Weights { file: path.to_owned(), problem });
        }
        Ok(())
    }

    fn compare(&self, index: &Index, folder: &Path, file: &str) -> Result<(), LoadError> {
        let missing = index.weight_map.iter().find(|(name, _)| !self.entries.contains_key(*name));
        if let Some((name, shard)) = missing {
            let problem = format!("{shard} does not hold the tensor {name}");
            return Err(LoadError::Index { file: folder.join(file), problem });
        }
        Ok(())
    }

    fn finish(self) -> Result<Weights, LoadError> {
        let begins = |with: &str| self.entries.keys().any(|name| name.starts_with(with));
        let layout = if begins("model.vision_tower.") {
            Layout::Transformers
        } else if begins("vision_tower.") {
            Layout::Microsoft
        } else {
            let Some(first) = self.entries.keys().next().cloned() else { return Err(LoadError::NoTensors) };
            return Err(LoadError::UnknownLayout { tensors: self.entries.len(), first });
        };
        let mut entries = BTreeMap::new();
        for (name, entry) in self.entries {
            let name = match layout {
                Layout::Microsoft => transformers_name(&name),
                Layout::Transformers => name,
            };
            let stored = entry.name.clone();
            if let Some(other) = entries.insert(name, entry) {
                return Err(LoadError::Twice { first: other.name, second: stored });
            }
        }
        Ok(Weights { layout, entries, sources: self.sources, largest: f32::MAX })
    }
}

/// A safetensors header is a few dozen kilobytes here; this is the format's own limit.
const LARGEST_HEADER: u64 = 100_000_000;

/// Where the data begins, and what it holds. The whole file must be there.
fn header(path: &Path, file: &mut impl Read, length: u64) -> Result<(u64, Metadata), LoadError> {
    let broken = |problem: String| LoadError::Weights { file: path.to_owned(), problem };
    let io = |source| LoadError::Io { path: path.to_owned(), source };
    if length < 8 {
        return Err(broken(format!("it has only {length} bytes")));
    }
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(io)?;
    let header = u64::from_le_bytes(size);
    // Letters make a number that no header's length is.
    if let Some(found) = florence2_files::substitute(&size).filter(|_| header > LARGEST_HEADER) {
        return Err(broken(format!("it is {found}")));
    }
    if header > LARGEST_HEADER || header > length - 8 {
        return Err(broken(format!("its header should have {header} bytes, and the file has {length}")));
    }
    let mut bytes = vec![0; header as usize];
    file.read_exact(&mut bytes).map_err(io)?;
    // Reading it also checks that tensors lie one behind the other, each as long as its shape says.
    let metadata: Metadata = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
    let data = metadata.data_len() as u64;
    if data != length - 8 - header {
        let whole = data.saturating_add(8 + header);
        return Err(broken(format!(
            "it should have {whole} bytes and has {length}; the download may have been cut off"
        )));
    }
    Ok((8 + header, metadata))
}

impl Stored {
    fn name(&self) -> String {
        format!("{:?}", self.dtype).to_lowercase()
    }
}

/// A tensor of the right shape, not read yet.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'a> {
    entry: &'a Entry,
    source: &'a Source,
    largest: f32,
}

/// Numbers that are read at once: few enough to still be in a cache for whatever is done with them next.
const CHUNK: usize = 1 << 15;

impl Tensor<'_> {
    /// Reads as many numbers as `out` has room for, from the `begin`th on.
    pub(crate) fn read(&self, begin: usize, out: &mut [f32]) -> Result<(), LoadError> {
        let entry = self.entry;
        let dtype = entry.stored.dtype;
        match dtype {
            // Straight into their place.
            Dtype::F32 => {
                self.read_bytes(4 * begin, bytemuck::cast_slice_mut(out))?;
                if cfg!(target_endian = "big") {
                    out.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits().swap_bytes()));
                }
            }
            Dtype::F16 | Dtype::BF16 => {
                let mut halves = vec![0u16; out.len()];
                self.read_bytes(2 * begin, bytemuck::cast_slice_mut(&mut halves))?;
                if cfg!(target_endian = "big") {
                    halves.iter_mut().for_each(|bits| *bits = bits.swap_bytes());
                }
                // In slices: `half` asks for the processor's features once for each call.
                if dtype == Dtype::F16 {
                    halves.reinterpret_cast::<f16>().convert_to_f32_slice(out);
                } else {
                    halves.reinterpret_cast::<bf16>().convert_to_f32_slice(out);
                }
            }
            other => {
                let dtype = format!("{other:?}").to_lowercase();
                return Err(LoadError::Dtype { name: entry.name.clone(), dtype });
            }
        }
        // Both without an early end, which is how they become vector instructions.
        if !out.iter().fold(true, |finite, x| finite & x.is_finite()) {
            return Err(LoadError::NotFinite { name: entry.name.clone() });
        }
        if self.largest < f32::MAX && !out.iter().fold(true, |held, x| held & (x.abs() <= self.largest)) {
            return Err(LoadError::OutOfRange { name: entry.name.clone(), largest: self.largest });
        }
        Ok(())
    }

    fn read_bytes(&self, begin: usize, bytes: &mut [u8]) -> Result<(), LoadError> {
        let stored = &self.entry.stored;
        assert!(begin + bytes.len() <= stored.length, "a tensor's shape says how long it is");
        match self.source {
            Source::File { path, file } => read_at(file, stored.begin + begin as u64, bytes)
                .map_err(|source| LoadError::Io { path: path.clone(), source }),
            Source::Memory(memory) => {
                bytes.copy_from_slice(&memory[stored.begin as usize + begin..][..bytes.len()]);
                Ok(())
            }
        }
    }

    pub(crate) fn read_all(&self) -> Result<Vec<f32>, LoadError> {
        let mut values = vec![0.0; self.entry.shape.iter().product()];
        let chunks = values.par_chunks_mut(CHUNK).enumerate();
        let error = chunks.find_map_first(|(index, chunk)| self.read(index * CHUNK, chunk).err());
        error.map_or(Ok(values), Err)
    }

    fn is_same_as(&self, other: &Self) -> Result<bool, LoadError> {
        let mut values = [vec![0.0; CHUNK], vec![0.0; CHUNK]];
        let length = self.entry.shape.iter().product();
        for begin in (0..length).step_by(CHUNK) {
            let [ours, theirs] = values.each_mut().map(|values| &mut values[..CHUNK.min(length - begin)]);
            self.read(begin, ours)?;
            other.read(begin, theirs)?;
            if ours != theirs {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reads at a place of a file, whatever other threads read meanwhile.
#[cfg(unix)]
fn read_at(file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

/// Reads at a place of a file, whatever other threads read meanwhile.
#[cfg(windows)]
fn read_at(file: &File, mut at: u64, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                at += read as u64;
                bytes = &mut bytes[read..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads at a place of a file, one thread at a time.
#[cfg(not(any(unix, windows)))]
fn read_at(mut file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    static ONE: Mutex<()> = Mutex::new(());
    // Nothing that panics is done while it is held, and a position is set before each read.
    let _guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut transposed = vec![0.0; values.len()];
    for row in 0..rows {
        for column in 0..columns {
            transposed[column * rows + row] = values[row * columns + column];
        }
    }
    transposed
}

/// Parts of names inside of a block: microsoft's, and transformers'.
const BLOCK_PARTS: [(&str, &str); 12] = [
    (".conv1.fn.dw.", ".conv1."),
    (".conv2.fn.dw.", ".conv2."),
    (".window_attn.norm.", ".norm1."),
    (".channel_attn.norm.", ".norm1."),
    (".window_attn.fn.qkv.", ".window_attn.qkv."),
    (".window_attn.fn.proj.", ".window_attn.proj."),
    (".channel_attn.fn.qkv.", ".channel_attn.qkv."),
    (".channel_attn.fn.proj.", ".channel_attn.proj."),
    (".ffn.norm.", ".norm2."),
    (".ffn.fn.net.fc1.", ".ffn.fc1."),
    (".ffn.fn.net.fc2.", ".ffn.fc2."),
    (".proj.", ".conv."),
];

/// Beginnings of names: microsoft's, and transformers'.
const PREFIXES: [(&str, &str); 7] = [
    ("image_proj_norm.", "model.multi_modal_projector.image_proj_norm."),
    ("image_pos_embed.", "model.multi_modal_projector.image_position_embed."),
    ("visual_temporal_embed.", "model.multi_modal_projector.visual_temporal_embed."),
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.final_logits_bias", LOGITS_BIAS),
    ("vision_tower.", "model.vision_tower."),
];

/// The name that transformers has for one of microsoft's. A name that is not known stays what it is.
fn transformers_name(name: &str) -> String {
    if name == "image_projection" {
        return IMAGE_PROJECTION.to_owned();
    }
    let Some((with, without)) =
        PREFIXES.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| (to, rest)))
    else {
        return name.to_owned();
    };
    let mut mapped = format!("{with}{without}");
    if name.starts_with("vision_tower.") {
        // `.proj.` is also the end of an attention's name, in both layouts.
        let parts =
            if name.starts_with("vision_tower.convs.") { &BLOCK_PARTS[11..] } else { &BLOCK_PARTS[..11] };
        if let Some((from, to)) = parts.iter().find(|(from, _)| mapped.contains(from)) {
            mapped = mapped.replace(from, to);
        }
    }
    mapped
}

/// The way back, for messages.
fn microsoft_name(name: &str) -> String {
    if name == IMAGE_PROJECTION {
        return "image_projection".to_owned();
    }
    let Some((with, without)) =
        PREFIXES.iter().find_map(|(to, from)| name.strip_prefix(from).map(|rest| (to, rest)))
    else {
        return name.to_owned();
    };
    let mut mapped = format!("{with}{without}");
    if name.starts_with("model.vision_tower.") {
        let channel = name.contains(".channel_block.");
        let parts = BLOCK_PARTS.iter().filter(|(from, _)| match *from {
            ".channel_attn.norm." => channel,
            ".window_attn.norm." => !channel,
            ".proj." => name.starts_with("model.vision_tower.convs."),
            _ => true,
        });
        if let Some((to, from)) = parts.into_iter().find(|(_, from)| mapped.contains(from)) {
            mapped = mapped.replace(from, to);
        }
    }
    mapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        let cases = [
            ("vision_tower.convs.1.proj.weight", "model.vision_tower.convs.1.conv.weight"),
            ("vision_tower.convs.1.norm.bias", "model.vision_tower.convs.1.norm.bias"),
            (
                "vision_tower.blocks.2.8.spatial_block.conv1.fn.dw.weight",
                "model.vision_tower.blocks.2.8.spatial_block.conv1.weight",
            ),
            (
                "vision_tower.blocks.2.8.spatial_block.window_attn.norm.weight",
                "model.vision_tower.blocks.2.8.spatial_block.norm1.weight",
            ),
            (
                "vision_tower.blocks.0.0.channel_block.channel_attn.norm.bias",
                "model.vision_tower.blocks.0.0.channel_block.norm1.bias",
            ),
            (
                "vision_tower.blocks.0.0.channel_block.channel_attn.fn.proj.bias",
                "model.vision_tower.blocks.0.0.channel_block.channel_attn.proj.bias",
            ),
            (
                "vision_tower.blocks.0.0.spatial_block.window_attn.fn.qkv.bias",
                "model.vision_tower.blocks.0.0.spatial_block.window_attn.qkv.bias",
            ),
            (
                "vision_tower.blocks.0.0.channel_block.ffn.norm.bias",
                "model.vision_tower.blocks.0.0.channel_block.norm2.bias",
            ),
            (
                "vision_tower.blocks.0.0.channel_block.ffn.fn.net.fc2.weight",
                "model.vision_tower.blocks.0.0.channel_block.ffn.fc2.weight",
            ),
            ("image_projection", IMAGE_PROJECTION),
            ("image_proj_norm.weight", "model.multi_modal_projector.image_proj_norm.weight"),
            (
                "image_pos_embed.row_embeddings.weight",
                "model.multi_modal_projector.image_position_embed.row_embeddings.weight",
            ),
            (
                "visual_temporal_embed.pos_idx_to_embed",
                "model.multi_modal_projector.visual_temporal_embed.pos_idx_to_embed",
            ),
            (
                "language_model.model.encoder.layers.0.self_attn.q_proj.weight",
                "model.language_model.encoder.layers.0.self_attn.q_proj.weight",
            ),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("language_model.final_logits_bias", LOGITS_BIAS),
        ];
        for (microsoft, transformers) in cases {
            assert_eq!(transformers_name(microsoft), transformers);
            assert_eq!(microsoft_name(transformers), microsoft);
        }
    }
}

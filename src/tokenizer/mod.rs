//! The tokenizer of a checkpoint: sentences to ids, ids to text.
//!
//! Florence-2 has BART's byte-level BPE and 1024 tokens more. microsoft's checkpoints come without those, and their
//! processor adds them; others bring them along. Here they are added where none of them is there, and where they are is
//! asked of the result ([`TokenLayout::find`]), never assumed.
//!
//! The merging is done by the `tokenizers` crate. The files are read here: that crate panics at a merge which is longer
//! than every token, passes over a byte without a token, cuts a prompt where the file asks for truncation, and moves
//! an added token whose id does not follow on the one before. All of these are errors here, or not done.

mod decoder;
mod files;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use florence2_core::{AddedToken, LayoutError, SpecialToken, TokenLayout};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{DecoderWrapper, PostProcessorWrapper, TokenizerImpl};

use crate::{FileError, LARGEST_FILE};

pub use decoder::TokenDecoder;
use files::{Added, Vocabulary, byte_of};

/// The engine's error, whose type says nothing.
type EngineError = Box<dyn std::error::Error + Send + Sync>;

/// No vocabulary has so many tokens; a table of them is allocated.
const HIGHEST_ID: u32 = (1 << 20) - 1;

/// Sentences to ids and ids to text, as the checkpoints' own processor does it.
///
/// ```
/// # fn example() -> Result<(), florence2::TokenizerError> {
/// use florence2::Tokenizer;
///
/// let tokenizer = Tokenizer::from_folder("Florence-2-base-ft")?;
/// let ids = tokenizer.encode("What does the image describe?")?;
/// assert_eq!(ids, [0, 2264, 473, 5, 2274, 6190, 116, 2]);
/// assert_eq!(tokenizer.decode(&ids), "<s>What does the image describe?</s>");
/// # Ok(())
/// # }
/// ```
pub struct Tokenizer {
    engine: TokenizerImpl<BPE, NormalizerWrapper, ByteLevel, PostProcessorWrapper, DecoderWrapper>,
    texts: Texts,
    layout: TokenLayout,
}

impl Tokenizer {
    /// From the files of a checkpoint: `tokenizer.json`, or else `vocab.json` with `merges.txt` and, if it is there,
    /// `added_tokens.json`.
    ///
    /// `tokenizer_config.json` and `special_tokens_map.json` are not read: the special tokens are found by their text.
    ///
    /// # Errors
    ///
    /// If the files are not there, cannot be read, or are not those of a byte-level BPE that Florence-2 can use.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let folder = folder.as_ref();
        Self::read(folder).map_err(|error| match error {
            TokenizerError::Json { file, source } => TokenizerError::Json { file: folder.join(file), source },
            error => error,
        })
    }

    fn read(folder: &Path) -> Result<Self, TokenizerError> {
        let path = |name: &str| folder.join(name);
        if let Some(json) = read_if_there(&path("tokenizer.json"))? {
            return Self::from_json(&json);
        }
        let (vocab, merges) = (read_if_there(&path("vocab.json"))?, read_if_there(&path("merges.txt"))?);
        match (vocab, merges) {
            (Some(vocab), Some(merges)) => Self::from_vocab_and_merges(
                &vocab,
                &merges,
                read_if_there(&path("added_tokens.json"))?.as_deref(),
            ),
            (None, _) => Err(TokenizerError::NoFiles { folder: folder.to_owned(), missing: "vocab.json" }),
            (_, None) => Err(TokenizerError::NoFiles { folder: folder.to_owned(), missing: "merges.txt" }),
        }
    }

    /// From the text of a `tokenizer.json`.
    ///
    /// What the file says about truncation, padding and wrapping is not done: a prompt that is too long is an error of
    /// who asks, batches are padded by the network, and [`encode`](Self::encode) puts `<s>` and `</s>` around.
    ///
    /// # Errors
    ///
    /// As [`from_folder`](Self::from_folder).
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        Self::new(files::from_json(json)?)
    }

    /// From the texts of `vocab.json`, `merges.txt` and, if there is one, `added_tokens.json`.
    ///
    /// # Errors
    ///
    /// As [`from_folder`](Self::from_folder).
    pub fn from_vocab_and_merges(
        vocab: &[u8],
        merges: &[u8],
        added_tokens: Option<&[u8]>,
    ) -> Result<Self, TokenizerError> {
        Self::new(files::from_vocab_and_merges(vocab, merges, added_tokens)?)
    }

    fn new(mut vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        vocabulary.check()?;
        add_what_is_missing(&mut vocabulary)?;
        let layout = TokenLayout::find(|token| vocabulary.ids.get(token).copied())?;
        let texts = Texts::of(&vocabulary)?;
        let Vocabulary { ids, merges, added, add_prefix_space, ignore_merges } = vocabulary;
        let bpe = BPE::builder()
            .vocab_and_merges(ids.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
            .ignore_merges(ignore_merges)
            // Prompts are few and short; the cache is one for each thread, and is never freed.
            .cache_capacity(0)
            .build()
            .map_err(TokenizerError::Engine)?;
        let mut engine = TokenizerImpl::new(bpe);
        engine.with_pre_tokenizer(Some(ByteLevel::new(add_prefix_space, false, true)));
        engine.add_tokens(added.into_values().map(Added::into_engine)).map_err(TokenizerError::Engine)?;
        Ok(Self { engine, texts, layout })
    }

    /// Where the special and the added tokens stand.
    #[must_use]
    pub fn layout(&self) -> TokenLayout {
        self.layout
    }

    /// The highest id that there is. A network has at least one more row than that.
    #[must_use]
    pub fn highest_id(&self) -> u32 {
        // There are 1024 tokens at least.
        self.texts.ends.len() as u32 - 1
    }

    /// The ids of a prompt's sentence, `<s>` at the beginning and `</s>` at the end exactly once.
    ///
    /// # Errors
    ///
    /// If the `tokenizers` crate fails, which it has no reason for.
    pub fn encode(&self, sentence: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut failed = None;
        let ids = self.layout.encode(sentence, |text, ids| match self.engine.encode_fast(text, false) {
            Ok(encoding) => ids.extend_from_slice(encoding.get_ids()),
            Err(error) => failed = Some(error),
        });
        match failed {
            None => Ok(ids),
            Some(error) => Err(TokenizerError::Engine(error)),
        }
    }

    /// The text of a whole sequence, special tokens kept and white space as it is.
    ///
    /// Bytes that are not UTF-8 become U+FFFD, and ids that there are not become nothing, as in the references.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.texts.get(id));
        }
        match String::from_utf8_lossy(&bytes) {
            std::borrow::Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
            std::borrow::Cow::Owned(text) => text,
        }
    }

    /// Decodes ids as they come.
    #[must_use]
    pub fn decoder(&self) -> TokenDecoder<'_> {
        TokenDecoder::new(self)
    }

    /// The text of each token, such that all of them joined are what [`decode`](Self::decode) gives.
    ///
    /// A character may be spread over several tokens: it belongs to the last of them, and the others are empty.
    #[must_use]
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        let mut decoder = self.decoder();
        let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id)).collect();
        if let Some(last) = pieces.last_mut() {
            last.push_str(&decoder.finish());
        }
        pieces
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("highest_id", &self.highest_id())
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// Adds the 1024 tokens where there are none of them, as microsoft's processor does, and marks BART's own.
fn add_what_is_missing(vocabulary: &mut Vocabulary) -> Result<(), TokenizerError> {
    for token in SpecialToken::ALL {
        // One that is in no file is told by the layout.
        if vocabulary.ids.contains_key(token.text()) {
            let special = || Added::new(token.text(), token == SpecialToken::Mask);
            vocabulary.added.entry(token.text().to_owned()).or_insert_with(special);
        }
    }
    let names: Vec<String> = AddedToken::all().map(|token| token.to_string()).collect();
    let missing = names.iter().filter(|name| !vocabulary.ids.contains_key(*name)).count();
    if missing == names.len() {
        for (id, name) in (vocabulary.highest_id() + 1..).zip(&names) {
            vocabulary.ids.insert(name.clone(), id);
        }
    } else if missing > 0 {
        let first = names.iter().find(|name| !vocabulary.ids.contains_key(*name)).cloned();
        return Err(TokenizerError::PartlyAdded {
            found: names.len() - missing,
            missing: first.unwrap_or_default(),
        });
    }
    for name in names {
        let token = Added::new(&name, false);
        vocabulary.added.entry(name).or_insert(token);
    }
    Ok(())
}

/// What each id stands for, in bytes, one after the other.
struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    fn of(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let highest = vocabulary.highest_id();
        let mut by_id = vec![""; highest as usize + 1];
        let mut taken: HashMap<u32, &str> = HashMap::with_capacity(vocabulary.ids.len());
        for (token, &id) in &vocabulary.ids {
            if let Some(other) = taken.insert(id, token) {
                let (a, b) =
                    if other < token.as_str() { (other, token.as_str()) } else { (token.as_str(), other) };
                return Err(TokenizerError::TwoTokens { id, tokens: [a.to_owned(), b.to_owned()] });
            }
            by_id[id as usize] = token;
        }
        let mut texts = Self { bytes: Vec::new(), ends: Vec::with_capacity(by_id.len()) };
        for token in by_id {
            // An added token is its own text, and so is what is not in the alphabet of bytes.
            let spelled: Option<Vec<u8>> = match vocabulary.added.contains_key(token) {
                true => None,
                false => token.chars().map(byte_of).collect(),
            };
            match spelled {
                Some(bytes) => texts.bytes.extend(bytes),
                None => texts.bytes.extend_from_slice(token.as_bytes()),
            }
            texts.ends.push(texts.bytes.len());
        }
        Ok(texts)
    }

    /// Nothing for an id that there is not.
    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, TokenizerError> {
    florence2_files::read_if_there(path, LARGEST_FILE)
        .map_err(|source| TokenizerError::Read { path: path.to_owned(), source })
}

/// Why there is no tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A folder without the files.
    #[error(
        "{} has no tokenizer: tokenizer.json is needed, or vocab.json with merges.txt, and there is no {missing}; a \
         fine-tune has the tokenizer of the checkpoint that it began with",
        folder.display()
    )]
    NoFiles {
        /// The folder.
        folder: PathBuf,
        /// The file of the second form that is missing.
        missing: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not JSON, or not the JSON of a tokenizer; or, of `merges.txt`, no such list at all.
    #[error("{} is not a tokenizer's", file.display())]
    Json {
        /// The file, with its folder where it was read from one.
        file: PathBuf,
        /// What is wrong, and where.
        source: FileError,
    },
    /// A line of `merges.txt` that is none.
    #[error("merges.txt, line {line}: a merge is two tokens with a space between them")]
    MergeLine {
        /// Its number, from 1.
        line: usize,
    },
    /// A tokenizer of another kind.
    #[error("Florence-2's tokenizer is a byte-level BPE, and this one has {0}")]
    OtherKind(String),
    /// A byte that no text can be made of.
    #[error(
        "the vocabulary has no token for the byte 0x{0:02x}, so that not every text has ids: it is damaged, or not a byte-level BPE's"
    )]
    NoByte(u8),
    /// A merge of what there is not.
    #[error("merge {at} makes {token:?}, which is not in the vocabulary: the merges belong to another one")]
    Merge {
        /// Its place, from 1.
        at: usize,
        /// What is not there.
        token: String,
    },
    /// Two tokens of one id.
    #[error("{:?} and {:?} both have the id {id}", tokens[0], tokens[1])]
    TwoTokens {
        /// The id.
        id: u32,
        /// The tokens.
        tokens: [String; 2],
    },
    /// Two ids of one token.
    #[error("{token:?} has two ids, {} and {}", ids[0], ids[1])]
    TwoIds {
        /// The token.
        token: String,
        /// The ids, first the vocabulary's.
        ids: [u32; 2],
    },
    /// An id out of all proportion.
    #[error("the id {0} is too high: ids are below 1048576")]
    HighId(u32),
    /// Some of the added tokens.
    #[error(
        "the tokenizer has {found} of Florence-2's 1024 added tokens, and not {missing}: with all of them it can be \
         used, and with none of them they are added"
    )]
    PartlyAdded {
        /// How many there are.
        found: usize,
        /// The first that is missing.
        missing: String,
    },
    /// A special token is missing, or the added ones do not stand in a row.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// What the `tokenizers` crate says.
    #[error("the tokenizer failed")]
    Engine(#[source] EngineError),
}

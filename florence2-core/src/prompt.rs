//! From a task and its input to the sentence that the model is asked.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::chars::strip;
use crate::parse::Dialect;
use crate::task::{AnswerKind, InputKind, Task, UnknownTask};
use crate::token::Loc;

/// A region of the picture: the bins of two corners, `[x1, y1, x2, y2]`.
///
/// Its text is four location tokens. [`LocGrid::region`](crate::LocGrid::region) makes one from pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region([Loc; 4]);

impl Region {
    /// From the bins `[x1, y1, x2, y2]`.
    #[must_use]
    pub const fn new(locs: [Loc; 4]) -> Self {
        Self(locs)
    }

    /// `[x1, y1, x2, y2]`
    #[must_use]
    pub const fn locs(self) -> [Loc; 4] {
        self.0
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|loc| loc.fmt(f))
    }
}

/// `<loc_52><loc_332><loc_932><loc_774>`; white space around it is allowed, inside it is not.
impl FromStr for Region {
    type Err = RegionError;

    fn from_str(text: &str) -> Result<Self, RegionError> {
        let mut locs = [Loc::clamped(0); 4];
        let mut count = 0;
        let mut rest = strip(text);
        while !rest.is_empty() {
            let end = rest.find('>').ok_or(RegionError::NotFourLocs)? + 1;
            let (token, after) = rest.split_at(end);
            let digits = token.strip_prefix("<loc_").and_then(|rest| rest.strip_suffix('>'));
            if !digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit())) {
                return Err(RegionError::NotFourLocs);
            }
            // All digits, so what is left to go wrong is the value or its spelling.
            let loc = token.parse().map_err(|_| RegionError::OutOfRange)?;
            *locs.get_mut(count).ok_or(RegionError::NotFourLocs)? = loc;
            count += 1;
            rest = after;
        }
        if count == 4 { Ok(Self(locs)) } else { Err(RegionError::NotFourLocs) }
    }
}

/// Why a text is not a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Not four location tokens and nothing else.
    #[error("a region is four location tokens in a row, such as <loc_52><loc_332><loc_932><loc_774>")]
    NotFourLocs,
    /// A location token that the vocabulary does not hold.
    #[error("a location is one of <loc_0> to <loc_999>, written without leading zeros")]
    OutOfRange,
}

/// What a task is given besides the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskInput<'a> {
    /// For the tasks whose marker is the whole prompt.
    Nothing,
    /// A caption, an expression, or the names of things.
    Text(&'a str),
    /// A region of the picture.
    Region(Region),
}

impl<'a> From<&'a str> for TaskInput<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<Region> for TaskInput<'_> {
    fn from(region: Region) -> Self {
        Self::Region(region)
    }
}

impl From<()> for TaskInput<'_> {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

/// A prompt that can be asked: the task and its input are known to agree.
///
/// ```
/// use florence2_core::{Dialect, Prompt, Task};
///
/// let prompt = Prompt::new(Task::CaptionToPhraseGrounding, "a green car")?;
/// assert_eq!(prompt.sentence(Dialect::Microsoft), "Locate the phrases in the caption: a green car");
/// assert_eq!(prompt, "<CAPTION_TO_PHRASE_GROUNDING>a green car".parse()?);
///
/// let error = Prompt::new(Task::RegionToOcr, ()).unwrap_err();
/// assert!(error.to_string().contains("<loc_52><loc_332><loc_932><loc_774>"));
/// # Ok::<(), florence2_core::PromptError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prompt {
    /// `None`: a raw prompt, whose `input` is the whole sentence.
    task: Option<Task>,
    kind: AnswerKind,
    /// As it was given: the dialects differ in whether they trim it.
    input: String,
}

impl Prompt {
    /// A task with its input: `()`, a text, or a [`Region`].
    ///
    /// A text is taken for a task that needs a region if it is written as one.
    ///
    /// # Errors
    ///
    /// If the task and the input do not agree, or the input holds a task marker.
    pub fn new<'a>(task: Task, input: impl Into<TaskInput<'a>>) -> Result<Self, PromptError> {
        let input = match (task.input_kind(), input.into()) {
            (InputKind::Nothing, TaskInput::Nothing) => String::new(),
            (InputKind::Nothing, TaskInput::Text(text)) if strip(text).is_empty() => String::new(),
            (InputKind::Nothing, _) => return Err(PromptError::TakesNoInput(task)),
            (InputKind::Text, TaskInput::Nothing) => return Err(PromptError::NeedsText(task)),
            (InputKind::Text, TaskInput::Text(text)) => {
                if strip(text).is_empty() {
                    return Err(PromptError::NeedsText(task));
                }
                if let Some(marker) = Task::ALL.into_iter().find(|other| text.contains(other.marker())) {
                    return Err(PromptError::MarkerInInput { task, marker });
                }
                text.to_owned()
            }
            (InputKind::Text, TaskInput::Region(_)) => return Err(PromptError::TakesNoRegion(task)),
            (InputKind::Region, TaskInput::Region(region)) => alloc::format!("{region}"),
            (InputKind::Region, TaskInput::Nothing) => return Err(PromptError::NeedsRegion(task)),
            (InputKind::Region, TaskInput::Text(text)) => {
                if strip(text).is_empty() {
                    return Err(PromptError::NeedsRegion(task));
                }
                let _: Region = text.parse().map_err(|reason| PromptError::BadRegion { task, reason })?;
                text.to_owned()
            }
        };
        Ok(Self { task: Some(task), kind: task.answer_kind(), input })
    }

    /// One call for several categories, which the model was trained to take joined by `<and>`.
    ///
    /// ```
    /// use florence2_core::{Dialect, Prompt, Task};
    ///
    /// let prompt = Prompt::of_categories(Task::OpenVocabularyDetection, ["car", "yellow wall"])?;
    /// assert_eq!(prompt.sentence(Dialect::Microsoft), "Locate car<and>yellow wall in the image.");
    /// # Ok::<(), florence2_core::PromptError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Prompt::new`]; also if a category is empty, or holds `<and>` itself.
    pub fn of_categories<S: AsRef<str>>(
        task: Task,
        categories: impl IntoIterator<Item = S>,
    ) -> Result<Self, PromptError> {
        let mut joined = String::new();
        for (at, category) in categories.into_iter().enumerate() {
            let category = strip(category.as_ref());
            if category.is_empty() || category.contains("<and>") {
                return Err(PromptError::BadCategory(task));
            }
            if at > 0 {
                joined.push_str("<and>");
            }
            joined.push_str(category);
        }
        Self::new(task, joined.as_str())
    }

    /// A prompt of a fine-tune's own, asked word for word; its answer is read as `kind`.
    #[must_use]
    pub fn raw(sentence: impl Into<String>, kind: AnswerKind) -> Self {
        Self { task: None, kind, input: sentence.into() }
    }

    /// The task; `None` for a raw prompt.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        self.task
    }

    /// How the answer is to be read.
    #[must_use]
    pub fn answer_kind(&self) -> AnswerKind {
        self.kind
    }

    /// The input as it was given, empty if the task takes none; the whole sentence of a raw prompt.
    #[must_use]
    pub fn input(&self) -> &str {
        &self.input
    }

    /// The region that is asked about, if the task takes one.
    #[must_use]
    pub fn region(&self) -> Option<Region> {
        match self.task?.input_kind() {
            InputKind::Region => self.input.parse().ok(),
            InputKind::Nothing | InputKind::Text => None,
        }
    }

    /// The sentence that the model is asked, as the processor of that dialect writes it.
    ///
    /// They differ only in the white space around the input, which transformers trims.
    #[must_use]
    pub fn sentence(&self, dialect: Dialect) -> String {
        let Some(task) = self.task else { return self.input.clone() };
        let input = match dialect {
            Dialect::Microsoft => self.input.as_str(),
            Dialect::Transformers => strip(&self.input),
        };
        match task.sentence().split_once("{input}") {
            Some((before, after)) => alloc::format!("{before}{input}{after}"),
            None => task.sentence().to_owned(),
        }
    }
}

/// The marker and the input, as [`FromStr`] reads it; a raw prompt's own words.
impl fmt::Display for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(task) = self.task {
            f.write_str(task.marker())?;
        }
        f.write_str(&self.input)
    }
}

/// A marker and its input: `<CAPTION_TO_PHRASE_GROUNDING> a green car`.
///
/// As in the references the marker may stand anywhere, and more than once, and what is left is the input.
/// Beyond them, a marker at the beginning may be in any case, a task's bare name is enough where it takes no
/// input (`OD`), and white space around a marker that takes none is ignored. A prompt without a marker is an
/// error here, and a [`Prompt::raw`] where it is meant.
impl FromStr for Prompt {
    type Err = PromptError;

    fn from_str(text: &str) -> Result<Self, PromptError> {
        // The order of Task::ALL is the references' order: those without input first.
        if let Some(task) = Task::ALL.into_iter().find(|task| text.contains(task.marker())) {
            return match task.input_kind() {
                InputKind::Nothing if strip(text) == task.marker() => Self::new(task, ()),
                InputKind::Nothing => Err(PromptError::TakesNoInput(task)),
                InputKind::Text | InputKind::Region => {
                    Self::new(task, text.replace(task.marker(), "").as_str())
                }
            };
        }
        let trimmed = strip(text);
        if trimmed.starts_with('<') {
            let end = trimmed.find('>').map_or(trimmed.len(), |at| at + 1);
            let (marker, input) = trimmed.split_at(end);
            let task = marker.parse().map_err(PromptError::UnknownTask)?;
            return Self::new(task, input);
        }
        match trimmed.parse() {
            Ok(task) => Self::new(task, ()),
            Err(_) => Err(PromptError::NoMarker(UnknownTask::new(trimmed))),
        }
    }
}

/// Why a prompt cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The marker is none of the fifteen.
    #[error("{0}; a prompt of a fine-tune's own is asked as a raw prompt")]
    UnknownTask(UnknownTask),
    /// There is no marker at all.
    #[error(
        "a prompt begins with a task marker, such as <CAPTION>; {0}; a prompt of a fine-tune's own is asked as a \
         raw prompt"
    )]
    NoMarker(UnknownTask),
    /// The task's marker is its whole prompt.
    #[error("{0} takes no input: its marker must be the whole prompt")]
    TakesNoInput(Task),
    /// The task's input is missing.
    #[error("{0} needs a text after its marker, such as {0}a green car")]
    NeedsText(Task),
    /// The task's input is missing.
    #[error(
        "{0} needs a region of the image, four location tokens such as <loc_52><loc_332><loc_932><loc_774>"
    )]
    NeedsRegion(Task),
    /// The task takes a text.
    #[error("{0} takes a text, not a region of the image")]
    TakesNoRegion(Task),
    /// The task's input is not a region.
    #[error("{task}: {reason}")]
    BadRegion {
        /// The task.
        task: Task,
        /// What is wrong with the region.
        reason: RegionError,
    },
    /// The input holds a task marker, which the references would expand.
    #[error("the input of {task} holds the marker {marker}: ask one task at a time")]
    MarkerInInput {
        /// The task.
        task: Task,
        /// The marker in its input.
        marker: Task,
    },
    /// A category is empty or holds `<and>`.
    #[error("{0}: each category needs a name, without <and> in it")]
    BadCategory(Task),
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn region(bins: [u16; 4]) -> Region {
        Region(bins.map(|bin| Loc::new(bin).expect("a bin")))
    }

    #[test]
    fn regions_are_read_and_refused() {
        assert_eq!("<loc_52><loc_332><loc_932><loc_774>".parse(), Ok(region([52, 332, 932, 774])));
        assert_eq!(" <loc_0><loc_0><loc_999><loc_999>\n".parse(), Ok(region([0, 0, 999, 999])));
        for (text, error) in [
            ("", RegionError::NotFourLocs),
            ("a green car", RegionError::NotFourLocs),
            ("<loc_1><loc_2><loc_3>", RegionError::NotFourLocs),
            ("<loc_1><loc_2><loc_3><loc_4><loc_5>", RegionError::NotFourLocs),
            ("<loc_1> <loc_2><loc_3><loc_4>", RegionError::NotFourLocs),
            ("<loc_1><loc_2><loc_3><loc_4><sep>", RegionError::NotFourLocs),
            ("<loc_1><loc_2><loc_3><loc_-4>", RegionError::NotFourLocs),
            ("<loc_1><loc_2><loc_3><loc_4", RegionError::NotFourLocs),
            ("<loc_1><loc_2><loc_3><loc_1000>", RegionError::OutOfRange),
            ("<loc_1><loc_2><loc_3><loc_99999999999999999999>", RegionError::OutOfRange),
            ("<loc_1><loc_2><loc_3><loc_04>", RegionError::OutOfRange),
        ] {
            assert_eq!(text.parse::<Region>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_task_and_its_input_must_agree() {
        use PromptError as E;
        let four = region([1, 2, 3, 4]);
        assert_eq!(Prompt::new(Task::Caption, "x"), Err(E::TakesNoInput(Task::Caption)));
        assert_eq!(Prompt::new(Task::Caption, four), Err(E::TakesNoInput(Task::Caption)));
        assert_eq!(
            Prompt::new(Task::OpenVocabularyDetection, ()),
            Err(E::NeedsText(Task::OpenVocabularyDetection))
        );
        assert_eq!(
            Prompt::new(Task::OpenVocabularyDetection, " \t"),
            Err(E::NeedsText(Task::OpenVocabularyDetection))
        );
        assert_eq!(
            Prompt::new(Task::OpenVocabularyDetection, four),
            Err(E::TakesNoRegion(Task::OpenVocabularyDetection))
        );
        assert_eq!(Prompt::new(Task::RegionToOcr, ""), Err(E::NeedsRegion(Task::RegionToOcr)));
        assert!(matches!(Prompt::new(Task::RegionToOcr, "a car"), Err(E::BadRegion { .. })));
        assert_eq!(Prompt::new(Task::RegionToOcr, four).map(|p| p.region()), Ok(Some(four)));
        assert!(matches!(
            Prompt::new(Task::CaptionToPhraseGrounding, "sign <OD> here"),
            Err(E::MarkerInInput { marker: Task::ObjectDetection, .. })
        ));
    }

    #[test]
    fn every_error_says_what_to_do() {
        for (text, hint) in [
            ("<ODD>", "<CAPTION>, <DETAILED_CAPTION>"),
            ("What colour is the car?", "raw prompt"),
            ("<OCR> extra", "<OCR> takes no input"),
            ("<REFERRING_EXPRESSION_SEGMENTATION>", "needs a text"),
            ("<REGION_TO_CATEGORY>", "<loc_52><loc_332><loc_932><loc_774>"),
            ("<REGION_TO_CATEGORY><loc_1000><loc_1><loc_2><loc_3>", "<loc_0> to <loc_999>"),
            ("<region_to_category><loc_1><loc_2>", "four location tokens"),
        ] {
            let error = text.parse::<Prompt>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    /// Complaint b026: a space beside a bare marker made every caption fail.
    #[test]
    fn white_space_around_a_bare_marker_is_ignored() {
        for text in [" <CAPTION>", "<CAPTION> ", "\n<CAPTION>\t", "<caption> ", "caption"] {
            assert_eq!(text.parse(), Prompt::new(Task::Caption, ()), "{text:?}");
        }
    }

    /// Complaint b024: a marker was tokenised as it stands.
    #[test]
    fn a_marker_is_always_expanded() {
        for task in Task::ALL {
            let input = match task.input_kind() {
                InputKind::Nothing => "",
                InputKind::Text => "a green car",
                InputKind::Region => "<loc_1><loc_2><loc_3><loc_4>",
            };
            let prompt: Prompt = alloc::format!("{task}{input}").parse().expect("agrees");
            for dialect in [Dialect::Microsoft, Dialect::Transformers] {
                let sentence = prompt.sentence(dialect);
                assert!(!sentence.contains(task.marker()) && sentence.contains(input), "{sentence}");
            }
            assert_eq!(prompt.to_string().parse(), Ok(prompt));
        }
    }

    /// Complaints b030 and b094: a fine-tune's own marker and the question after it are kept.
    #[test]
    fn a_raw_prompt_is_asked_word_for_word() {
        let prompt = Prompt::raw("<DocVQA>What is the date?", AnswerKind::Text);
        assert_eq!(prompt.sentence(Dialect::Transformers), "<DocVQA>What is the date?");
        assert_eq!((prompt.task(), prompt.answer_kind()), (None, AnswerKind::Text));
    }

    /// Complaint b077: the input is passed on unchanged.
    #[test]
    fn the_input_is_passed_on_unchanged() {
        let prompt: Prompt = "<OPEN_VOCABULARY_DETECTION>person next to car".parse().expect("agrees");
        assert_eq!(prompt.sentence(Dialect::Microsoft), "Locate person next to car in the image.");
        let braces: Prompt = "<OPEN_VOCABULARY_DETECTION>{input}".parse().expect("agrees");
        assert_eq!(braces.sentence(Dialect::Microsoft), "Locate {input} in the image.");
    }

    /// Complaint b087: two prompts in, three out.
    #[test]
    fn two_prompts_in_two_prompts_out() {
        let sentences: alloc::vec::Vec<String> = ["<OPEN_VOCABULARY_DETECTION>cat", "<OD>"]
            .iter()
            .map(|text| text.parse::<Prompt>().expect("agrees").sentence(Dialect::Microsoft))
            .collect();
        assert_eq!(
            sentences,
            ["Locate cat in the image.", "Locate the objects with category name in the image."]
        );
    }

    /// Complaint b068: a question is not a prompt of Florence-2's.
    #[test]
    fn a_prompt_without_a_marker_is_told_apart() {
        assert!(matches!("What colour is the car?".parse::<Prompt>(), Err(PromptError::NoMarker(_))));
    }

    #[test]
    fn categories_are_joined_by_and() {
        let ask = |names: &[&str]| Prompt::of_categories(Task::OpenVocabularyDetection, names);
        assert_eq!(ask(&["car", " wall "]).map(|p| p.input), Ok("car<and>wall".into()));
        assert_eq!(ask(&["car", ""]), Err(PromptError::BadCategory(Task::OpenVocabularyDetection)));
        assert_eq!(ask(&["car<and>wall"]), Err(PromptError::BadCategory(Task::OpenVocabularyDetection)));
        assert_eq!(ask(&[]), Err(PromptError::NeedsText(Task::OpenVocabularyDetection)));
    }
}

//! What this project's tests, fuzz targets and benches share. No stability is promised.
//!
//! [`hostile`] makes cases out of bytes, [`laws`] says what holds for every case, and [`oracle`] reads answers a
//! second time, with the references' own regular expressions. [`TARGETS`] ties them: a fuzz target is one of its
//! functions, and the tests replay what a fuzz target once found through the same one.

pub mod conformance;
pub mod hostile;
pub mod laws;
pub mod oracle;
pub mod scripted;

use hostile::{Case, Drawn};

use crate::parse::ParseOptions;
use crate::task::AnswerKind;

/// What a fuzz target runs; it panics if a law is violated.
pub type Target = fn(&[u8]);

/// Every fuzz target by its name, which is also the name of its folder of regressions.
pub const TARGETS: [(&str, Target); 5] = [
    ("parse", parse_target),
    ("differential", differential_target),
    ("stream", stream_target),
    ("prompt", prompt_target),
    ("scored", scored_target),
];

/// Any text has an answer, which is no larger than the text.
pub fn parse_target(data: &[u8]) {
    let case = Case::from_bytes(data);
    laws::output_is_bounded(case.kind, &case.text, case.size, &case.options());
    laws::dialects_are_related(case.kind, &case.text, case.size, &case.options());
    laws::symptoms_are_total(&case.text);
}

/// The parser says what the references' regular expressions say.
pub fn differential_target(data: &[u8]) {
    let case = Case::from_bytes(data);
    laws::agrees_with_the_oracle(case.kind, &case.text, case.size, &case.options().spaced_locations(false));
}

/// The stream says what the parser says.
pub fn stream_target(data: &[u8]) {
    let case = Case::from_bytes(data);
    laws::splits_do_not_matter(case.kind, &case.text, case.size, &case.options(), &case.cuts);
}

/// Any text is a prompt or an error.
pub fn prompt_target(data: &[u8]) {
    laws::prompts_round_trip(&hostile::prompt(data));
}

/// Scores are means, and beside the point; and what is written as a target is read back.
pub fn scored_target(data: &[u8]) {
    let case = Case::from_bytes(data);
    laws::scores_do_not_change_the_answer(
        case.kind,
        &case.text,
        case.size,
        &case.options(),
        &case.cuts,
        &case.log_probs,
    );
    let drawn = Drawn::from_bytes(data);
    laws::scores_are_means(&drawn, &case.log_probs);
    laws::targets_round_trip(&drawn);
}

/// Every law about answers, for every kind of answer and in both dialects.
///
/// The oracle takes longer than all the rest, and far longer than in proportion to the text.
pub fn check_all(case: &Case) {
    laws::symptoms_are_total(&case.text);
    laws::prompts_round_trip(&case.text);
    for kind in AnswerKind::ALL {
        laws::dialects_are_related(kind, &case.text, case.size, &case.options());
        for dialect in laws::DIALECTS {
            for spaced in [false, true] {
                let options: ParseOptions<'_> = case.options().dialect(dialect).spaced_locations(spaced);
                laws::output_is_bounded(kind, &case.text, case.size, &options);
                laws::splits_do_not_matter(kind, &case.text, case.size, &options, &case.cuts);
                laws::scores_do_not_change_the_answer(
                    kind,
                    &case.text,
                    case.size,
                    &options,
                    &case.cuts,
                    &case.log_probs,
                );
            }
            let options = case.options().dialect(dialect).spaced_locations(false);
            laws::agrees_with_the_oracle(kind, &case.text, case.size, &options);
        }
    }
}

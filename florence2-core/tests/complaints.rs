//! What users of Florence-2 tools have complained of, where an answer is read. The number is that of the complaint in
//! the team's collection; those of prompts, tokens and shapes stand beside their code, and those of loading a tokenizer's
//! files (b038, b039) wait for what loads them.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use florence2_core::{
    Answer, AnswerKind, BoundingBox, Dialect, ImageSize, Labeled, LayoutError, ParseOptions, Point, Polygon,
    Quad, Symptom, Task, TokenLayout, parse, symptoms, target_text,
};

fn size(width: u32, height: u32) -> ImageSize {
    ImageSize::from_width_height(width, height).unwrap()
}

/// In microsoft's dialect.
fn read(kind: impl Into<AnswerKind>, text: &str, size: ImageSize) -> Answer {
    parse(kind, text, size, &ParseOptions::default())
}

/// Labels and coordinates, on a picture in which bin n is pixel n + 0.5.
fn boxes(kind: impl Into<AnswerKind>, text: &str) -> Vec<(String, [f32; 4])> {
    let answer = read(kind, text, size(1000, 1000));
    answer.as_boxes().unwrap().iter().map(|one| (one.label.to_string(), one.shape.to_array())).collect()
}

#[test]
fn b001_a_reversed_box_comes_as_it_was_written() {
    let found = boxes(Task::ObjectDetection, "dog<loc_500><loc_10><loc_100><loc_200>");
    assert_eq!(found, [("dog".into(), [500.5, 10.5, 100.5, 200.5])]);
}

#[test]
fn b002_b083_a_wrapper_can_be_kept_out_of_the_first_label() {
    let text =
        "</s><s><s><s>CUDA<loc_414><loc_100><loc_932><loc_100><loc_932><loc_229><loc_414><loc_229></s>";
    for (dialect, label) in [(Dialect::Transformers, "CUDA"), (Dialect::Microsoft, "</s>CUDA")] {
        let answer =
            parse(Task::OcrWithRegion, text, size(403, 500), &ParseOptions::default().dialect(dialect));
        assert_eq!(answer.as_quads().unwrap()[0].label, label);
    }
}

#[test]
fn b003_phrases_and_boxes_stay_paired() {
    let text = "</s><s>A green car<loc_54><loc_331><loc_912><loc_780>a yellow building<loc_2><loc_9><loc_998><loc_635></s>";
    let labels: Vec<String> =
        boxes(Task::CaptionToPhraseGrounding, text).into_iter().map(|(label, _)| label).collect();
    assert_eq!(labels, ["A green car", "a yellow building"]);
}

#[test]
fn b004_a_text_is_not_boxes_and_says_so_by_its_type() {
    let answer = read(Task::Ocr, "</s><s>HELLO</s>", size(640, 480));
    assert_eq!((answer.as_text(), answer.as_boxes(), answer.as_quads()), (Some("HELLO"), None, None));
}

#[test]
fn b005_an_index_past_the_end_yields_nothing() {
    let answer = read(Task::ObjectDetection, "dog<loc_1><loc_2><loc_3><loc_4>", size(640, 480));
    assert!(answer.as_boxes().unwrap().get(5).is_none());
}

#[test]
fn b008_b009_b075_nothing_found_is_an_empty_list() {
    for text in ["</s><s></s>", "<s></s>", "</s><s><s><s></s>", ""] {
        assert_eq!(read(Task::ObjectDetection, text, size(640, 640)), Answer::Boxes(Vec::new()));
        assert_eq!(read(Task::OcrWithRegion, text, size(640, 640)), Answer::Quads(Vec::new()));
        assert_eq!(read(Task::RegionToSegmentation, text, size(640, 640)), Answer::Polygons(Vec::new()));
    }
}

#[test]
fn b013_overlapping_boxes_are_all_kept() {
    let text = "cat<loc_0><loc_0><loc_100><loc_100><loc_5><loc_5><loc_105><loc_105>";
    assert_eq!(boxes(Task::CaptionToPhraseGrounding, text).len(), 2);
}

#[test]
fn b014_polygons_come_untouched() {
    let text = "</s><s><loc_100><loc_100><loc_200><loc_100><loc_200><loc_200><loc_100><loc_200></s>";
    let answer = read(Task::ReferringExpressionSegmentation, text, size(1000, 1000));
    let outline = &answer.as_polygons().unwrap()[0].shape[0];
    let corners = [(100.5, 100.5), (200.5, 100.5), (200.5, 200.5), (100.5, 200.5)];
    assert_eq!(*outline, Polygon(corners.map(|(x, y)| Point { x, y }).to_vec()));
    assert_eq!(outline.area(), 10_000.0);
}

#[test]
fn b015_each_line_has_a_quadrilateral_of_its_own() {
    let text = "A<loc_1><loc_1><loc_9><loc_1><loc_9><loc_9><loc_1><loc_9>\
                B<loc_11><loc_11><loc_19><loc_11><loc_19><loc_19><loc_11><loc_19>";
    let answer = read(Task::OcrWithRegion, text, size(1000, 1000));
    let labels: Vec<&str> = answer.as_quads().unwrap().iter().map(|one| &*one.label).collect();
    assert_eq!(labels, ["A", "B"]);
}

#[test]
fn b019_every_box_of_a_label_is_found() {
    let text = "person<loc_10><loc_20><loc_100><loc_300><loc_200><loc_20><loc_300><loc_300><loc_400><loc_20><loc_500><loc_300>";
    let found = boxes(Task::ObjectDetection, text);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|(label, _)| label == "person"));
}

#[test]
fn b025_an_echoed_marker_is_told_where_the_answer_comes_out_empty() {
    let text = "</s><s>R_WITH_REGION<poly><loc_0><loc_999></s>";
    assert!(read(Task::OcrWithRegion, text, size(640, 480)).is_empty());
    assert_eq!(symptoms(Task::OcrWithRegion, text, &ParseOptions::default()), [Symptom::EchoedMarker]);
}

#[test]
fn b031_training_text_is_the_inverse_of_the_parser() {
    let corners = [(0.5, 0.5), (9.5, 0.5), (9.5, 9.5), (0.5, 9.5)].map(|(x, y)| Point { x, y });
    let page = Answer::Quads(vec![Labeled::new("HELLO", Quad(corners))]);
    let text = target_text(AnswerKind::Quads, &page, size(1000, 1000)).unwrap();
    assert_eq!(text, "HELLO<loc_0><loc_0><loc_9><loc_0><loc_9><loc_9><loc_0><loc_9>");
    assert_eq!(read(AnswerKind::Quads, &text, size(1000, 1000)), page);
}

#[test]
fn b040_a_missing_start_token_is_named() {
    let without = |text: &str| if text == "<s>" { None } else { Some(1) };
    assert_eq!(TokenLayout::find(without), Err(LayoutError::Missing("<s>".into())));
}

#[test]
fn b075_a_tail_that_was_cut_is_dropped_and_told() {
    let text = "</s><s>dog<loc_1><loc_2><loc_3><loc_4>cat<loc_5><loc_6";
    assert_eq!(boxes(Task::ObjectDetection, text).len(), 1);
    assert_eq!(symptoms(Task::ObjectDetection, text, &ParseOptions::default()), [Symptom::Truncated]);
}

#[test]
fn b077_a_label_is_trimmed() {
    let text = "</s><s> person next to car<loc_667><loc_759><loc_998><loc_998></s>";
    assert_eq!(boxes(Task::OpenVocabularyDetection, text)[0].0, "person next to car");
}

#[test]
fn b078_white_space_between_locations_can_be_passed_over() {
    let text = "</s><s><s><s>mug <loc_295> <loc_325> <loc_781> <loc_746> </s>";
    let options = ParseOptions::default();
    assert!(parse(Task::ObjectDetection, text, size(640, 480), &options).is_empty(), "as in the references");
    assert_eq!(symptoms(Task::ObjectDetection, text, &ParseOptions::default()), [Symptom::SpacedLocations]);
    let answer = parse(Task::ObjectDetection, text, size(640, 480), &options.spaced_locations(true));
    let mug = &answer.as_boxes().unwrap()[0];
    assert_eq!(mug.label, "mug");
    assert_eq!(mug.shape.to_array(), [189.12, 156.23999, 500.16, 358.31998]);
}

/// Also: white space that no token follows stays text.
#[test]
fn b078_only_the_space_between_two_tokens_is_passed_over() {
    let options = ParseOptions::default().spaced_locations(true);
    let text = "a <loc_1>\n<loc_2>\t<loc_3> <loc_4> b c<loc_5> <loc_6> <loc_7> <loc_8>";
    let answer = parse(Task::ObjectDetection, text, size(1000, 1000), &options);
    let labels: Vec<&str> = answer.as_boxes().unwrap().iter().map(|one| &*one.label).collect();
    assert_eq!(labels, ["a", "b c"]);
    let lines = "x <loc_1> <loc_1> <loc_9> <loc_1> <loc_9> <loc_9> <loc_1> <loc_9> y";
    let answer = parse(Task::OcrWithRegion, lines, size(1000, 1000), &options);
    assert_eq!(answer.as_quads().unwrap().len(), 1);
}

#[test]
fn b081_a_thin_box_keeps_its_fractions() {
    let answer = read(Task::ObjectDetection, "x<loc_0><loc_499><loc_500><loc_999>", size(3, 1000));
    let thin = answer.as_boxes().unwrap()[0].shape;
    assert_eq!(thin.to_array(), [0.0015, 499.5, 1.5015, 999.5]);
    assert_eq!(thin.truncated(), [0, 499, 1, 999]);
}

#[test]
fn b088_a_regions_answer_can_be_read_as_boxes() {
    let text = "car<loc_52><loc_332><loc_932><loc_774>";
    assert_eq!(read(Task::RegionToCategory, text, size(640, 480)), Answer::Text(text.into()));
    let answer = read(AnswerKind::LabeledBoxes, text, size(640, 480));
    let expected = BoundingBox { x1: 33.6, y1: 159.59999, x2: 596.8, y2: 371.75998 };
    assert_eq!(answer, Answer::Boxes(vec![Labeled::new("car", expected)]));
    assert!(read(AnswerKind::LabeledBoxes, "No object detected.", size(640, 480)).is_empty());
}

#[test]
fn b089_a_polygons_label_may_have_several_words() {
    let text = "</s><s>a green car<poly><loc_100><loc_100><loc_200><loc_100><loc_200><loc_200></poly></s>";
    let answer = read(Task::OpenVocabularyDetection, text, size(1000, 1000));
    assert_eq!(answer.as_polygons().unwrap()[0].label, "a green car");
}

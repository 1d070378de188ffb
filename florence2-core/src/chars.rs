//! Python's character classes, which decide what the references accept.
//!
//! `str.strip()` and `\s` share one class, `int()` and `\d` another; neither is what [`char`] offers.

/// `str.isspace`: the Unicode white space, and the four information separators U+001C..U+001F.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()`.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.lstrip()`.
pub(crate) fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// The value of a decimal digit of any script, as `int()` reads it.
pub(crate) fn digit(c: char) -> Option<u8> {
    if c.is_ascii_digit() {
        return Some(c as u8 - b'0');
    }
    if c.is_ascii() {
        return None;
    }
    let code = c as u32;
    let after = ZEROS.partition_point(|&zero| zero <= code);
    let value = code - *ZEROS.get(after.checked_sub(1)?)?;
    // The table holds scalar values in order, and a script's ten digits stand in a row.
    u8::try_from(value).ok().filter(|&value| value < 10)
}

/// The zero of every run of ten decimal digits (general category Nd), Unicode 16.
#[rustfmt::skip]
const ZEROS: [u32; 76] = [
    0x0030, 0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6,
    0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80,
    0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0,
    0xFF10, 0x104A0, 0x10D30, 0x10D40, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0,
    0x11650, 0x116C0, 0x116D0, 0x116DA, 0x11730, 0x118E0, 0x11950, 0x11BF0, 0x11C50, 0x11D50, 0x11DA0,
    0x11F50, 0x16130, 0x16A60, 0x16AC0, 0x16B50, 0x16D70, 0x1CCF0, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC,
    0x1D7F6, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E5F1, 0x1E950, 0x1FBF0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_every_script_have_their_value() {
        for (c, value) in [('7', 7), ('٣', 3), ('１', 1), ('߉', 9), ('𝟗', 9), ('𝟎', 0), ('\u{1fbf9}', 9)]
        {
            assert_eq!(digit(c), Some(value), "{c}");
        }
        for c in ['²', '½', 'Ⅷ', '一', '/', ':', '\u{0}', '\u{10ffff}', '\u{66a}', '\u{65f}'] {
            assert_eq!(digit(c), None, "{c:?}");
        }
    }

    #[test]
    fn the_zeros_stand_in_order_ten_apart() {
        assert!(ZEROS.windows(2).all(|pair| pair[1] - pair[0] >= 10));
    }

    #[test]
    fn white_space_is_pythons() {
        let spaces: alloc::vec::Vec<u32> =
            (0..=0x0011_0000).filter(|&c| char::from_u32(c).is_some_and(is_space)).collect();
        #[rustfmt::skip]
        let python = [
            0x9, 0xa, 0xb, 0xc, 0xd, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x85, 0xa0, 0x1680, 0x2000, 0x2001, 0x2002,
            0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000,
        ];
        assert_eq!(spaces, python);
    }
}

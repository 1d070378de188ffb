//! Weights that are packed in blocks of four bits, as ONNX Runtime's own operators take them.

/// The shape of a packed matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    /// Numbers with one scale.
    block: usize,
}

impl Blocks {
    /// From a node's attributes.
    pub(crate) fn of(attribute: impl Fn(&str) -> Option<i64>) -> Result<Self, String> {
        let number = |name: &str| {
            let value = attribute(name).and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
            value.ok_or_else(|| format!("lacks its {name}"))
        };
        let blocks = Self { outputs: number("N")?, inputs: number("K")?, block: number("block_size")? };
        if blocks.outputs.checked_mul(blocks.inputs).is_none() {
            return Err("has no size".to_owned());
        }
        Ok(blocks)
    }
}

/// `MatMulNBits`: `[outputs][blocks][block / 2]` bytes, the lower half of a byte first; a number is `(q - zero) * scale`,
/// with zero 8 where none are stored (`[outputs][blocks / 2]` bytes, rounded up). Gives `[inputs][outputs]`.
pub(crate) fn four_bits(
    shape: Blocks,
    packed: &[u8],
    scales: &[f32],
    zeros: Option<&[u8]>,
) -> Result<Vec<f32>, String> {
    let Blocks { outputs, inputs, block } = shape;
    let blocks = inputs.div_ceil(block);
    let bytes = block.div_ceil(2);
    let zero_bytes = blocks.div_ceil(2);
    let fits = blocks.checked_mul(bytes).and_then(|row| row.checked_mul(outputs)) == Some(packed.len())
        && outputs.checked_mul(blocks) == Some(scales.len())
        && zeros.is_none_or(|zeros| outputs.checked_mul(zero_bytes) == Some(zeros.len()));
    if !fits {
        return Err("has other numbers of weights, scales or zero points than its shape says".to_owned());
    }
    let nibble = |byte: u8, index: usize| if index.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    let mut values = vec![0.0; inputs * outputs];
    for output in 0..outputs {
        for input in 0..inputs {
            let (at, within) = (input / block, input % block);
            let q = nibble(packed[(output * blocks + at) * bytes + within / 2], within);
            let zero = zeros.map_or(8, |zeros| nibble(zeros[output * zero_bytes + at / 2], at));
            values[input * outputs + output] =
                (f32::from(q) - f32::from(zero)) * scales[output * blocks + at];
        }
    }
    Ok(values)
}

/// The numbers that bitsandbytes' 4-bit floats stand for.
pub(crate) const FP4: [f32; 16] = [
    0.0,
    0.005_208_333_3,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -0.005_208_333_3,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];

/// Quantiles of the normal distribution, as in the QLoRA paper.
pub(crate) const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// `MatMulBnb4`: the matrix `[outputs][inputs]` as one row of numbers, two in a byte, the upper half first; a number is the
/// table's at that place times the scale of its block. Gives `[inputs][outputs]`.
pub(crate) fn bnb4(
    shape: Blocks,
    packed: &[u8],
    scales: &[f32],
    table: &[f32; 16],
) -> Result<Vec<f32>, String> {
    let Blocks { outputs, inputs, block } = shape;
    let length = outputs * inputs;
    if packed.len() != length.div_ceil(2) || scales.len() != length.div_ceil(block) {
        return Err("has other numbers of weights or scales than its shape says".to_owned());
    }
    let mut values = vec![0.0; length];
    for index in 0..length {
        let byte = packed[index / 2];
        let q = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
        values[index % inputs * outputs + index / inputs] = table[usize::from(q)] * scales[index / block];
    }
    Ok(values)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use super::*;

    fn blocks(outputs: i64, inputs: i64, block: i64) -> Blocks {
        Blocks::of(|name| {
            Some(if name == "N" {
                outputs
            } else if name == "K" {
                inputs
            } else {
                block
            })
        })
        .unwrap()
    }

    #[test]
    fn blocks_of_four_bits_are_unpacked_in_their_order() {
        // Two outputs of five inputs, in blocks of four: two blocks each, of which the second has one number.
        let packed = [0x21, 0x43, 0x05, 0x00, 0xfe, 0xdc, 0x0b, 0x00];
        let scales = [1.0, 10.0, 100.0, 1000.0];
        let found = four_bits(blocks(2, 5, 4), &packed, &scales, None).unwrap();
        let first = [-7.0, -6.0, -5.0, -4.0, -30.0];
        let second = [600.0, 700.0, 400.0, 500.0, 3000.0];
        let expected: Vec<f32> = first.into_iter().zip(second).flat_map(|(a, b)| [a, b]).collect();
        assert_eq!(found, expected);
        // Zero points: one byte for the two blocks of an output.
        let found = four_bits(blocks(2, 5, 4), &packed, &scales, Some(&[0x51, 0xf0])).unwrap();
        assert_eq!(found[..2], [0.0, 1400.0]);
        assert_eq!(found[8..], [0.0, -4000.0]);
    }

    #[test]
    fn four_bit_floats_are_unpacked_across_rows() {
        // Two outputs of three inputs as one row of six, in blocks of four.
        let found = bnb4(blocks(2, 3, 4), &[0xf0, 0x7f, 0x0f], &[2.0, 3.0], &NF4).unwrap();
        assert_eq!(found, [2.0, 2.0, -2.0, -3.0, 0.0, 3.0]);
        let found = bnb4(blocks(2, 3, 4), &[0x3b, 0x02, 0x50], &[1.0, 1.0], &FP4).unwrap();
        assert_eq!(found, [1.0, 0.666_666_7, -1.0, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn other_lengths_than_the_shape_asks_for_are_refused() {
        assert!(four_bits(blocks(2, 5, 4), &[0; 7], &[1.0; 4], None).is_err());
        assert!(four_bits(blocks(2, 5, 4), &[0; 8], &[1.0; 3], None).is_err());
        assert!(four_bits(blocks(2, 5, 4), &[0; 8], &[1.0; 4], Some(&[0])).is_err());
        assert!(bnb4(blocks(2, 3, 4), &[0; 2], &[1.0; 2], &NF4).is_err());
        assert!(bnb4(blocks(2, 3, 4), &[0; 3], &[1.0; 1], &NF4).is_err());
        let huge = blocks(i64::MAX / 2, 2, 1 << 40);
        assert!(four_bits(huge, &[], &[], None).is_err() && bnb4(huge, &[], &[], &NF4).is_err());
    }
}

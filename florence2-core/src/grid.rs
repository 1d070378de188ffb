//! The thousand bins of each axis, and the pixels that they stand for.
//!
//! All arithmetic is `f32`, as in torch, so that every coordinate has the references' own bits.

use alloc::vec::Vec;

use crate::geometry::{BoundingBox, ImageSize, Point, Polygon, Quad, SizeError};
use crate::prompt::Region;
use crate::token::Loc;

/// The 1000 × 1000 bins over one picture.
///
/// ```
/// use florence2_core::{ImageSize, Loc, LocGrid, Point};
///
/// let grid = LocGrid::from(ImageSize::from_width_height(1000, 1000)?);
/// let bins = [401, 232].map(|bin| Loc::new(bin).unwrap());
/// assert_eq!(grid.dequantize_point(bins), Point { x: 401.5, y: 232.5 });
/// assert_eq!(grid.quantize_point(Point { x: 401.5, y: 232.5 }), bins);
/// # Ok::<(), florence2_core::SizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocGrid {
    width: f64,
    height: f64,
    per_bin_x: f32,
    per_bin_y: f32,
}

impl From<ImageSize> for LocGrid {
    fn from(size: ImageSize) -> Self {
        Self::over(f64::from(size.width()), f64::from(size.height()))
    }
}

impl LocGrid {
    /// Over an extent that is not in whole pixels, such as a picture scaled for display; the references take
    /// such sizes too.
    ///
    /// # Errors
    ///
    /// If an extent is not a positive number, over `u32::MAX`, or under 1.2e-35.
    pub fn from_extent(width: f64, height: f64) -> Result<Self, SizeError> {
        // Below, the step from bin to bin is no `f32` any more.
        let least = f64::from(f32::MIN_POSITIVE) * f64::from(Loc::COUNT);
        let fits = |extent: f64| extent >= least && extent <= f64::from(u32::MAX);
        if fits(width) && fits(height) { Ok(Self::over(width, height)) } else { Err(SizeError::OutOfRange) }
    }

    fn over(width: f64, height: f64) -> Self {
        let bins = f64::from(Loc::COUNT);
        // The quotient is Python's, in f64; torch narrows it where it meets an f32 tensor.
        Self { width, height, per_bin_x: (width / bins) as f32, per_bin_y: (height / bins) as f32 }
    }

    /// The width that it lies over, in pixels.
    #[must_use]
    pub fn width(&self) -> f64 {
        self.width
    }

    /// The height that it lies over, in pixels.
    #[must_use]
    pub fn height(&self) -> f64 {
        self.height
    }

    /// The centre of any two bins: an answer may name `<loc_5000>`, which the references carry on.
    pub(crate) fn point_of_bins(&self, x: u64, y: u64) -> Point {
        Point { x: (x as f32 + 0.5) * self.per_bin_x, y: (y as f32 + 0.5) * self.per_bin_y }
    }

    /// The same in `f64`, narrowed at the end.
    pub(crate) fn point_of_bins_wide(&self, x: u64, y: u64) -> Point {
        let centre = |bin: u64, extent: f64| ((bin as f64 + 0.5) * (extent / f64::from(Loc::COUNT))) as f32;
        Point { x: centre(x, self.width), y: centre(y, self.height) }
    }

    /// The centre of two bins, in pixels.
    #[must_use]
    pub fn dequantize_point(&self, [x, y]: [Loc; 2]) -> Point {
        self.point_of_bins(x.bin().into(), y.bin().into())
    }

    /// The box whose corners are the centres of the bins `[x1, y1, x2, y2]`.
    #[must_use]
    pub fn dequantize_box(&self, [x1, y1, x2, y2]: [Loc; 4]) -> BoundingBox {
        let (a, b) = (self.dequantize_point([x1, y1]), self.dequantize_point([x2, y2]));
        BoundingBox { x1: a.x, y1: a.y, x2: b.x, y2: b.y }
    }

    /// The quadrilateral whose corners are the centres of the bins `[x1, y1, … x4, y4]`.
    #[must_use]
    pub fn dequantize_quad(&self, [a, b, c, d, e, f, g, h]: [Loc; 8]) -> Quad {
        Quad([[a, b], [c, d], [e, f], [g, h]].map(|pair| self.dequantize_point(pair)))
    }

    /// The outline through the centres of the bins.
    #[must_use]
    pub fn dequantize_polygon(&self, bins: &[[Loc; 2]]) -> Polygon {
        Polygon(bins.iter().map(|&pair| self.dequantize_point(pair)).collect())
    }

    /// The bins that a point lies in; a point outside goes to the nearest bin, and what is no number to bin 0.
    #[must_use]
    pub fn quantize_point(&self, point: Point) -> [Loc; 2] {
        [quantize(point.x, self.per_bin_x), quantize(point.y, self.per_bin_y)]
    }

    /// The bins `[x1, y1, x2, y2]` of a box's corners, as [`quantize_point`](Self::quantize_point) gives them.
    #[must_use]
    pub fn quantize_box(&self, shape: BoundingBox) -> [Loc; 4] {
        let [x1, y1] = self.quantize_point(Point { x: shape.x1, y: shape.y1 });
        let [x2, y2] = self.quantize_point(Point { x: shape.x2, y: shape.y2 });
        [x1, y1, x2, y2]
    }

    /// The bins of the corners.
    #[must_use]
    pub fn quantize_quad(&self, shape: Quad) -> [Loc; 8] {
        let [[a, b], [c, d], [e, f], [g, h]] = shape.0.map(|point| self.quantize_point(point));
        [a, b, c, d, e, f, g, h]
    }

    /// The bins of the outline's points.
    #[must_use]
    pub fn quantize_polygon(&self, shape: &Polygon) -> Vec<[Loc; 2]> {
        shape.0.iter().map(|&point| self.quantize_point(point)).collect()
    }

    /// A region in pixels as the four location tokens that a prompt takes; a reversed box is turned round first.
    ///
    /// ```
    /// use florence2_core::{BoundingBox, ImageSize, LocGrid};
    ///
    /// let grid = LocGrid::from(ImageSize::from_width_height(640, 480)?);
    /// let region = grid.region(BoundingBox { x1: 33.6, y1: 159.7, x2: 596.8, y2: 371.8 })?;
    /// assert_eq!(region.to_string(), "<loc_52><loc_332><loc_932><loc_774>");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a coordinate is no number, or the box lies wholly outside of the picture: clamped, it would ask about a
    /// part of the picture that was not meant.
    pub fn region(&self, pixels: BoundingBox) -> Result<Region, PixelRegionError> {
        if pixels.to_array().iter().any(|v| !v.is_finite()) {
            return Err(PixelRegionError::NotANumber);
        }
        let held = pixels.normalized();
        let outside = f64::from(held.x1) >= self.width || f64::from(held.y1) >= self.height;
        if outside || held.x2 < 0.0 || held.y2 < 0.0 {
            return Err(PixelRegionError::Outside { width: self.width, height: self.height });
        }
        Ok(Region::new(self.quantize_box(held)))
    }
}

/// Why a box in pixels is no region of the picture.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PixelRegionError {
    /// A coordinate is infinite or not a number.
    #[error("a coordinate of the region is not a number")]
    NotANumber,
    /// No part of the box is in the picture.
    #[error("the region lies outside of the picture, which is {width} pixels wide and {height} high")]
    Outside {
        /// The picture's width in pixels.
        width: f64,
        /// The picture's height in pixels.
        height: f64,
    },
}

/// `floor(v / per_bin)`, held within 0..=999. A cast cuts towards zero, which is the floor of all that the clamp
/// lets through, and sends what is no number to 0.
fn quantize(v: f32, per_bin: f32) -> Loc {
    Loc::clamped((v / per_bin) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(width: u32, height: u32) -> LocGrid {
        ImageSize::from_width_height(width, height).expect("not zero").into()
    }

    /// Complaint b090: a port left out the half bin.
    #[test]
    fn a_bin_stands_for_its_centre() {
        let bins = [401, 232, 741, 854].map(|bin| Loc::new(bin).expect("a bin"));
        assert_eq!(grid(1000, 1000).dequantize_box(bins).to_array(), [401.5, 232.5, 741.5, 854.5]);
    }

    /// Complaint b084: a docstring has width and height the wrong way round.
    #[test]
    fn the_width_scales_x_and_the_height_y() {
        let last = Loc::new(999).expect("a bin");
        let point = grid(640, 480).dequantize_point([last, last]);
        assert!((point.x - 639.68).abs() < 1e-3 && (point.y - 479.76).abs() < 1e-3, "{point:?}");
    }

    #[test]
    fn every_bin_of_every_size_comes_back() {
        for size in 1..=4096 {
            let grid = grid(size, size);
            for bin in 0..1000 {
                let loc = Loc::new(bin).expect("a bin");
                assert_eq!(
                    grid.quantize_point(grid.dequantize_point([loc, loc])),
                    [loc, loc],
                    "{size} {bin}"
                );
            }
        }
    }

    /// torch's results for every size and every bin, as `tools/golden_bins.py` sums them up.
    #[test]
    fn every_bin_of_every_size_has_the_references_bits() {
        let (mut microsoft, mut transformers, mut edges) = (0_u64, 0_u64, 0_u64);
        let mut weight = 1_u64;
        for size in 1..=4096 {
            let grid = grid(size, size);
            for bin in 0..1000 {
                let pixel = grid.point_of_bins(bin, bin).x;
                let edge = bin as f32 * grid.per_bin_x;
                for (sum, value) in [
                    (&mut microsoft, u64::from(pixel.to_bits())),
                    (&mut transformers, pixel as u64),
                    (&mut edges, u64::from(quantize(edge, grid.per_bin_x).bin())),
                ] {
                    *sum = sum.wrapping_add(value.wrapping_mul(weight));
                }
                weight += 2;
            }
        }
        assert_eq!(microsoft, 0x8a1a_d3c3_2e7f_6fca);
        assert_eq!(transformers, 0x0051_5ecd_e511_332e);
        assert_eq!(edges, 0x001d_c599_fcd4_b741);
    }

    #[test]
    fn points_outside_go_to_the_nearest_bin() {
        let bins = |x, y| grid(100, 100).quantize_point(Point { x, y }).map(Loc::bin);
        assert_eq!(bins(-0.01, 100.0), [0, 999]);
        assert_eq!(bins(f32::INFINITY, f32::NEG_INFINITY), [999, 0]);
        assert_eq!(bins(1e30, f32::NAN), [999, 0]);
    }

    #[test]
    fn a_region_outside_of_the_picture_is_refused() {
        let region = |x1, y1, x2, y2| grid(100, 50).region(BoundingBox { x1, y1, x2, y2 });
        assert!(matches!(region(100.0, 0.0, 120.0, 10.0), Err(PixelRegionError::Outside { .. })));
        assert!(matches!(region(0.0, -9.0, 10.0, -1.0), Err(PixelRegionError::Outside { .. })));
        assert_eq!(region(0.0, f32::NAN, 10.0, 1.0), Err(PixelRegionError::NotANumber));
        let turned = region(120.0, 60.0, 10.0, 5.0).expect("partly inside");
        assert_eq!(turned.locs().map(Loc::bin), [100, 100, 999, 999]);
    }

    #[test]
    fn extents_need_not_be_whole() {
        for (width, height) in
            [(0.0, 1.0), (1.0, -1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (5e9, 1.0), (1e-36, 1.0)]
        {
            assert_eq!(LocGrid::from_extent(width, height), Err(SizeError::OutOfRange));
        }
        let grid = LocGrid::from_extent(640.5, 480.25).expect("an extent");
        assert_eq!(grid.point_of_bins(10, 20), Point { x: 6.725_250_2, y: 9.845_125 });
    }
}

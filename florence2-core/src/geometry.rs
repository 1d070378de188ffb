//! Sizes, points, boxes, quadrilaterals and polygons, in pixels of the original picture.

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use core::str::FromStr;

/// The width and the height of a picture in pixels; neither is zero.
///
/// There is no constructor from a bare pair, so that the two cannot be swapped unseen: the name of each says the
/// order that it takes.
///
/// ```
/// use florence2_core::ImageSize;
///
/// let size = ImageSize::from_width_height(640, 480)?;
/// assert_eq!(size, "640x480".parse()?);
/// assert_eq!(size, ImageSize::from_height_width(480, 640)?);
/// assert_eq!((size.width(), size.height()), (640, 480));
/// # Ok::<(), florence2_core::SizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ImageSize {
    width: NonZeroU32,
    height: NonZeroU32,
}

impl ImageSize {
    /// Width first, as image libraries and the references have it.
    ///
    /// # Errors
    ///
    /// If one of the two is zero.
    pub const fn from_width_height(width: u32, height: u32) -> Result<Self, SizeError> {
        match (NonZeroU32::new(width), NonZeroU32::new(height)) {
            (Some(width), Some(height)) => Ok(Self { width, height }),
            _ => Err(SizeError::Zero),
        }
    }

    /// Height first, as arrays and tensors have it.
    ///
    /// # Errors
    ///
    /// If one of the two is zero.
    pub const fn from_height_width(height: u32, width: u32) -> Result<Self, SizeError> {
        Self::from_width_height(width, height)
    }

    /// Pixels from left to right.
    #[must_use]
    pub const fn width(self) -> u32 {
        self.width.get()
    }

    /// Pixels from top to bottom.
    #[must_use]
    pub const fn height(self) -> u32 {
        self.height.get()
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// `640x480`: width, then height.
impl FromStr for ImageSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let (width, height) = text.trim().split_once(['x', 'X', '×']).ok_or(SizeError::Unreadable)?;
        let number = |text: &str| {
            // `u32::from_str` takes a sign, which is a slip here; what is left to go wrong is the value.
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if digits { text.parse().map_err(|_| SizeError::OutOfRange) } else { Err(SizeError::Unreadable) }
        };
        Self::from_width_height(number(width)?, number(height)?)
    }
}

/// Why something is not the size of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// Zero pixels wide or high.
    #[error("a picture is at least one pixel wide and one pixel high")]
    Zero,
    /// Not written as a size.
    #[error("a size is written WIDTHxHEIGHT in whole pixels, such as 640x480")]
    Unreadable,
    /// Not a positive number, or larger than any picture.
    #[error("the extent of a picture is a positive number of pixels, at most 4294967295")]
    OutOfRange,
}

/// A point; x grows to the right, y grows downwards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Point {
    /// From the left edge.
    pub x: f32,
    /// From the top edge.
    pub y: f32,
}

/// Two opposite corners, in the order that the model wrote them.
///
/// The model may write a box from right to left or upwards: [`normalized`](Self::normalized) turns it the right
/// way round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BoundingBox {
    /// The first corner's x.
    pub x1: f32,
    /// The first corner's y.
    pub y1: f32,
    /// The second corner's x.
    pub x2: f32,
    /// The second corner's y.
    pub y2: f32,
}

impl BoundingBox {
    /// The same rectangle with `x1 <= x2` and `y1 <= y2`.
    #[must_use]
    pub fn normalized(self) -> Self {
        Self {
            x1: self.x1.min(self.x2),
            y1: self.y1.min(self.y2),
            x2: self.x1.max(self.x2),
            y2: self.y1.max(self.y2),
        }
    }

    /// `[x1, y1, x2, y2]`
    #[must_use]
    pub const fn to_array(self) -> [f32; 4] {
        [self.x1, self.y1, self.x2, self.y2]
    }

    /// Whole pixels: each coordinate cut towards zero, and held within `i32`.
    ///
    /// This is what the transformers dialect does to every coordinate, except that it saturates. A box of a
    /// small picture may collapse: prefer the floating-point form.
    #[must_use]
    pub fn truncated(self) -> [i32; 4] {
        self.to_array().map(|v| v as i32)
    }

    /// The distance between its sides, never negative.
    #[must_use]
    pub fn width(self) -> f32 {
        (self.x2 - self.x1).abs()
    }

    /// The distance between its top and its bottom, never negative.
    #[must_use]
    pub fn height(self) -> f32 {
        (self.y2 - self.y1).abs()
    }

    /// Square pixels.
    #[must_use]
    pub fn area(self) -> f32 {
        self.width() * self.height()
    }

    /// The smallest one that holds all the points; `None` if there are none.
    #[must_use]
    pub fn around(points: &[Point]) -> Option<Self> {
        let (first, rest) = points.split_first()?;
        let start = Self { x1: first.x, y1: first.y, x2: first.x, y2: first.y };
        Some(rest.iter().fold(start, |held, p| Self {
            x1: held.x1.min(p.x),
            y1: held.y1.min(p.y),
            x2: held.x2.max(p.x),
            y2: held.y2.max(p.y),
        }))
    }
}

/// Four corners in the order that the model wrote them: for text, from its upper left, clockwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Quad(pub [Point; 4]);

impl Quad {
    /// `[x1, y1, … x4, y4]`
    #[must_use]
    pub const fn to_array(self) -> [f32; 8] {
        let [a, b, c, d] = self.0;
        [a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y]
    }

    /// The smallest box around it.
    #[must_use]
    pub fn bounding_box(self) -> BoundingBox {
        BoundingBox::around(&self.0).unwrap_or_default()
    }

    /// Square pixels.
    #[must_use]
    pub fn area(self) -> f32 {
        area(&self.0)
    }
}

/// A closed outline; the last point joins the first.
///
/// It may have fewer than three points, and none at all: the model may write an outline of one location, of
/// which both references make an empty one.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Polygon(pub Vec<Point>);

impl Polygon {
    /// The smallest box around it; `None` if it has no point.
    #[must_use]
    pub fn bounding_box(&self) -> Option<BoundingBox> {
        BoundingBox::around(&self.0)
    }

    /// Square pixels, by the shoelace formula. Where an outline crosses itself the parts count against each other.
    #[must_use]
    pub fn area(&self) -> f32 {
        area(&self.0)
    }

    /// The pixels of row `y` whose centres lie inside, as ranges of columns from left to right, by the even-odd
    /// rule and cut to `0..width`.
    ///
    /// A mask of a whole picture is every row's ranges; of several outlines (`<sep>`), the union of theirs. Time
    /// grows with the number of points, not with the picture.
    ///
    /// ```
    /// use florence2_core::{Point, Polygon};
    ///
    /// let triangle = Polygon(vec![Point { x: 0.0, y: 0.0 }, Point { x: 4.0, y: 0.0 }, Point { x: 0.0, y: 4.0 }]);
    /// assert_eq!(triangle.row(0, 640), [0..3]);
    /// assert_eq!(triangle.row(3, 640), []);
    /// ```
    #[must_use]
    pub fn row(&self, y: u32, width: u32) -> Vec<core::ops::Range<u32>> {
        let centre = f64::from(y) + 0.5;
        let mut crossings: Vec<f64> = edges(&self.0)
            .filter(|(a, b)| (f64::from(a.y) <= centre) != (f64::from(b.y) <= centre))
            .map(|(a, b)| {
                let share = (centre - f64::from(a.y)) / (f64::from(b.y) - f64::from(a.y));
                f64::from(a.x) + share * (f64::from(b.x) - f64::from(a.x))
            })
            .collect();
        crossings.sort_by(f64::total_cmp);
        // The first column whose centre is not left of x; a cast saturates and sends what is no number to 0.
        let column = |x: f64| (libm::ceil(x - 0.5) as u32).min(width);
        crossings
            .chunks_exact(2)
            .map(|pair| column(pair[0])..column(pair[1]))
            .filter(|columns| !columns.is_empty())
            .collect()
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::ImageSize;
    use core::fmt;
    use serde::de::value::MapAccessDeserializer;
    use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

    /// Only with its names: a derived implementation takes a bare pair, too.
    impl<'de> Deserialize<'de> for ImageSize {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            #[derive(serde::Deserialize)]
            struct Named {
                width: u32,
                height: u32,
            }
            struct OfMap;
            impl<'de> Visitor<'de> for OfMap {
                type Value = ImageSize;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a size with its width and its height by name")
                }

                fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ImageSize, A::Error> {
                    let Named { width, height } = Named::deserialize(MapAccessDeserializer::new(map))?;
                    ImageSize::from_width_height(width, height).map_err(Error::custom)
                }
            }
            deserializer.deserialize_struct("ImageSize", &["width", "height"], OfMap)
        }
    }
}

fn edges(points: &[Point]) -> impl Iterator<Item = (&Point, &Point)> {
    points.iter().zip(points.iter().cycle().skip(1))
}

fn area(points: &[Point]) -> f32 {
    let cross = |(a, b): (&Point, &Point)| f64::from(a.x) * f64::from(b.y) - f64::from(b.x) * f64::from(a.y);
    (edges(points).map(cross).sum::<f64>() / 2.0).abs() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_refused() {
        for (text, expected) in [
            ("640x480", Ok((640, 480))),
            (" 3X1000 ", Ok((3, 1000))),
            ("0x5", Err(SizeError::Zero)),
            ("5x0", Err(SizeError::Zero)),
            ("", Err(SizeError::Unreadable)),
            ("640", Err(SizeError::Unreadable)),
            ("640x", Err(SizeError::Unreadable)),
            ("+640x480", Err(SizeError::Unreadable)),
            ("-1x480", Err(SizeError::Unreadable)),
            ("1.5x480", Err(SizeError::Unreadable)),
            ("4294967296x1", Err(SizeError::OutOfRange)),
            ("1x2x3", Err(SizeError::Unreadable)),
        ] {
            let size = text.parse::<ImageSize>().map(|size| (size.width(), size.height()));
            assert_eq!(size, expected, "{text}");
        }
    }

    /// Complaint b001: drawing a reversed box crashed.
    #[test]
    fn a_reversed_box_can_be_turned_round() {
        let reversed = BoundingBox { x1: 320.0, y1: 5.0, x2: 64.0, y2: 96.0 };
        let turned = BoundingBox { x1: 64.0, y1: 5.0, x2: 320.0, y2: 96.0 };
        assert_eq!(reversed.normalized(), turned);
        assert_eq!(turned.normalized(), turned);
        assert_eq!((reversed.width(), reversed.height(), reversed.area()), (256.0, 91.0, 256.0 * 91.0));
    }

    /// Complaint b081: the integer form is explicit, cuts towards zero, and saturates.
    #[test]
    fn whole_pixels_are_cut_towards_zero_and_saturate() {
        let wild = BoundingBox { x1: 0.9, y1: -0.9, x2: 64e9, y2: -64e9 };
        assert_eq!(wild.truncated(), [0, 0, i32::MAX, i32::MIN]);
    }

    /// Complaint b014: people want to judge a polygon: its area, its box, its mask.
    #[test]
    fn a_polygon_has_an_area_a_box_and_a_mask() {
        let square = Polygon(
            [(10.0, 10.0), (20.0, 10.0), (20.0, 20.0), (10.0, 20.0)].map(|(x, y)| Point { x, y }).to_vec(),
        );
        assert_eq!(square.area(), 100.0);
        assert_eq!(square.bounding_box(), Some(BoundingBox { x1: 10.0, y1: 10.0, x2: 20.0, y2: 20.0 }));
        let filled: u32 =
            (0..32).flat_map(|y| square.row(y, 32)).map(|columns| columns.end - columns.start).sum();
        assert_eq!(filled, 100);
        assert_eq!(square.row(15, 14).as_slice(), core::slice::from_ref(&(10..14)), "cut to the picture");
        assert_eq!((square.row(9, 32), square.row(20, 32)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn degenerate_outlines_are_empty_not_a_panic() {
        for points in [
            Vec::new(),
            alloc::vec![Point::default()],
            alloc::vec![Point { x: f32::NAN, y: f32::INFINITY }; 3],
        ] {
            let polygon = Polygon(points);
            assert!(polygon.row(0, 10).is_empty());
            assert!(polygon.area() == 0.0 || polygon.area().is_nan());
        }
        assert_eq!(Polygon::default().bounding_box(), None);
    }
}

//! The network in candle's operators, for whatever device candle has.
//!
//! The plain way to write it: no kernel is assumed but candle's own. It is also the second implementation that the one
//! in [`cpu`](crate::cpu) is compared with.

mod text;
mod vision;

use candle_core::{DType, Device as Target, Result, Tensor};
use florence2_core::PixelValues;

pub(crate) use text::State;

use crate::config::NetworkConfig;
use crate::error::LoadError;
use crate::model::{Device, Dtype};
use crate::weights::Weights;

/// Weights on a device.
#[derive(Debug)]
pub(crate) struct Network {
    place: Place,
    vision: vision::Vision,
    text: text::Text,
}

/// Where tensors are, and of which type.
#[derive(Clone, Debug)]
struct Place {
    device: Target,
    dtype: DType,
}

impl Network {
    pub(crate) fn load(
        weights: &Weights,
        config: &NetworkConfig,
        device: Device,
        dtype: Dtype,
    ) -> std::result::Result<Self, LoadError> {
        if matches!((device, dtype), (Device::Cpu | Device::CandleCpu, Dtype::Bf16)) {
            return Err(LoadError::DeviceDtype { device: device.to_string(), dtype: dtype.to_string() });
        }
        let target = match device {
            Device::Cpu | Device::CandleCpu => Ok(Target::Cpu),
            Device::Cuda(index) => Target::new_cuda(index),
            Device::Metal(index) => Target::new_metal(index),
        };
        let target = target.map_err(|source| LoadError::Device { device: device.to_string(), source })?;
        let dtype = match dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::Bf16 => DType::BF16,
        };
        let place = Place { device: target, dtype };
        let vision = vision::Vision::load(weights, &config.vision, &place)?;
        let text = text::Text::load(weights, &config.text, &place)?;
        Ok(Self { place, vision, text })
    }

    /// Positions of the encoder and of the decoder.
    pub(crate) fn positions(&self) -> (usize, usize) {
        self.text.positions()
    }

    /// Image tokens of one picture, `[tokens, width of the text]`.
    pub(crate) fn image(&self, pixels: &PixelValues) -> Result<Tensor> {
        let shape = (1, 3, pixels.height(), pixels.width());
        let pixels = Tensor::from_slice(pixels.values(), shape, &self.place.device)?;
        self.vision.forward(&pixels.to_dtype(self.place.dtype)?)
    }

    /// Image tokens and prompt of each ask.
    pub(crate) fn encode(&self, asks: &[(&Tensor, &[u32])]) -> Result<State> {
        self.text.encode(asks)
    }

    /// One token for each row.
    pub(crate) fn step(
        &self,
        state: &mut State,
        position: usize,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<()> {
        let result = self.text.step(state, position, tokens)?;
        logits.copy_from_slice(&result.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }
}

impl Place {
    fn tensor(
        &self,
        weights: &Weights,
        name: &str,
        shape: &[usize],
    ) -> std::result::Result<Tensor, LoadError> {
        let values = weights.tensor(name, shape)?;
        self.put(values, shape).map_err(LoadError::Candle)
    }

    fn put(&self, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
        // Narrowed before it travels.
        Tensor::from_vec(values, shape, &Target::Cpu)?.to_dtype(self.dtype)?.to_device(&self.device)
    }
}

#[derive(Debug)]
struct Linear {
    /// `[inputs, outputs]`
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn load(
        weights: &Weights,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        let weight = place.tensor(weights, &format!("{name}.weight"), &[outputs, inputs])?;
        let weight = weight.t().map_err(LoadError::Candle)?;
        let bias =
            if bias { Some(place.tensor(weights, &format!("{name}.bias"), &[outputs])?) } else { None };
        Ok(Self { weight, bias })
    }

    /// `[…, inputs]` to `[…, outputs]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut shape = x.dims().to_vec();
        let rows = x.flatten_to(x.rank() - 2)?;
        let y = rows.contiguous()?.matmul(&self.weight)?;
        let y = match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        };
        if let Some(last) = shape.last_mut() {
            *last = self.weight.dim(1)?;
        }
        y.reshape(shape)
    }
}

#[derive(Debug)]
struct Norm {
    scale: Tensor,
    shift: Tensor,
}

impl Norm {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        // In `f32` whatever the type: 16 bits are too few for a variance.
        let place = Place { dtype: DType::F32, ..place.clone() };
        Ok(Self {
            scale: place.tensor(weights, &format!("{name}.weight"), &[width])?,
            shift: place.tensor(weights, &format!("{name}.bias"), &[width])?,
        })
    }

    /// Over the last dimension.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = x.dtype();
        let x = x.to_dtype(DType::F32)?;
        let last = x.rank() - 1;
        let x = x.broadcast_sub(&x.mean_keepdim(last)?)?;
        let deviation = (x.sqr()?.mean_keepdim(last)? + 1e-5)?.sqrt()?;
        x.broadcast_div(&deviation)?.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)?.to_dtype(dtype)
    }
}

/// `softmax(scale · q · kᵀ + mask) · v`, over `[…, tokens, width]`.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: Option<&Tensor>) -> Result<Tensor> {
    let dtype = q.dtype();
    // The queries are scaled before the product, which might not fit into 16 bits otherwise.
    let scores = (q.contiguous()? * scale)?.matmul(&k.t()?.contiguous()?)?.to_dtype(DType::F32)?;
    let scores = match mask {
        Some(mask) => scores.broadcast_add(mask)?,
        None => scores,
    };
    let last = scores.rank() - 1;
    let weights = scores.broadcast_sub(&scores.max_keepdim(last)?)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(last)?)?;
    weights.to_dtype(dtype)?.matmul(&v.contiguous()?)
}

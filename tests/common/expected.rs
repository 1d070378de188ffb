//! What `tools/random_checkpoint.py` stored beside random weights. Backends' tests use it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;

/// The larger of two differences. One that is not a number must not be lost.
pub(crate) fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b <= a { a } else { b }
}

/// What `tools/random_checkpoint.py` stored beside the weights.
pub(crate) struct Expected(pub(crate) HashMap<String, Vec<f64>>);

impl Expected {
    pub(crate) fn read(folder: &Path) -> Self {
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let numbers = |tensor: safetensors::tensor::TensorView<'_>| match tensor.dtype() {
            safetensors::Dtype::F32 => {
                let numbers = tensor.data().chunks_exact(4);
                numbers.map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap()))).collect()
            }
            safetensors::Dtype::I64 => tensor
                .data()
                .chunks_exact(8)
                .map(|x| i64::from_le_bytes(x.try_into().unwrap()) as f64)
                .collect(),
            other => panic!("{other:?}"),
        };
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        Self(tensors.into_iter().map(|(name, tensor)| (name, numbers(tensor))).collect())
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.0[name].iter().map(|&id| id as u32).collect()
    }

    /// The largest difference.
    pub(crate) fn difference(&self, name: &str, found: &[f32]) -> f64 {
        let expected = &self.0[name];
        assert_eq!(expected.len(), found.len());
        let differences = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a) - b).abs());
        differences.fold(0.0, worse)
    }

    pub(crate) fn correlation(&self, name: &str, found: &[f32]) -> f64 {
        let expected = &self.0[name];
        assert_eq!(expected.len(), found.len());
        let count = found.len() as f64;
        let found: Vec<f64> = found.iter().map(|&x| f64::from(x)).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let (a, b) = (mean(&found), mean(expected));
        let sum = |f: &dyn Fn(f64, f64) -> f64| {
            found.iter().zip(expected).map(|(&x, &y)| f(x - a, y - b)).sum::<f64>()
        };
        sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
    }
}

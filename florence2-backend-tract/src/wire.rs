//! The outline of an ONNX file: all of it but the numbers of its large tensors, which stay where they are.
//!
//! A decoder's file has some 400 MB, of which another file's part may need a tenth, or only a name. ONNX has a way to say
//! that a tensor's numbers lie at some place of a file; here that file is the graph's own.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use prost::Message;
use tract_onnx::pb::tensor_proto::DataLocation;
use tract_onnx::pb::{GraphProto, ModelProto, StringStringEntryProto, TensorProto};

/// Numbers of a field, as ONNX has them.
const MODEL_GRAPH: u64 = 7;
const GRAPH_INITIALIZER: u64 = 5;
const TENSOR_RAW_DATA: u64 = 9;

/// From so many bytes on, numbers stay in the file.
const LARGE: u64 = 4096;

/// Reads a file's outline. What is broken is an error of the kind `InvalidData` or `UnexpectedEof`.
pub(crate) fn outline(path: &Path, file: File) -> io::Result<ModelProto> {
    let length = file.metadata()?.len();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let mut wire = Wire { file: BufReader::new(file), position: 0 };
    let (mut outer, mut inner, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
    while wire.position < length {
        let field = wire.field(length)?;
        if field.number != MODEL_GRAPH {
            wire.copy(&field, &mut outer)?;
            continue;
        }
        while wire.position < field.end {
            let field = wire.field(field.end)?;
            if field.number != GRAPH_INITIALIZER {
                wire.copy(&field, &mut inner)?;
                continue;
            }
            tensors.push(wire.tensor(field.end, &name)?);
        }
    }
    let mut model = ModelProto::decode(outer.as_slice())?;
    let mut graph = GraphProto::decode(inner.as_slice())?;
    graph.initializer = tensors;
    model.graph = Some(graph);
    Ok(model)
}

struct Wire {
    file: BufReader<File>,
    position: u64,
}

/// A field whose head was read.
struct Field {
    number: u64,
    /// Its head, and its value where that is a number.
    head: Vec<u8>,
    /// Where it ends; not after its parent.
    end: u64,
}

fn broken() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl Wire {
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.file.read_exact(&mut byte)?;
        self.position += 1;
        Ok(byte[0])
    }

    fn varint(&mut self, head: &mut Vec<u8>) -> io::Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            head.push(byte);
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(broken())
    }

    /// Reads the head of a field of a message that ends there.
    fn field(&mut self, end: u64) -> io::Result<Field> {
        let mut head = Vec::new();
        let key = self.varint(&mut head)?;
        let length = match key & 7 {
            0 => {
                self.varint(&mut head)?;
                0
            }
            1 => 8,
            2 => self.varint(&mut head)?,
            5 => 4,
            _ => return Err(broken()),
        };
        let own = self.position.checked_add(length).filter(|&own| own <= end).ok_or_else(broken)?;
        Ok(Field { number: key >> 3, head, end: own })
    }

    /// Reads the rest of a field, and writes the whole of it.
    fn copy(&mut self, field: &Field, out: &mut Vec<u8>) -> io::Result<()> {
        out.extend_from_slice(&field.head);
        let begin = out.len();
        // The file has so many: a field does not end after it.
        out.resize(begin + (field.end - self.position) as usize, 0);
        self.file.read_exact(&mut out[begin..])?;
        self.position = field.end;
        Ok(())
    }

    /// Reads a tensor that ends there, but for numbers that stay in the file of this name.
    fn tensor(&mut self, end: u64, name: &str) -> io::Result<TensorProto> {
        let (mut bytes, mut place) = (Vec::new(), None);
        while self.position < end {
            let field = self.field(end)?;
            let length = field.end - self.position;
            if field.number != TENSOR_RAW_DATA || length < LARGE {
                self.copy(&field, &mut bytes)?;
                continue;
            }
            let (offset, length) = (self.position.to_string(), length.to_string());
            place = Some([("location", name.to_owned()), ("offset", offset), ("length", length)]);
            self.file.seek_relative(i64::try_from(field.end - self.position).map_err(|_| broken())?)?;
            self.position = field.end;
        }
        let mut tensor = TensorProto::decode(bytes.as_slice())?;
        if let Some(place) = place {
            tensor.data_location = Some(DataLocation::External as i32);
            let entry = |(key, value): (&str, String)| StringStringEntryProto { key: key.to_owned(), value };
            tensor.external_data = place.map(entry).into();
        }
        Ok(tensor)
    }
}

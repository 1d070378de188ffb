//! What a `pytorch_model.bin` holds, and where in the file each tensor lies.
//!
//! `torch.save` writes a zip archive whose members are stored as they are: `data.pkl`, a pickle of a dictionary from names to
//! tensors, and `data/<key>`, the numbers of each storage. A pickle is a program for a stack machine that may call any
//! function of Python. Here it can call none: four names of functions and those of storages are known, each has a fixed
//! meaning, and every other one is an error. Values lie in an arena and refer to each other by index, so that neither nesting nor
//! sharing costs more than the bytes that ask for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read, Seek, SeekFrom};

use safetensors::tensor::Dtype;

/// A tensor of the file, in row-major order.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// From the file's start, in bytes.
    pub(crate) begin: u64,
    /// In bytes.
    pub(crate) length: usize,
}

/// Why a file could not be understood.
#[derive(Debug)]
pub(crate) enum Problem {
    Io(io::Error),
    Broken(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self::Broken(problem)
    }
}

impl From<&str> for Problem {
    fn from(problem: &str) -> Self {
        Self::Broken(problem.to_owned())
    }
}

type Result<T> = std::result::Result<T, Problem>;

/// The archive's directory and the pickle, in bytes; some hundred kilobytes for the largest checkpoint.
const LARGEST_PART: u64 = 16 << 20;
/// In a pickle; some ten thousand for the largest checkpoint.
const MOST_VALUES: usize = 1 << 20;
const MOST_DIMENSIONS: usize = 8;

/// The tensors of a file that is `length` bytes long. Each of them lies within the file.
pub(crate) fn tensors(file: &mut (impl Read + Seek), length: u64) -> Result<Vec<Tensor>> {
    let archive = Archive::open(file, length)?;
    let mut pickles = archive
        .members
        .keys()
        .filter_map(|name| name.strip_suffix("data.pkl"))
        .filter(|folder| folder.is_empty() || folder.ends_with('/'));
    let Some(folder) = pickles.next() else { return Err("it is a zip archive without data.pkl".into()) };
    if pickles.next().is_some() {
        return Err("it is a zip archive with more than one data.pkl".into());
    }
    if let Some(member) = archive.members.get(&format!("{folder}byteorder")) {
        let order = archive.read(file, member)?;
        if order != b"little" {
            let order = short(&String::from_utf8_lossy(&order));
            return Err(format!("its byte order is {order}, and only \"little\" is read").into());
        }
    }
    let pickle = archive.read(file, &archive.members[&format!("{folder}data.pkl")])?;
    let machine = Machine::run(&pickle)?;
    let mut tensors = Vec::new();
    for (name, tensor) in machine.state()? {
        let in_tensor = |problem: String| Problem::from(format!("the tensor {}: {problem}", short(name)));
        let &Array { dtype, width, key, offset, ref shape, ref strides } = tensor;
        let Some(member) = archive.members.get(&format!("{folder}data/{key}")) else {
            return Err(in_tensor(format!("its numbers, data/{}, are missing", short(key))));
        };
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n));
        let place = elements.and_then(|n| {
            let (from, bytes) = (offset.checked_mul(width)?, n.checked_mul(width)?);
            (from.checked_add(bytes)? <= member.size).then_some((from, bytes))
        });
        let Some((from, bytes)) = place else {
            return Err(in_tensor(format!(
                "the shape {shape:?} at the element {offset} does not fit in the {} bytes of data/{}",
                member.size,
                short(key)
            )));
        };
        if bytes != 0 && !contiguous(shape, strides) {
            return Err(in_tensor(format!(
                "it is a view with the shape {shape:?} and the strides {strides:?}; save it with .contiguous()"
            )));
        }
        let narrow =
            |n: u64| usize::try_from(n).map_err(|_| in_tensor(format!("{n} is too large for this machine")));
        tensors.push(Tensor {
            name: name.to_owned(),
            dtype,
            shape: shape.iter().map(|&n| narrow(n)).collect::<Result<_>>()?,
            // Within the member, which is within the file.
            begin: archive.begin(file, member)? + from,
            length: narrow(bytes)?,
        });
    }
    Ok(tensors)
}

/// Whether a tensor's elements lie one behind the other. The product of the shape must be in the range of `u64`, and not zero.
fn contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&n, &stride)| {
        let fits = n == 1 || stride == expected;
        expected *= n;
        fits
    })
}

/// A name from the file for a message: quoted, and not as long as the file wants.
fn short(text: &str) -> String {
    const LONGEST: usize = 100;
    let cut: String = text.chars().take(LONGEST).collect();
    if cut.len() < text.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
}

/// Bytes that are read from the front.
struct Bytes<'a> {
    left: &'a [u8],
    /// What they are, for messages.
    of: &'static str,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, left)) = self.left.split_at_checked(count) else {
            return Err(format!("{} ends where {count} more bytes should be", self.of).into());
        };
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, count: usize) -> Result<&'a str> {
        let bytes = self.take(count)?;
        str::from_utf8(bytes).map_err(|_| format!("{} has text that is not UTF-8", self.of).into())
    }

    fn line(&mut self) -> Result<&'a str> {
        let Some(end) = self.left.iter().position(|&byte| byte == b'\n') else {
            return Err(format!("{} ends within a line", self.of).into());
        };
        let line = self.text(end)?;
        self.take(1)?;
        Ok(line)
    }
}

/// The directory of a zip archive. The format is that of PKWARE's APPNOTE.TXT, with its 64-bit fields.
struct Archive {
    members: BTreeMap<String, Member>,
    /// Where the directory begins, which is where the members' data end.
    end: u64,
}

struct Member {
    /// Where the member's own header begins.
    header: u64,
    size: u64,
}

const LOCAL: &[u8; 4] = b"PK\x03\x04";
const CENTRAL: &[u8; 4] = b"PK\x01\x02";
const END: &[u8; 4] = b"PK\x05\x06";
const END_64: &[u8; 4] = b"PK\x06\x06";
const LOCATOR_64: &[u8; 4] = b"PK\x06\x07";
const END_SIZE: usize = 22;
const LOCATOR_64_SIZE: usize = 20;

const DIRECTORY: &str = "the zip archive's directory";

/// These bytes of the file. There must be as many, and no more than may be held.
fn part(
    file: &mut (impl Read + Seek),
    length: u64,
    begin: u64,
    size: u64,
    of: &'static str,
) -> Result<Vec<u8>> {
    if begin.checked_add(size).is_none_or(|end| end > length) {
        return Err(format!("{of} should be {size} bytes at {begin}, and the file has {length}").into());
    }
    if size > LARGEST_PART {
        return Err(format!("{of} has {size} bytes, more than the {LARGEST_PART} that are read").into());
    }
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = vec![0; size as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Archive {
    fn open(file: &mut (impl Read + Seek), length: u64) -> Result<Self> {
        let start = part(file, length, 0, length.min(24), "the file")?;
        if let Some(found) = florence2_files::substitute(&start) {
            return Err(format!("it is {found}").into());
        }
        // A pickle's first opcode; the format of before PyTorch 1.6 is a few pickles and the numbers behind them.
        if start.first() == Some(&PROTO) {
            return Err(
                "it is in PyTorch's old format; load it and save it again with PyTorch 1.6 or later, or as \
                        safetensors"
                    .into(),
            );
        }
        if !start.starts_with(LOCAL) {
            return Err(
                format!("it is no zip archive as `torch.save` writes it, and has {length} bytes").into()
            );
        }
        // The end has a comment of up to 65535 bytes.
        let tail_size = length.min((LOCATOR_64_SIZE + END_SIZE + 0xffff) as u64);
        let tail = part(file, length, length - tail_size, tail_size, DIRECTORY)?;
        let found = (0..=tail.len().saturating_sub(END_SIZE)).rev().find(|&at| {
            let end = &tail[at..];
            end.len() >= END_SIZE
                && end.starts_with(END)
                && usize::from(u16::from_le_bytes([end[20], end[21]])) == end.len() - END_SIZE
        });
        let Some(at) = found else {
            return Err(format!(
                "it has {length} bytes and lacks the end of a zip archive; the download may have been cut off"
            )
            .into());
        };
        let mut end = Bytes { left: &tail[at + 10..], of: DIRECTORY };
        let (mut entries, mut size, mut begin) =
            (u64::from(end.u16()?), u64::from(end.u32()?), u64::from(end.u32()?));
        let locator = at.checked_sub(LOCATOR_64_SIZE).map(|from| &tail[from..at]);
        if let Some(locator) = locator.filter(|bytes| bytes.starts_with(LOCATOR_64)) {
            let place = Bytes { left: &locator[8..], of: DIRECTORY }.u64()?;
            let end = part(file, length, place, 56, DIRECTORY)?;
            if !end.starts_with(END_64) {
                return Err("the zip archive's 64-bit end is not where it should be".into());
            }
            let mut end = Bytes { left: &end[32..], of: DIRECTORY };
            (entries, size, begin) = (end.u64()?, end.u64()?, end.u64()?);
        }
        let bytes = part(file, length, begin, size, DIRECTORY)?;
        let mut bytes = Bytes { left: &bytes, of: DIRECTORY };
        let mut members = BTreeMap::new();
        for _ in 0..entries {
            let (name, member) = Member::parse(&mut bytes)?;
            if members.insert(name.to_owned(), member).is_some() {
                return Err(format!("the zip archive has two members {}", short(name)).into());
            }
        }
        Ok(Self { members, end: begin })
    }

    /// Where the member's data begin. They end before the directory.
    fn begin(&self, file: &mut (impl Read + Seek), member: &Member) -> Result<u64> {
        const SIZE: u64 = 30;
        let of = "a header in the zip archive";
        let header = part(file, self.end, member.header, SIZE, of)?;
        if !header.starts_with(LOCAL) {
            return Err(format!("{of} is not where it should be").into());
        }
        // The lengths of the name and of the padding, which are others than in the directory.
        let mut lengths = Bytes { left: &header[26..], of };
        let begin = member.header + SIZE + u64::from(lengths.u16()?) + u64::from(lengths.u16()?);
        if begin.checked_add(member.size).is_none_or(|end| end > self.end) {
            return Err("a member of the zip archive reaches into its directory".into());
        }
        Ok(begin)
    }

    fn read(&self, file: &mut (impl Read + Seek), member: &Member) -> Result<Vec<u8>> {
        let begin = self.begin(file, member)?;
        part(file, self.end, begin, member.size, "a member of the zip archive")
    }
}

impl Member {
    /// The next member in a directory.
    fn parse<'a>(bytes: &mut Bytes<'a>) -> Result<(&'a str, Self)> {
        if bytes.take(4)? != CENTRAL {
            return Err("the zip archive's directory is garbled".into());
        }
        bytes.take(4)?;
        let (flags, method) = (bytes.u16()?, bytes.u16()?);
        bytes.take(8)?;
        let (compressed, size) = (bytes.u32()?, bytes.u32()?);
        let lengths = [bytes.u16()?, bytes.u16()?, bytes.u16()?];
        bytes.take(8)?;
        let header = bytes.u32()?;
        let name = bytes.text(lengths[0].into())?;
        let mut extra = Bytes { left: bytes.take(lengths[1].into())?, of: DIRECTORY };
        bytes.take(lengths[2].into())?;
        // In this order, and each of them only where its 32 bits do not hold it.
        let mut fields = [size, compressed, header].map(u64::from);
        const ELSEWHERE: u64 = u32::MAX as u64;
        if fields.contains(&ELSEWHERE) {
            while !extra.left.is_empty() {
                let (tag, length) = (extra.u16()?, extra.u16()?);
                let mut content = Bytes { left: extra.take(length.into())?, of: DIRECTORY };
                if tag == 1 {
                    for field in fields.iter_mut().filter(|field| **field == ELSEWHERE) {
                        *field = content.u64()?;
                    }
                    break;
                }
            }
        }
        let [size, compressed, header] = fields;
        if method != 0 || compressed != size || flags & 1 != 0 {
            let name = short(name);
            return Err(format!(
                "its member {name} is compressed or encrypted; `torch.save` stores members as they are"
            )
            .into());
        }
        Ok((name, Self { header, size }))
    }
}

/// A value's place in the arena.
type Id = u32;

#[derive(Clone, Copy)]
enum Global {
    RebuildTensor,
    RebuildParameter,
    OrderedDict,
    /// With an element's size in bytes.
    Storage(Dtype, u64),
}

impl Global {
    fn named(module: &str, name: &str) -> Result<Self> {
        Ok(match (module, name) {
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch", "FloatStorage") => Self::Storage(Dtype::F32, 4),
            ("torch", "HalfStorage") => Self::Storage(Dtype::F16, 2),
            ("torch", "BFloat16Storage") => Self::Storage(Dtype::BF16, 2),
            ("torch", "DoubleStorage") => Self::Storage(Dtype::F64, 8),
            ("torch", "LongStorage") => Self::Storage(Dtype::I64, 8),
            ("torch", "IntStorage") => Self::Storage(Dtype::I32, 4),
            ("torch", "ShortStorage") => Self::Storage(Dtype::I16, 2),
            ("torch", "CharStorage") => Self::Storage(Dtype::I8, 1),
            ("torch", "ByteStorage") => Self::Storage(Dtype::U8, 1),
            ("torch", "BoolStorage") => Self::Storage(Dtype::BOOL, 1),
            _ => {
                let name = short(&format!("{module}.{name}"));
                return Err(format!(
                    "its pickle uses {name}, which no dictionary of plain tensors needs, and which is not called; save \
                     the model's state_dict()"
                )
                .into());
            }
        })
    }
}

enum Value<'a> {
    Text(&'a str),
    Integer(i64),
    Tuple(Vec<Id>),
    Dictionary(Vec<(Id, Id)>),
    Global(Global),
    Storage {
        dtype: Dtype,
        width: u64,
        key: &'a str,
    },
    Tensor(Array<'a>),
    /// Lists are used for nothing here, so that what is in them is forgotten.
    List,
    /// None, a truth value or a floating-point number.
    Other,
}

/// A tensor as the pickle has it; nothing is checked yet but that there are as many strides as dimensions.
struct Array<'a> {
    dtype: Dtype,
    width: u64,
    key: &'a str,
    /// In elements.
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

const PROTO: u8 = 0x80;

/// The stack machine, in the part of it that `torch.save` uses. The opcodes are those of Python's `pickletools`.
struct Machine<'a> {
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    result: Id,
}

impl<'a> Machine<'a> {
    fn run(pickle: &'a [u8]) -> Result<Self> {
        let mut machine = Self {
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            result: 0,
        };
        let mut bytes = Bytes { left: pickle, of: "its pickle" };
        loop {
            let opcode = bytes.u8()?;
            if opcode == b'.' {
                machine.result = machine.pop()?;
                return Ok(machine);
            }
            machine.step(opcode, &mut bytes)?;
        }
    }

    fn step(&mut self, opcode: u8, bytes: &mut Bytes<'a>) -> Result<()> {
        match opcode {
            PROTO => {
                let protocol = bytes.u8()?;
                if !(2..=5).contains(&protocol) {
                    return Err(format!("its pickle has protocol {protocol}, and 2 to 5 are read").into());
                }
                Ok(())
            }
            // FRAME: a hint for readers.
            0x95 => bytes.take(8).map(drop),
            // NONE, NEWTRUE, NEWFALSE
            b'N' | 0x88 | 0x89 => self.push(Value::Other),
            // BINFLOAT
            b'G' => {
                bytes.take(8)?;
                self.push(Value::Other)
            }
            // BININT, BININT1, BININT2
            b'J' => {
                let value = i32::from_le_bytes(bytes.array()?);
                self.push(Value::Integer(value.into()))
            }
            b'K' => {
                let value = bytes.u8()?;
                self.push(Value::Integer(value.into()))
            }
            b'M' => {
                let value = bytes.u16()?;
                self.push(Value::Integer(value.into()))
            }
            // LONG1: in two's complement, as short as can be.
            0x8a => {
                let length = bytes.u8()?;
                let digits = bytes.take(length.into())?;
                let sign = digits.last().map_or(0, |&byte| if byte >= 0x80 { 0xff } else { 0 });
                let mut wide = [sign; 8];
                let Some(low) = wide.get_mut(..digits.len()) else {
                    return Err(format!("its pickle has an integer of {length} bytes").into());
                };
                low.copy_from_slice(digits);
                self.push(Value::Integer(i64::from_le_bytes(wide)))
            }
            // BINUNICODE, SHORT_BINUNICODE
            b'X' => {
                let length = bytes.u32()?;
                let text = bytes.text(length as usize)?;
                self.push(Value::Text(text))
            }
            0x8c => {
                let length = bytes.u8()?;
                let text = bytes.text(length.into())?;
                self.push(Value::Text(text))
            }
            // GLOBAL, STACK_GLOBAL
            b'c' => {
                let (module, name) = (bytes.line()?, bytes.line()?);
                self.push(Value::Global(Global::named(module, name)?))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (&Value::Text(module), &Value::Text(name)) = (self.get(module)?, self.get(name)?) else {
                    return Err("its pickle uses a name that is no text".into());
                };
                self.push(Value::Global(Global::named(module, name)?))
            }
            // BINPUT, LONG_BINPUT, MEMOIZE
            b'q' => {
                let key = bytes.u8()?;
                self.remember(key.into())
            }
            b'r' => {
                let key = bytes.u32()?;
                self.remember(key)
            }
            // There are fewer than 2^32 entries, since there are fewer bytes.
            0x94 => self.remember(self.memo.len() as u32),
            // BINGET, LONG_BINGET
            b'h' => {
                let key = bytes.u8()?;
                self.recall(key.into())
            }
            b'j' => {
                let key = bytes.u32()?;
                self.recall(key)
            }
            // MARK
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            // EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3, TUPLE
            b')' => self.push(Value::Tuple(Vec::new())),
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0x85..=opcode {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Value::Tuple(items))
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items))
            }
            // EMPTY_LIST, APPEND, APPENDS
            b']' => self.push(Value::List),
            b'a' | b'e' => {
                if opcode == b'a' {
                    self.pop()?;
                } else {
                    self.pop_mark()?;
                }
                match self.get(self.top()?)? {
                    Value::List => Ok(()),
                    _ => Err("its pickle appends to what is no list".into()),
                }
            }
            // EMPTY_DICT, SETITEM, SETITEMS
            b'}' => self.push(Value::Dictionary(Vec::new())),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set(&items)
            }
            // REDUCE
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                self.call(function, arguments)
            }
            // BUILD, which gives a state dict its versions.
            b'b' => {
                self.pop()?;
                match self.get(self.top()?)? {
                    Value::Dictionary(_) => Ok(()),
                    _ => Err("its pickle sets attributes of what is no dictionary".into()),
                }
            }
            // BINPERSID
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(storage)
            }
            other => {
                Err(format!("its pickle has the opcode {other:#04x}, which `torch.save` does not use").into())
            }
        }
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        if self.values.len() >= MOST_VALUES {
            return Err(format!("its pickle has more than {MOST_VALUES} values").into());
        }
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    fn top(&self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(&id) if self.stack.len() > floor => Ok(id),
            _ => Err("its pickle takes a value where there is none".into()),
        }
    }

    fn pop(&mut self) -> Result<Id> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(height) if height <= self.stack.len() => Ok(self.stack.split_off(height)),
            _ => Err("its pickle goes back to a mark where there is none".into()),
        }
    }

    fn get(&self, id: Id) -> Result<&Value<'a>> {
        self.values.get(id as usize).ok_or_else(|| "its pickle is garbled".into())
    }

    fn remember(&mut self, key: u32) -> Result<()> {
        let id = self.top()?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<()> {
        let Some(&id) = self.memo.get(&key) else {
            return Err(format!("its pickle uses the value {key} before it is there").into());
        };
        self.stack.push(id);
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<()> {
        let id = self.top()?;
        match self.values.get_mut(id as usize) {
            Some(Value::Dictionary(entries)) if items.len().is_multiple_of(2) => {
                entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => Err("its pickle sets items of what is no dictionary".into()),
        }
    }

    fn tuple(&self, id: Id, of: &str) -> Result<&[Id]> {
        match self.get(id)? {
            Value::Tuple(items) => Ok(items),
            _ => Err(format!("its pickle has something else than a tuple for {of}").into()),
        }
    }

    fn sizes(&self, id: Id, of: &str) -> Result<Vec<u64>> {
        let items = self.tuple(id, of)?;
        // A tuple can be used again and again, and is copied each time.
        if items.len() > MOST_DIMENSIONS {
            let count = items.len();
            return Err(format!(
                "{of} has {count} dimensions, and {MOST_DIMENSIONS} is the most that is read"
            )
            .into());
        }
        items.iter().map(|&item| self.size(item, of)).collect()
    }

    fn size(&self, id: Id, of: &str) -> Result<u64> {
        let size = match self.get(id)? {
            &Value::Integer(value) => u64::try_from(value).ok(),
            _ => None,
        };
        size.ok_or_else(|| format!("its pickle has no natural number for {of}").into())
    }

    fn call(&mut self, function: Id, arguments: Id) -> Result<()> {
        let &Value::Global(function) = self.get(function)? else {
            return Err("its pickle calls what is no function".into());
        };
        let arguments = self.tuple(arguments, "a call's arguments")?;
        match (function, arguments) {
            (Global::OrderedDict, []) => self.push(Value::Dictionary(Vec::new())),
            // Is it trained, are there hooks, and in newer files metadata: nothing that the numbers depend on.
            (
                Global::RebuildTensor,
                &[storage, offset, shape, strides, _, _] | &[storage, offset, shape, strides, _, _, _],
            ) => {
                let &Value::Storage { dtype, width, key } = self.get(storage)? else {
                    return Err("its pickle makes a tensor of what is no storage".into());
                };
                let offset = self.size(offset, "a tensor's offset")?;
                let shape = self.sizes(shape, "a tensor's shape")?;
                let strides = self.sizes(strides, "a tensor's strides")?;
                if shape.len() != strides.len() {
                    return Err(
                        format!("a tensor has the shape {shape:?} and the strides {strides:?}").into()
                    );
                }
                self.push(Value::Tensor(Array { dtype, width, key, offset, shape, strides }))
            }
            (Global::RebuildParameter, &[tensor, _, _]) => {
                let Value::Tensor(_) = self.get(tensor)? else {
                    return Err("its pickle makes a parameter of what is no tensor".into());
                };
                self.stack.push(tensor);
                Ok(())
            }
            (function, arguments) => {
                let name = match function {
                    Global::RebuildTensor => "_rebuild_tensor_v2",
                    Global::RebuildParameter => "_rebuild_parameter",
                    Global::OrderedDict => "OrderedDict",
                    Global::Storage(..) => "a storage",
                };
                let count = arguments.len();
                Err(format!("its pickle calls {name} with {count} arguments, which is not done here").into())
            }
        }
    }

    fn storage(&self, id: Id) -> Result<Value<'a>> {
        // What it is, its type, its key, the device it was on, and how many elements it has.
        if let &[kind, global, key, _, _] = self.tuple(id, "a storage")?
            && let (Value::Text("storage"), &Value::Global(Global::Storage(dtype, width)), &Value::Text(key)) =
                (self.get(kind)?, self.get(global)?, self.get(key)?)
        {
            return Ok(Value::Storage { dtype, width, key });
        }
        Err("its pickle refers to something else than a storage".into())
    }

    /// The tensors of the state dict, which is the whole pickle or its entry `state_dict`.
    fn state(&self) -> Result<Vec<(&'a str, &Array<'a>)>> {
        let Value::Dictionary(entries) = self.get(self.result)? else {
            return Err("its pickle is no dictionary of tensors; save the model's state_dict()".into());
        };
        let mut entries = entries;
        for &(key, value) in entries {
            if let (Value::Text("state_dict"), Value::Dictionary(state)) = (self.get(key)?, self.get(value)?)
            {
                entries = state;
                break;
            }
        }
        let mut tensors = Vec::new();
        let mut names = BTreeSet::new();
        for &(key, value) in entries {
            let Value::Tensor(tensor) = self.get(value)? else { continue };
            let &Value::Text(name) = self.get(key)? else {
                return Err("a tensor's name is no text".into());
            };
            if !names.insert(name) {
                return Err(format!("the tensor {} is there twice", short(name)).into());
            }
            tensors.push((name, tensor));
        }
        Ok(tensors)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// An archive of stored members, with the fields that are read here, and where each one's data begin.
    fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        for (name, data) in members {
            let header = file.len() as u32;
            let sizes = [(data.len() as u32).to_le_bytes(); 2].concat();
            let padding = [0; 7];
            file.extend([&LOCAL[..], &[0; 14], &sizes, &[name.len() as u8, 0, 7, 0]].concat());
            file.extend([name.as_bytes(), &padding, data].concat());
            directory.extend([&CENTRAL[..], &[0; 16], &sizes, &[name.len() as u8, 0], &[0; 12]].concat());
            directory.extend([&header.to_le_bytes()[..], name.as_bytes()].concat());
        }
        let (begin, size, count) = (file.len() as u32, directory.len() as u32, members.len() as u8);
        file.extend(directory);
        file.extend([&END[..], &[0; 4], &[count, 0, count, 0]].concat());
        file.extend([&size.to_le_bytes()[..], &begin.to_le_bytes(), &[0; 2]].concat());
        file
    }

    const DATA: &[u8; 48] = &[7; 48];

    fn read_zip(file: &[u8]) -> std::result::Result<Vec<Tensor>, String> {
        tensors(&mut Cursor::new(file), file.len() as u64).map_err(|problem| match problem {
            Problem::Io(error) => panic!("there are no other errors in memory, but {error}"),
            Problem::Broken(problem) => problem,
        })
    }

    fn read(pickle: &[u8]) -> std::result::Result<Vec<Tensor>, String> {
        read_zip(&zip(&[("m/data.pkl", pickle), ("m/byteorder", b"little"), ("m/data/0", DATA)]))
    }

    fn text(text: &str) -> Vec<u8> {
        [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn tuple(numbers: &[i64]) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|number| [&[0x8a, 8], &number.to_le_bytes()[..]].concat());
        b"(".iter().copied().chain(numbers).chain(*b"t").collect()
    }

    const REBUILD: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n";

    fn storage() -> Vec<u8> {
        [b"(", &text("storage")[..], b"ctorch\nFloatStorage\n", &text("0"), &text("cpu"), b"K\x0ctQ"].concat()
    }

    fn array(offset: u8, shape: &[i64], strides: &[i64]) -> Vec<u8> {
        let hooks = b"\x89ccollections\nOrderedDict\n)RtR";
        [REBUILD, b"(", &storage(), &[b'K', offset], &tuple(shape), &tuple(strides), hooks].concat()
    }

    /// A dictionary of these.
    fn state(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let entries: Vec<u8> =
            entries.iter().flat_map(|(name, value)| [text(name), value.clone()].concat()).collect();
        [b"\x80\x02}(", &entries[..], b"u."].concat()
    }

    fn one(tensor: Vec<u8>) -> Vec<u8> {
        state(&[("w", tensor)])
    }

    #[test]
    fn tensors_lie_where_their_storage_does() {
        let inner = state(&[
            ("a", array(2, &[2, 1, 3], &[3, 77, 1])),
            ("empty", array(12, &[0, 5], &[9, 9])),
            ("scalar", array(11, &[], &[])),
            ("version", b"K\x01".to_vec()),
        ]);
        let inner = inner[2..inner.len() - 1].to_vec();
        let parameter = [b"ctorch._utils\n_rebuild_parameter\n(", &array(0, &[12], &[1])[..], b"\x88NtR"];
        let outer = state(&[("epoch", b"G\0\0\0\0\0\0\0\0".to_vec()), ("state_dict", inner.clone())]);
        for pickle in [[b"\x80\x02", &inner[..], b"}b."].concat(), outer] {
            let file = zip(&[("m/data.pkl", &pickle), ("m/data/0", DATA)]);
            let begin = file.windows(48).position(|bytes| bytes == DATA).unwrap() as u64;
            let found = read_zip(&file).unwrap();
            let found: Vec<_> =
                found.iter().map(|t| (&*t.name, t.dtype, &*t.shape, t.begin - begin, t.length)).collect();
            let expected: [(&str, Dtype, &[usize], u64, usize); 3] = [
                ("a", Dtype::F32, &[2, 1, 3], 8, 24),
                ("empty", Dtype::F32, &[0, 5], 48, 0),
                ("scalar", Dtype::F32, &[], 44, 4),
            ];
            assert_eq!(found, expected);
        }
        assert_eq!(read(&one(parameter.concat())).unwrap()[0].length, 48);
        // What protocol 4 writes otherwise.
        let four = b"\x80\x04\x95\0\0\0\0\0\0\0\0\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94h\x03h\x000.";
        assert!(read(four).unwrap_err().contains("the opcode 0x30"));
        assert!(read(&[&four[..four.len() - 4], b"."].concat()).unwrap().is_empty());
    }

    #[test]
    fn pickles_that_are_not_understood() {
        let strange = |global: &str| [format!("c{global}\n").as_bytes(), b"(", &text("true"), b"tR"].concat();
        let short_call = [REBUILD, b"(", &storage(), b"K\0tR"].concat();
        let negative = array(0, &[-1], &[1]);
        let cases: [(Vec<u8>, &str); 16] = [
            (
                one(strange("os\nsystem")),
                "its pickle uses \"os.system\", which no dictionary of plain tensors",
            ),
            (one(strange("torch\nComplexFloatStorage")), "\"torch.ComplexFloatStorage\""),
            (one(strange("torch\nFloatStorage")), "calls a storage with 1 arguments"),
            (one(short_call), "its pickle calls _rebuild_tensor_v2 with 2 arguments"),
            (one([REBUILD, b")R"].concat()), "its pickle calls _rebuild_tensor_v2 with 0 arguments"),
            (
                one(array(0, &[3, 4], &[1, 3])),
                "the tensor \"w\": it is a view with the shape [3, 4] and the strides [1, 3]",
            ),
            (
                one(array(1, &[12], &[1])),
                "the shape [12] at the element 1 does not fit in the 48 bytes of data/\"0\"",
            ),
            (one(array(0, &[1 << 40, 1 << 40], &[1 << 40, 1])), "does not fit in the 48 bytes"),
            (one(array(0, &[i64::MAX], &[1])), "does not fit in the 48 bytes"),
            (one(array(0, &[1; 9], &[1; 9])), "has 9 dimensions"),
            (one(array(0, &[2, 2], &[1])), "the shape [2, 2] and the strides [1]"),
            (one(negative), "no natural number for a tensor's shape"),
            (
                state(&[("w", array(0, &[1], &[1])), ("w", array(0, &[2], &[1]))]),
                "the tensor \"w\" is there twice",
            ),
            (
                b"\x80\x02X\xff\xff\xff\xffabc".to_vec(),
                "its pickle ends where 4294967295 more bytes should be",
            ),
            (b"\x80\x02]K\x01a.".to_vec(), "its pickle is no dictionary of tensors"),
            (b"\x80\x02}(0.".to_vec(), "the opcode 0x30"),
        ];
        for (pickle, expected) in cases {
            let message = read(&pickle).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn nesting_and_doubling_cost_only_their_bytes() {
        let nested = |depth| [b"\x80\x02}X\x01\0\0\0w)", &vec![0x85; depth][..], b"s."].concat();
        assert!(read(&nested(1_000_000)).unwrap().is_empty());
        assert_eq!(read(&nested(1 << 20)).unwrap_err(), "its pickle has more than 1048576 values");
        // Each tuple is twice the one before; a copy would have 2^50000 items.
        let doubled = b"q\0h\0\x86".repeat(50_000);
        let doubled = [b"\x80\x02}X\x01\0\0\0w)", &doubled[..], b"s."].concat();
        assert!(read(&doubled).unwrap().is_empty());
        // A dictionary in itself.
        assert!(read(b"\x80\x02}q\0X\x0a\0\0\0state_dicth\0s.").unwrap().is_empty());
    }

    #[test]
    fn archives_that_are_not_understood() {
        let pickle = one(array(0, &[12], &[1]));
        let good = zip(&[("data.pkl", &pickle), ("data/0", DATA)]);
        assert_eq!(read_zip(&good).unwrap().len(), 1);
        let mut compressed = good.clone();
        let central = good.windows(4).rposition(|bytes| bytes == CENTRAL).unwrap();
        compressed[central + 10] = 8;
        let mut encrypted = good.clone();
        encrypted[central + 8] = 1;
        let mut long = good.clone();
        long[central + 20..][..8].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        let cases: [(Vec<u8>, &str); 11] = [
            (compressed, "its member \"data/0\" is compressed or encrypted"),
            (encrypted, "its member \"data/0\" is compressed or encrypted"),
            (long, "a member of the zip archive reaches into its directory"),
            (zip(&[("data.pkl", &pickle)]), "the tensor \"w\": its numbers, data/\"0\", are missing"),
            (zip(&[("a/data/0", DATA)]), "without data.pkl"),
            (zip(&[("a/data.pkl", &pickle), ("b/data.pkl", &pickle)]), "more than one data.pkl"),
            (zip(&[("data.pkl", &pickle), ("data.pkl", &pickle)]), "has two members \"data.pkl\""),
            (zip(&[("data.pkl", &pickle), ("byteorder", b"big")]), "its byte order is \"big\""),
            (
                b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
                "it is a pointer of Git LFS; `git lfs pull`",
            ),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), "it is in PyTorch's old format"),
            (Vec::new(), "has 0 bytes"),
        ];
        for (file, expected) in cases {
            let message = read_zip(&file).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn broken_bytes_are_errors() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tiny/pytorch_model.bin");
        let file = std::fs::read(path).unwrap();
        let archive = Archive::open(&mut Cursor::new(&file), file.len() as u64).unwrap();
        let member = &archive.members["pytorch_model/data.pkl"];
        let pickle = archive.read(&mut Cursor::new(&file), member).unwrap();
        assert_eq!(Machine::run(&pickle).unwrap().state().unwrap().len(), read_zip(&file).unwrap().len());
        // Before its last opcode a pickle has no result.
        (0..pickle.len()).for_each(|length| assert!(Machine::run(&pickle[..length]).is_err()));
        let small = state(&[("a", array(0, &[12], &[1])), ("b", array(0, &[3, 4], &[4, 1]))]);
        let archive = zip(&[("m/data.pkl", &small), ("m/data/0", DATA)]);
        (0..small.len()).for_each(|length| drop(read(&small[..length]).unwrap_err()));
        (0..archive.len()).for_each(|length| drop(read_zip(&archive[..length]).unwrap_err()));

        // Numbers from xorshift. Some changes do no harm, and what is then found still lies within the file.
        let mut random = 0x2545_f491_4f6c_dd1du64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        let directory = file.len() - 40_000;
        let in_pickle = file.windows(pickle.len()).position(|bytes| bytes == pickle).unwrap();
        let mut refused = 0;
        for round in 0..6000 {
            let (mut broken, places) = match round % 3 {
                0 => (archive.clone(), 0..archive.len()),
                1 => (file.clone(), in_pickle..in_pickle + pickle.len()),
                _ => (file.clone(), directory..file.len()),
            };
            for _ in 0..=next(3) {
                broken[places.start + next(places.len())] = next(256) as u8;
            }
            match read_zip(&broken) {
                Err(_) => refused += 1,
                Ok(tensors) => {
                    let end = broken.len() as u64;
                    assert!(tensors.iter().all(|tensor| tensor.begin + tensor.length as u64 <= end));
                }
            }
        }
        assert!(refused > 1000, "{refused}");
    }
}

//! A copy of a model file with weights of eight bits in the place of four, which llama.cpp computes
//! with faster on a CPU: it has a kernel for tiles of them, and unpacks nothing.
//!
//! The weights stay what they are, up to an eightieth of the step between two of their sixteen
//! levels. Only weights of type `Q4_1` are changed; all else in the file is copied as it is. The
//! layout is that of GGUF (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>), the blocks
//! are those of ggml-common.h.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"GGUF";
/// Of the type of a value: a string, and an array of values.
const STRING: u32 = 8;
const ARRAY: u32 = 9;
/// Arrays in arrays, at most: the format has a use for one.
const NESTED_MAX: u32 = 4;
/// Of the type of a tensor.
const Q4_1: u32 = 3;
const Q8_0: u32 = 8;
/// What `general.file_type` says of a file whose weights are mostly `Q8_0`.
const FILE_OF_Q8_0: u32 = 7;
/// Weights in a block of either type, and the bytes of one.
const WEIGHTS: usize = 32;
const BLOCK_Q4_1: usize = 20;
const BLOCK_Q8_0: usize = 34;
/// Where the file does not say.
const ALIGNMENT: usize = 32;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum WidenError {
    /// A file can't be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is no model file, or one cut short.
    #[error("{} is no whole GGUF file: {why}", path.display())]
    Broken {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It has no weights that would change.
    #[error("{} has no weights of type Q4_1", path.display())]
    NothingToDo {
        /// Which one.
        path: PathBuf,
    },
}

/// Writes the copy; `to` is there only once it is whole.
///
/// # Errors
///
/// [`WidenError`].
pub fn widen(from: &Path, to: &Path) -> Result<(), WidenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| WidenError::File { path, error }
    };
    let bytes = std::fs::read(from).map_err(failed(from))?;
    let path = || from.to_owned();
    let file = Layout::of(&bytes).map_err(|why| WidenError::Broken { path: path(), why })?;
    if file.tensors.iter().all(|tensor| tensor.kind != Q4_1) {
        return Err(WidenError::NothingToDo { path: path() });
    }
    // Named after the process: two that start at once do not write into each other's.
    let part = to.with_extension(format!("part-{}", std::process::id()));
    let written = file
        .write_widened(&part)
        .and_then(|()| std::fs::rename(&part, to));
    written.map_err(|error| {
        // Err: it was never there.
        let _ = std::fs::remove_file(&part);
        failed(to)(error)
    })
}

/// Where things are in a file.
struct Layout<'a> {
    /// All before the tensors' descriptions.
    head: &'a [u8],
    /// In `head`, where it says of what type the file's weights mostly are.
    file_type: Option<usize>,
    alignment: usize,
    tensors: Vec<Tensor<'a>>,
}

struct Tensor<'a> {
    /// Its name and shape, as they stand in the file.
    described: &'a [u8],
    kind: u32,
    /// With the padding after it, but for weights that change.
    data: &'a [u8],
}

impl<'a> Layout<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let mut cursor = Cursor { bytes, at: 0 };
        if cursor.take(MAGIC.len())? != MAGIC {
            return Err("it does not begin like one");
        }
        if !(2..=3).contains(&cursor.u32()?) {
            return Err("it is of another version");
        }
        let (tensors, pairs) = (cursor.u64()?, cursor.u64()?);
        let (mut file_type, mut alignment) = (None, ALIGNMENT);
        for _ in 0..pairs {
            let key = cursor.string()?;
            let kind = cursor.u32()?;
            let at = cursor.at;
            cursor.skip(kind, 0)?;
            let number = || {
                bytes
                    .get(at..at + 4)?
                    .try_into()
                    .ok()
                    .map(u32::from_le_bytes)
            };
            match key {
                b"general.file_type" => file_type = Some(at),
                b"general.alignment" => {
                    let said = number().and_then(|said| usize::try_from(said).ok());
                    alignment = said
                        .filter(|said| said.is_power_of_two())
                        .unwrap_or(ALIGNMENT);
                }
                _ => {}
            }
        }
        let head = &bytes[..cursor.at];
        let found: Vec<_> = (0..tensors)
            .map(|_| cursor.described())
            .collect::<Result<_, _>>()?;
        let data = bytes.get(cursor.at.next_multiple_of(alignment)..);
        Ok(Self {
            head,
            file_type,
            alignment,
            tensors: placed(&found, data.ok_or("it ends before its weights")?)?,
        })
    }

    fn write_widened(&self, path: &Path) -> io::Result<()> {
        let mut head = self.head.to_vec();
        if let Some(place) = self.file_type.and_then(|at| head.get_mut(at..at + 4)) {
            place.copy_from_slice(&FILE_OF_Q8_0.to_le_bytes());
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            let kind = if tensor.kind == Q4_1 {
                Q8_0
            } else {
                tensor.kind
            };
            head.extend_from_slice(tensor.described);
            head.extend_from_slice(&kind.to_le_bytes());
            head.extend_from_slice(&u64::try_from(offset).unwrap_or(u64::MAX).to_le_bytes());
            offset += tensor.widened_len().next_multiple_of(self.alignment);
        }
        let mut out = BufWriter::new(File::create(path)?);
        let whole = |len: usize| len.next_multiple_of(self.alignment) - len;
        out.write_all(&head)?;
        out.write_all(&vec![0; whole(head.len())])?;
        for tensor in &self.tensors {
            if tensor.kind == Q4_1 {
                for block in tensor.data.chunks_exact(BLOCK_Q4_1) {
                    out.write_all(&eight_bits(&weights(block)))?;
                }
            } else {
                out.write_all(tensor.data)?;
            }
            out.write_all(&vec![0; whole(tensor.widened_len())])?;
        }
        out.into_inner()?.sync_all()
    }
}

impl Tensor<'_> {
    fn widened_len(&self) -> usize {
        match self.kind {
            Q4_1 => self.data.len() / BLOCK_Q4_1 * BLOCK_Q8_0,
            _ => self.data.len(),
        }
    }
}

/// A tensor as the file describes it.
struct Described<'a> {
    bytes: &'a [u8],
    count: usize,
    kind: u32,
    offset: usize,
}

/// Each tensor with its data, which stand in the file in the order of their descriptions.
fn placed<'a>(found: &[Described<'a>], data: &'a [u8]) -> Result<Vec<Tensor<'a>>, &'static str> {
    let ends = found.iter().skip(1).map(|next| next.offset);
    let one = |(tensor, end): (&Described<'a>, usize)| {
        let end = match tensor.kind {
            Q4_1 => tensor.offset + tensor.count / WEIGHTS * BLOCK_Q4_1,
            _ => end,
        };
        Ok(Tensor {
            described: tensor.bytes,
            kind: tensor.kind,
            data: data
                .get(tensor.offset..end)
                .ok_or("its weights are not in order, or not all there")?,
        })
    };
    found
        .iter()
        .zip(ends.chain([data.len()]))
        .map(one)
        .collect()
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        self.at = end.unwrap_or(self.at);
        taken.ok_or("it ends in the middle")
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N)?
            .try_into()
            .map_err(|_| "it ends in the middle")
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn len(&mut self) -> Result<usize, &'static str> {
        usize::try_from(self.u64()?).map_err(|_| "a number in it is too large")
    }

    fn string(&mut self) -> Result<&'a [u8], &'static str> {
        let len = self.len()?;
        self.take(len)
    }

    fn skip(&mut self, kind: u32, depth: u32) -> Result<(), &'static str> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            STRING => return self.string().map(drop),
            ARRAY if depth < NESTED_MAX => {
                let kind = self.u32()?;
                for _ in 0..self.u64()? {
                    self.skip(kind, depth + 1)?;
                }
                return Ok(());
            }
            _ => return Err("it has a value of an unknown type"),
        };
        self.take(size).map(drop)
    }

    fn described(&mut self) -> Result<Described<'a>, &'static str> {
        let start = self.at;
        self.string()?;
        let mut count = 1_usize;
        for _ in 0..self.u32()? {
            let along = self.len()?;
            count = count
                .checked_mul(along)
                .ok_or("a tensor in it is too large")?;
        }
        let bytes = &self.bytes[start..self.at];
        let kind = self.u32()?;
        Ok(Described {
            bytes,
            count,
            kind,
            offset: self.len()?,
        })
    }
}

/// The weights of a `Q4_1` block: a scale, a least, and 32 halves of a byte.
fn weights(block: &[u8]) -> [f32; WEIGHTS] {
    let half = |at: usize| from_half(u16::from_le_bytes([block[at], block[at + 1]]));
    let (scale, least) = (half(0), half(2));
    let mut weights = [0.0; WEIGHTS];
    let (low, high) = weights.split_at_mut(WEIGHTS / 2);
    for ((byte, low), high) in block[4..].iter().zip(low).zip(high) {
        *low = f32::from(byte & 0xf) * scale + least;
        *high = f32::from(byte >> 4) * scale + least;
    }
    weights
}

/// A `Q8_0` block of these weights: a scale, and 32 bytes.
fn eight_bits(weights: &[f32; WEIGHTS]) -> [u8; BLOCK_Q8_0] {
    let most = weights
        .iter()
        .fold(0.0_f32, |most, one| most.max(one.abs()));
    let scale = most / 127.0;
    let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
    let mut block = [0; BLOCK_Q8_0];
    block[..2].copy_from_slice(&to_half(scale).to_le_bytes());
    for (byte, weight) in block[2..].iter_mut().zip(weights) {
        #[expect(clippy::cast_possible_truncation, reason = "within -127..=127")]
        let whole = (weight * inverse).round() as i8;
        *byte = whole.cast_unsigned();
    }
    block
}

fn from_half(half: u16) -> f32 {
    let (exponent, mantissa) = (half >> 10 & 0x1f, half & 0x3ff);
    let size = match exponent {
        0 => f32::from(mantissa) * 2.0_f32.powi(-24),
        0x1f if mantissa == 0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => f32::from_bits((u32::from(exponent) + 112) << 23 | u32::from(mantissa) << 13),
    };
    if half >> 15 == 0 { size } else { -size }
}

/// The half nearest to a number that is not below zero, an even one of two.
fn to_half(number: f32) -> u16 {
    let bits = number.to_bits();
    let half = if number < 2.0_f32.powi(-14) {
        // Below the normal ones they are whole multiples; the next after the last is the first
        // normal one.
        let shifted = number * 2.0_f32.powi(24) + 2.0_f32.powi(23);
        shifted.to_bits() - 2.0_f32.powi(23).to_bits()
    } else {
        let rounded = bits + 0xfff + (bits >> 13 & 1);
        (rounded >> 13).saturating_sub(112 << 10)
    };
    u16::try_from(half).unwrap_or(u16::MAX).min(0x7c00)
}

#[cfg(test)]
mod tests;

//! Copies of a small file made up here, and of pieces of it.

use super::*;

fn string(text: &str, out: &mut Vec<u8>) {
    out.extend(u64::try_from(text.len()).unwrap().to_le_bytes());
    out.extend(text.as_bytes());
}

fn tensor(name: &str, shape: &[u64], kind: u32, offset: u64, out: &mut Vec<u8>) {
    string(name, out);
    out.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
    for along in shape {
        out.extend(along.to_le_bytes());
    }
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
}

fn half(number: f32) -> [u8; 2] {
    let sign = if number < 0.0 { 0x8000 } else { 0 };
    (to_half(number.abs()) | sign).to_le_bytes()
}

/// A model file with one plain tensor between two of four bits, of which the last is not padded.
fn model() -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend(3_u64.to_le_bytes());
    file.extend(3_u64.to_le_bytes());
    string("general.file_type", &mut file);
    file.extend(4_u32.to_le_bytes());
    file.extend(3_u32.to_le_bytes());
    string("tokens", &mut file);
    file.extend([ARRAY, STRING].map(u32::to_le_bytes).concat());
    file.extend(2_u64.to_le_bytes());
    string("a", &mut file);
    string("bc", &mut file);
    string("yes", &mut file);
    file.extend(7_u32.to_le_bytes());
    file.push(1);
    tensor("first", &[32, 2], Q4_1, 0, &mut file);
    tensor("plain", &[3], 0, 64, &mut file);
    tensor("last", &[32], Q4_1, 96, &mut file);
    file.resize(file.len().next_multiple_of(32), 0);
    let start = file.len();
    for least in [-1.0, 0.25] {
        file.extend(half(0.125));
        file.extend(half(least));
        file.extend((0..16).map(|n| n | (15 - n) << 4));
    }
    file.resize(start + 64, 0);
    file.extend([1.5_f32, -2.0, 3.0].map(f32::to_le_bytes).concat());
    file.resize(start + 96, 0);
    file.extend(half(0.0));
    file.extend(half(0.0));
    file.extend([0x5a; 16]);
    file
}

fn widened(file: &[u8]) -> Result<Vec<u8>, WidenError> {
    let folder = std::env::temp_dir().join(format!("tollgate-widen-{}", std::process::id()));
    let name = std::thread::current().name().unwrap().replace("::", "-");
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let (from, to) = (folder.join("a.gguf"), folder.join("b.gguf"));
    std::fs::write(&from, file).unwrap();
    let done = widen(&from, &to);
    let left = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(
        left,
        if done.is_ok() { 2 } else { 1 },
        "nothing else is left"
    );
    let copy = done.map(|()| std::fs::read(&to).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    copy
}

fn bytes_of(block: &[u8]) -> Vec<f32> {
    let scale = from_half(u16::from_le_bytes([block[0], block[1]]));
    let whole = |byte: &u8| f32::from(byte.cast_signed()) * scale;
    block[2..].iter().map(whole).collect()
}

#[test]
fn a_copy_has_the_same_weights_in_eight_bits_and_all_else_as_it_was() {
    let file = model();
    let copy = widened(&file).unwrap();
    let (before, after) = (Layout::of(&file).unwrap(), Layout::of(&copy).unwrap());
    let kinds: Vec<_> = after.tensors.iter().map(|tensor| tensor.kind).collect();
    assert_eq!(kinds, [Q8_0, 0, Q8_0]);
    let said = &after.head[after.file_type.unwrap()..][..4];
    assert_eq!(said, FILE_OF_Q8_0.to_le_bytes());
    assert_eq!(after.tensors[1].data[..12], before.tensors[1].data[..12]);
    for (one, other) in before.tensors.iter().zip(&after.tensors) {
        assert_eq!(one.described, other.described);
        if one.kind != Q4_1 {
            continue;
        }
        let blocks = one.data.chunks_exact(BLOCK_Q4_1);
        for (block, copied) in blocks.zip(other.data.chunks_exact(BLOCK_Q8_0)) {
            let weights = weights(block);
            let most = weights
                .iter()
                .fold(0.0_f32, |most, one| most.max(one.abs()));
            for (weight, copied) in weights.iter().zip(bytes_of(copied)) {
                assert!((weight - copied).abs() <= most / 240.0, "{weight} {copied}");
            }
        }
    }
    assert!(matches!(
        widened(&copy),
        Err(WidenError::NothingToDo { .. })
    ));
}

#[test]
fn a_file_cut_short_anywhere_is_said_to_be_broken() {
    let file = model();
    for end in (0..file.len()).step_by(7) {
        let broken = widened(&file[..end]);
        assert!(matches!(broken, Err(WidenError::Broken { .. })), "at {end}");
    }
    let mut other = file;
    other[0] = b'X';
    assert!(matches!(widened(&other), Err(WidenError::Broken { .. })));
}

#[test]
fn every_half_is_read_and_written_as_it_is() {
    for half in 0..=0x7c00 {
        assert_eq!(to_half(from_half(half)), half);
    }
    // Between two the nearer one, in the middle the even one; beyond the largest none.
    assert_eq!(to_half(1.0 + 0.4 / 1_024.0), to_half(1.0));
    assert_eq!(to_half(1.0 + 0.6 / 1_024.0), to_half(1.0) + 1);
    assert_eq!(to_half(1.0 + 0.5 / 1_024.0), to_half(1.0));
    assert_eq!(to_half(1.0 + 1.5 / 1_024.0), to_half(1.0) + 2);
    assert_eq!(to_half(1e9), 0x7c00);
    assert_eq!(from_half(0xbc00), -1.0);
}

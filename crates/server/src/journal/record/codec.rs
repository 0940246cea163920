//! The letters that records are spelled in.

use super::Malformed;

/// The longest text of a record, in bytes. Names are far shorter; a longer one is cut, so that a
/// record always fits its frame.
const TEXT_MAX: usize = 1 << 10;

/// Bits of a byte of a number that are its own; the eighth says that more follow.
const BITS: u32 = 7;

/// Spells fields.
pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.wide(number.into());
    }

    /// Seven bits a byte, the lowest first.
    pub(super) fn wide(&mut self, mut number: u128) {
        loop {
            let low = u8::try_from(number & 0x7f).unwrap_or_default();
            number >>= BITS;
            if number == 0 {
                return self.byte(low);
            }
            self.byte(low | 0x80);
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(TEXT_MAX)];
        self.wide(u128::try_from(text.len()).unwrap_or_default());
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.byte(0),
            Some(value) => {
                self.byte(1);
                write(self, value);
            }
        }
    }
}

/// Reads them back.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (byte, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*byte)
    }

    pub(super) fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.wide()?).map_err(|_| Malformed)
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        u64::try_from(self.wide()?).map_err(|_| Malformed)
    }

    pub(super) fn wide(&mut self) -> Result<u128, Malformed> {
        let mut number = 0_u128;
        for shift in (0..u128::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u128::from(byte & 0x7f);
            // Bits that would be shifted out, or a last byte of nothing: another spelling of the
            // same number, which is not ours.
            let fits = bits << shift >> shift == bits;
            let is_short = byte != 0 || shift == 0;
            if !fits || !is_short {
                return Err(Malformed);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = usize::try_from(self.wide()?).map_err(|_| Malformed)?;
        if length > TEXT_MAX {
            return Err(Malformed);
        }
        let (text, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Malformed)
    }

    pub(super) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Malformed),
        }
    }

    /// There is nothing more.
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}
